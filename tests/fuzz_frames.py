"""Mutate valid conversations of the guest protocol and see that neither side breaks. Runnable:

    python tests/fuzz_frames.py --frames 1000000 [--seed 0] [--target client|agent|answers]

Each conversation is a valid one whose frames were dropped, doubled, moved, retyped, redirected, lied about in length,
cut, flipped, or given wrong JSON. The client must end every call with a result or with one of its two errors, the agent
must go on or raise `FrameError`, the reader of an interpreter's answers must yield what fits a frame or raise
`BadAnswer`; and none may hold more than its windows. A failure names the seed that repeats it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from kooi.engine.client import Call, Client, GuestGone, GuestViolation
from kooi.guest import agent, commands, contexts, frames, shapes, transfers
from kooi.guest.answers import Answers, BadAnswer, ended, fitting
from kooi.guest.children import Setup
from kooi.guest.frames import FrameError, Parser
from kooi.guest.hatch import Hatched
from kooi.guest.interpreter import DONE, FAILED, RESULT, answer

Rng = random.Random
Frame = tuple[int, int, bytes]

ENTRY = {"name": "a", "path": "b/a", "type": "file", "size": 1, "mode": 420, "mtime": 1.5, "target": None}
OK = {"status": "ok", "exit_code": None, "signal": None, "error": None, "left": 0}
ERROR = {**OK, "status": "error", "error": {"name": "E", "value": "v", "traceback": "t"}}
EXEC = {"argv": ["x"], "cwd": None, "env": {"A": "b"}, "stdin": True}
RUN = {"context": "", "code_bytes": 3, "stdin": True, "limits": {}}
CALLS: list[tuple[str, dict[str, Any], bytes]] = [
    ("run", RUN, b"1+1input"),
    ("exec", EXEC, b"input"),
    ("file.read", {"path": "f"}, b""),
    ("file.write", {"path": "f", "append": False, "mode": None}, b"content"),
    ("file.list", {"path": ".", "recursive": True}, b""),
    ("file.stat", {"path": "f"}, b""),
    ("file.mkdir", {"path": "d", "parents": True}, b""),
    ("file.remove", {"path": "d", "recursive": False}, b""),
    ("ping", {}, b""),
]
ENDS = [
    OK,
    {**OK, "status": "exit", "exit_code": 1},
    {"size": 3},
    {"size": 7},
    {"count": 1},
    {"entry": ENTRY},
    {},
    {},
    {},
]
ODD: list[Any] = [
    None, True, -1, 0, 1e308, 2**63, "", "\0", "x" * 300, [], {}, [[]], {"a": {"b": {}}}, "\ud800", float("nan"),
    float("inf"), 10**30, "ok", "result", ENTRY, ["x"] * 600,
]  # fmt: skip


def encoded(value: Any) -> bytes:
    """Return JSON, strict or not."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


def guest_conversation(rng: Rng, opened: int) -> list[Frame]:
    """Return what a well-behaved guest says to calls 1, 3, ... of `CALLS`."""
    said: list[Frame] = [(frames.HELLO, 0, encoded({"protocol": 1, "python": "3.11.2", "pid": 1}))]
    for index in range(opened):
        channel, op = 2 * index + 1, CALLS[index][0]
        for _ in range(rng.randrange(3)):
            size = rng.choice((1, 5, 100, 5000, frames.MAX_PAYLOAD)) if rng.random() < 0.02 else rng.randrange(1, 50)
            kind = {"file.read": frames.DATA}.get(op, rng.choice((frames.OUT, frames.ERR)))
            if op in ("run", "exec", "file.read"):
                said.append((kind, channel, bytes(size)))
        if op == "run":
            said.append((frames.EVENT, channel, encoded({"type": "result", "data": {"text/plain": "2"}})))
        if op == "file.list":
            said.append((frames.EVENT, channel, encoded({"type": "entries", "entries": [ENTRY]})))
        if op == "file.read":
            said.append((frames.EOF, channel, b""))
        if op in ("run", "exec", "file.write"):
            said.append((frames.CREDIT, channel, rng.randrange(1, 9).to_bytes(4, "big")))
        said.append((frames.END, channel, encoded(ENDS[index])))
    return said


def host_conversation(rng: Rng, opened: int) -> list[Frame]:
    """Return what a well-behaved host says to open `CALLS`."""
    said: list[Frame] = [(frames.CONFIG, 0, encoded({"env": {"A": "b"}, "cwd": "/"}))]
    for index in range(opened):
        op, fields, body = CALLS[index]
        channel = 2 * index + 1
        said.append((frames.OPEN, channel, encoded({"op": op, **fields})))
        if body:
            cut = rng.randrange(1, len(body))
            said += [(frames.DATA, channel, body[:cut]), (frames.DATA, channel, body[cut:]), (frames.EOF, channel, b"")]
        if rng.random() < 0.3:
            said.append((frames.CONTROL, channel, encoded({"signal": rng.choice((2, 15, 9))})))
    return said


def mutated_json(rng: Rng, payload: bytes) -> bytes:
    """Return a JSON payload with something wrong in it, or still right."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return payload
    target, keys = value, list(value) if isinstance(value, dict) else []
    while keys and rng.random() < 0.5 and isinstance(target[keys[-1]], dict) and target[keys[-1]]:
        target = target[keys[-1]]
        keys = list(target)
    choice = rng.randrange(6)
    if choice == 0 and keys:
        del target[rng.choice(keys)]
    elif choice == 1 and isinstance(target, dict):
        target[rng.choice(("", "op", "status", "more"))] = rng.choice(ODD)
    elif choice == 2 and keys:
        target[rng.choice(keys)] = rng.choice(ODD)
    elif choice == 3:
        return payload[:-1] + b"," + payload[1:]
    elif choice == 4:
        return b'{"a":' * rng.choice((2, 40, 5000)) + payload
    else:
        return payload.replace(b'"', rng.choice((b"'", b'"\\ud800', b'"\xff', b'"\\u0000')), rng.randrange(1, 4))
    return encoded(value)


def mutated(rng: Rng, said: list[Frame]) -> tuple[bytes, int]:
    """Return a conversation as bytes after a few mutations, and how many frames it has."""
    said = list(said)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(said)) if said else 0
        choice = rng.randrange(11)
        kind, channel, payload = said[at] if said else (1, 0, b"")
        if choice == 0 and said:
            del said[at]
        elif choice == 1:
            said.insert(rng.randrange(len(said) + 1), (kind, channel, payload))
        elif choice == 2 and said:
            said.insert(rng.randrange(len(said)), said.pop(at))
        elif choice == 3 and said:
            said[at] = (rng.choice((*range(13), 255)), channel, payload)
        elif choice == 4 and said:
            said[at] = (kind, rng.choice((0, 1, 2, 3, 5, 17, 2**31, 2**32 - 1)), payload)
        elif choice == 5 and said:
            said[at] = (kind, channel, payload[: rng.randrange(len(payload) + 1)])
        elif choice == 6 and said and payload:
            spot = rng.randrange(len(payload))
            flipped = bytes([payload[spot] ^ (1 << rng.randrange(8))])
            said[at] = (kind, channel, payload[:spot] + flipped + payload[spot + 1 :])
        elif choice == 7:
            said.insert(at, (rng.randrange(256), rng.randrange(64), rng.randbytes(rng.randrange(40))))
        elif said:
            said[at] = (kind, channel, mutated_json(rng, payload) if payload[:1] == b"{" else payload + b"\0")
    parts = [frames.header(kind, channel, len(payload)) + payload for kind, channel, payload in said]
    if parts and rng.random() < 0.15:
        at = rng.randrange(len(parts))
        lie = rng.choice((0, 1, 8, frames.MAX_PAYLOAD, frames.MAX_PAYLOAD + 1, 2**32 - 1))
        parts[at] = lie.to_bytes(4, "big") + parts[at][4:]
    data = b"".join(parts)
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data) + 1)]
    return data, len(parts)


class ClientTarget:
    """The host's client in a running loop, with a peer that says what it is told."""

    def __init__(self) -> None:
        self.problems: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: self.problems.append(context))

    async def converse(self, rng: Rng) -> int:
        """Hold one conversation; return its number of frames."""
        opened = rng.randrange(1, len(CALLS) + 1)
        data, count = mutated(rng, guest_conversation(rng, opened))
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        client = Client(_Stream(ours))
        heard = [0] * opened
        calls = [self._open(client, index, heard, rng) for index in range(opened)]
        pieces = rng.choice((1, 1, 2, 5))
        for index in range(pieces):
            await self._send(client, theirs, data[len(data) * index // pieces : len(data) * (index + 1) // pieces])
        theirs.close()
        results = await asyncio.wait_for(asyncio.gather(*(call.done for call in calls), return_exceptions=True), 20)
        client.close()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, (GuestGone, GuestViolation)):
                raise AssertionError(f"a call failed with {result!r}")
        for call, result in zip(calls, results, strict=True):
            if not isinstance(result, BaseException):
                shapes.check_end(call.op, dict(result))
        assert max(heard) <= frames.WINDOW, "more was accepted than there was credit for"
        assert not client._calls and not client._feeding and not client._outbox.size
        assert not self.problems, self.problems
        return count

    @staticmethod
    def _open(client: Client, index: int, heard: list[int], rng: Rng) -> Call:
        op, fields, body = CALLS[index]
        grants = rng.random() < 0.3

        def on_bytes(data: bytes) -> bool | None:
            heard[index] += 0 if grants else len(data)
            return None if grants else False

        def on_event(value: Any) -> bool | None:
            shapes.check_event(op, dict(value))
            return None if grants else False

        return client.open(op, fields, body=body, on_out=on_bytes, on_err=on_bytes, on_data=on_bytes, on_event=on_event)

    @staticmethod
    async def _send(client: Client, theirs: socket.socket, data: bytes) -> None:
        view = memoryview(data)
        while view and client._error is None:
            try:
                view = view[theirs.send(view) :]
            except BlockingIOError:
                try:
                    theirs.recv(1 << 16)
                except BlockingIOError:
                    pass
            except (BrokenPipeError, ConnectionResetError):
                return
            await asyncio.sleep(0)
        await asyncio.sleep(0)


class _Stream:
    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.read_fd = self.write_fd = end.fileno()

    def close(self) -> None:
        self._end.close()


class AgentTarget:
    """The agent, in a fork for each conversation, with interpreters, commands and helpers that are never started."""

    def __init__(self) -> None:
        self._setup = Setup(home="/", env=dict(os.environ), python_argv=(sys.executable,))
        self._ends: list[socket.socket] = []
        contexts.hatch = self._hatch
        agent.Nursery.start = lambda nursery, planted, body, **how: 2**30  # type: ignore[method-assign,assignment]
        agent.Family.kill = lambda family, leader, done: done()  # type: ignore[method-assign]
        contexts.send = transfers.send = commands.send = lambda pid, number, group: None

    def _hatch(self, *anything: Any) -> Hatched:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._ends.append(theirs)
        return Hatched(2**30, ours.detach())

    def converse(self, rng: Rng) -> int:
        """Hold one conversation; return its number of frames."""
        data, count = mutated(rng, host_conversation(rng, rng.randrange(1, len(CALLS) + 1)))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self._serve(rng, data)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0, "the agent broke; its traceback is above"
        return count

    def _serve(self, rng: Rng, data: bytes) -> None:
        ours, theirs = socket.socketpair()
        served = agent.Agent(self._setup)
        served.nursery.null = os.open(os.devnull, os.O_RDWR)
        served.settle()
        served.connect(ours.fileno(), ours.fileno())
        served.poller.watch(ours.fileno(), 1, served._stream_ready)
        theirs.setblocking(False)
        view = memoryview(data)
        try:
            while view:
                view = view[theirs.send(view[: rng.choice((7, 4096, 1 << 17))]) :]
                served.poller.wait(0)
                held = [part for channel in served._channels.values() for part in getattr(channel, "held", ())]
                assert sum(map(len, held)) <= frames.MAX_CHANNELS * frames.WINDOW
        except (FrameError, agent.StreamEnded, BlockingIOError):
            pass


class AnswersTarget:
    """What an interpreter's socket says."""

    def converse(self, rng: Rng) -> int:
        """Hold one conversation; return its number of answers."""
        texts = ("", "é" * rng.randrange(9), "\x01" * rng.choice((1, 9, 99, 70_000 if rng.random() < 0.05 else 9)))
        said = [
            answer(kind, rng.randrange(3), *rng.choices(texts, k=count))
            for kind, count in ((RESULT, 2), (RESULT, 3), (FAILED, 3), (DONE, 0), (b"?", 1))
        ]
        rng.shuffle(said)
        data = bytearray(b"".join(said))
        for _ in range(rng.randrange(4)):
            spot = rng.randrange(len(data)) if rng.random() < 0.3 else rng.randrange(min(len(data), 40))
            data[spot] = rng.randrange(256)
        reader, count = Answers(), 0
        try:
            step = rng.choice((3, 1000, 1 << 17))
            for start in range(0, len(data), step):
                for kind, _, texts in reader.feed(bytes(data[start : start + step])):
                    count += 1
                    self._judge(kind, texts)
        except BadAnswer:
            count += 1
        return count

    @staticmethod
    def _judge(kind: bytes, texts: list[str]) -> None:
        if kind == FAILED and len(texts) == 3:
            payload = ended("error", error=dict(zip(("name", "value", "traceback"), texts, strict=True)), left=1)
            assert len(payload) <= frames.MAX_JSON
            shapes.check_end("run", frames.loads(payload))
        elif kind == RESULT and len(texts) == 2 and 0 < len(texts[0]) <= 256:
            bundle = dict([texts])
            payload = fitting({"type": "result", "data": bundle}, bundle)
            assert len(payload) <= frames.MAX_JSON
            shapes.check_event("run", frames.loads(payload))


class ParserTarget:
    """The parser alone: however the bytes are cut, the same frames and the same refusal."""

    def converse(self, rng: Rng) -> int:
        """Parse one conversation twice; return its number of frames."""
        data, count = mutated(rng, guest_conversation(rng, rng.randrange(1, len(CALLS) + 1)))
        whole, cut = self._parse(data, [len(data)]), self._parse(data, [rng.choice((1, 8, 9, 100, 5000))])
        assert whole == cut
        return count

    @staticmethod
    def _parse(data: bytes, sizes: list[int]) -> tuple[list[tuple[int, int, int]], bool]:
        parser = Parser(frames.FROM_GUEST, memoryview(bytearray(1024)))
        found: list[tuple[int, int, int]] = []
        try:
            for start in range(0, len(data), sizes[0] or 1):
                for kind, channel, view in parser.feed(data[start : start + sizes[0]]):
                    found.append((kind, channel, hash(bytes(view))))
        except FrameError:
            return found, True
        return found, False


def fuzz(target: str, budget: int, seed: int, tell: Callable[[str], None] = lambda text: None) -> int:
    """Hold conversations until `budget` frames were sent; return how many that was."""
    if target == "client":
        return asyncio.run(_fuzz_client(budget, seed, tell))
    kinds: dict[str, Callable[[], Any]] = {"agent": AgentTarget, "answers": AnswersTarget, "parser": ParserTarget}
    made = kinds[target]()
    sent, started = 0, time.monotonic()
    while sent < budget:
        try:
            sent += made.converse(Rng(f"{target} {seed}"))
        except Exception as error:
            raise AssertionError(f"repeat with --target {target} --seed {seed} --frames 1") from error
        seed += 1
        if seed % 5000 == 0:
            tell(f"{target}: {sent} frames, {time.monotonic() - started:.0f} s")
    return sent


async def _fuzz_client(budget: int, seed: int, tell: Callable[[str], None]) -> int:
    made = ClientTarget()
    sent, started = 0, time.monotonic()
    while sent < budget:
        try:
            sent += await made.converse(Rng(f"client {seed}"))
        except Exception as error:
            raise AssertionError(f"repeat with --target client --seed {seed} --frames 1") from error
        seed += 1
        if seed % 5000 == 0:
            tell(f"client: {sent} frames, {time.monotonic() - started:.0f} s")
    return sent


TARGETS = ("client", "parser", "answers", "agent")


def main() -> None:
    """Fuzz from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many mutated frames per target")
    parser.add_argument("--seed", type=int, default=0, help="the first conversation")
    parser.add_argument("--target", choices=TARGETS, action="append", help="default: all")
    options = parser.parse_args()
    for target in options.target or TARGETS:
        print(f"{target}: {fuzz(target, options.frames, options.seed, print)} frames, no failure", flush=True)


if __name__ == "__main__":
    main()
