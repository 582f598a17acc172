"""The host's client against a guest that says whatever it likes: no crash, no hang, no unbounded memory."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kooi.contract.errors import InvalidRequest, KooiError
from kooi.engine.client import Call, Client, GuestGone, GuestViolation
from kooi.guest import frames
from kooi.guest.frames import frame, json_frame
from tests.guest.harness import SECONDS, SocketStream

HELLO = frame(frames.HELLO, 0, b'{"protocol":1,"python":"3.11.2","pid":1}')
OK = {"status": "ok", "exit_code": None, "signal": None, "error": None, "left": 0}
RUN = {"context": "", "code_bytes": 1, "stdin": False, "limits": {}}
WRITE = {"path": "f", "append": False, "mode": None}


def with_peer(scenario: Callable[[Client, socket.socket], Awaitable[None]]) -> None:
    """Run `scenario` with a client and the other end of its stream, non-blocking."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        with ours, theirs:
            client = Client(SocketStream(ours))
            try:
                await asyncio.wait_for(scenario(client, theirs), SECONDS)
            finally:
                client.close()

    asyncio.run(main())


def run(client: Client, **heard: Any) -> Call:
    return client.open("run", RUN, body=b"1", **heard)


async def heard(theirs: socket.socket, enough: int = 1) -> list[tuple[int, int, bytes]]:
    """Return at least `enough` frames that the client sent."""
    parser = frames.Parser(frames.FROM_HOST, memoryview(bytearray(frames.SCRATCH_BYTES)))
    found: list[tuple[int, int, bytes]] = []
    while len(found) < enough:
        try:
            data = theirs.recv(1 << 16)
        except BlockingIOError:
            await asyncio.sleep(0.001)
            continue
        found += [(kind, channel, bytes(view)) for kind, channel, view in parser.feed(data)]
    return found


def test_a_call_leaves_in_one_send_with_its_configuration() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        client.configure({"A": "b"}, "/home/user")
        run(client)
        found = await heard(theirs, 3)
        assert [kind for kind, _, _ in found] == [frames.CONFIG, frames.OPEN, frames.DATA]
        assert len(found) == 3, "a run without input needs no EOF"
        client.open("file.write", WRITE, body=b"x")
        assert [kind for kind, _, _ in await heard(theirs, 3)] == [frames.OPEN, frames.DATA, frames.EOF]
        with pytest.raises(InvalidRequest):
            client.configure({}, "/")

    with_peer(scenario)


def test_a_configuration_alone_is_sent_when_the_loop_runs_on() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        client.configure({}, "/")
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        assert (await heard(theirs))[0][0] == frames.CONFIG

    with_peer(scenario)


def test_hello_is_awaited_by_many() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        waiting = [asyncio.create_task(client.hello()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        theirs.send(HELLO)
        assert [await each for each in waiting[1:]] == [{"protocol": 1, "python": "3.11.2", "pid": 1}] * 2

    with_peer(scenario)


AFTER_HELLO: list[bytes] = [
    HELLO,
    frame(frames.OUT, 3, b"x"),
    frame(frames.OUT, 2, b"x"),
    frame(frames.DATA, 1, b"x"),
    frame(frames.EOF, 1),
    frame(frames.OUT, 5, b"x"),
    frame(frames.ERR, 5, b"x"),
    frame(frames.EOF, 5) + frame(frames.DATA, 5, b"x"),
    frame(frames.EOF, 5) * 2,
    frame(frames.CREDIT, 1, b"\0\0\0\0"),
    frame(frames.CREDIT, 1, b"\0\0\0\2"),
    frame(frames.CREDIT, 1, b"\xff\xff\xff\xff"),
    json_frame(frames.EVENT, 1, {"type": "entries", "entries": []}),
    json_frame(frames.EVENT, 1, {"type": "result", "data": {"text/plain": 5}}),
    json_frame(frames.END, 1, {}),
    json_frame(frames.END, 1, {**OK, "status": "perfect"}),
    frame(frames.END, 1, b"[" * 200_000),
    frame(frames.END, 1, b'{"status":"ok","status":"ok"}'),
    frame(frames.END, 1, b"\xff\xff"),
    json_frame(frames.END, 1, OK) * 2,
    json_frame(frames.END, 1, OK) + frame(frames.OUT, 1, b"late"),
    frame(frames.OUT, 1, b"x" * frames.MAX_PAYLOAD) + frame(frames.OUT, 1, b"x"),
    frame(frames.OPEN, 1, b"{}"),
    frame(frames.CONFIG, 0, b"{}"),
    frame(frames.CONTROL, 1, b"{}"),
    frame(0, 0, b""),
    frame(255, 1, b""),
    b"\xff\xff\xff\xff\x06\0\0\0\1",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
]


@pytest.mark.parametrize("wrong", AFTER_HELLO, ids=range(len(AFTER_HELLO)))
def test_a_violation_fails_every_call_and_nothing_more_is_read(wrong: bytes) -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        calls = [run(client, on_out=lambda data: False), client.open("ping", {})]
        del calls[1:]
        calls.append(client.open("file.read", {"path": "x"}))
        theirs.setblocking(True)
        theirs.settimeout(SECONDS)
        await asyncio.get_running_loop().run_in_executor(None, theirs.sendall, HELLO + wrong)
        with pytest.raises(GuestViolation) as caught:
            await calls[-1].done
        assert caught.value.code == "guest_violation" and isinstance(caught.value, KooiError)
        with pytest.raises(GuestViolation):
            client.open("ping", {})
        theirs.setblocking(False)
        before = client._parser
        theirs.send(HELLO * 10)
        await asyncio.sleep(0.02)
        assert client._parser is before

    with_peer(scenario)


def test_what_came_whole_before_the_violation_counts() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        call, other = run(client), run(client)
        theirs.send(HELLO + json_frame(frames.END, 1, OK) + b"\xff" * 9)
        assert (await call.done)["status"] == "ok"
        with pytest.raises(GuestViolation):
            await other.done

    with_peer(scenario)


@pytest.mark.parametrize("first", [frame(frames.OUT, 1, b"x"), json_frame(frames.END, 1, OK)])
def test_nothing_comes_before_hello(first: bytes) -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        run(client)
        theirs.send(first)
        with pytest.raises(GuestViolation):
            await client.hello()

    with_peer(scenario)


def test_the_end_of_the_stream_fails_what_is_open() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        done, lost = run(client), run(client)
        theirs.send(HELLO + json_frame(frames.END, 1, OK) + b"\0\0")
        theirs.close()
        assert (await done.done)["status"] == "ok", "what was said before the end counts"
        with pytest.raises(GuestGone) as caught:
            await lost.done
        assert caught.value.code == "guest_gone"
        with pytest.raises(GuestGone):
            client.open("ping", {})
        await asyncio.wait_for(_write_to(lost), SECONDS)
        lost.signal(9)

    async def _write_to(call: Call) -> None:
        with pytest.raises(InvalidRequest):
            await call.write(b"x")

    with_peer(scenario)


def test_close_fails_what_is_open_and_is_safe_twice() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        call = run(client)
        client.close()
        client.close()
        for waiting in (call.done, client.hello()):
            with pytest.raises(GuestGone):
                await waiting

    with_peer(scenario)


def test_a_guest_that_reads_nothing_stops_the_writer_only() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        theirs.send(HELLO)
        call = client.open("file.write", WRITE, end_input=False)
        writing = asyncio.create_task(call.write(bytes(50 << 20)))
        await asyncio.sleep(0.05)
        assert not writing.done() and client._outbox.size <= 512 * 1024
        call.signal(9)
        theirs.send(json_frame(frames.END, 1, {"errno": 125, "message": "cancelled"}))
        assert (await call.done)["errno"] == 125
        await asyncio.wait_for(writing, SECONDS)

    with_peer(scenario)


def drain(theirs: socket.socket) -> bytes:
    parts = []
    try:
        while True:
            parts.append(theirs.recv(1 << 20))
    except BlockingIOError:
        return b"".join(parts)


def test_input_that_waits_for_room_only_goes_on_whoever_made_the_room() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        theirs.send(HELLO)
        body = b"x" * (frames.WINDOW // 2)
        calls = [client.open("file.write", WRITE, body=body) for _ in range(3)]
        found = b""
        while client._outbox.size:
            found += drain(theirs)
            calls[0].signal(15)  # sends what waits, and not by the loop
        for _ in range(2000):
            if found.count(b"x") >= len(body) * len(calls):
                break
            await asyncio.sleep(0.001)
            found += drain(theirs)
        assert found.count(b"x") == len(body) * len(calls)

    with_peer(scenario)


def test_input_waits_for_credit() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        theirs.send(HELLO)
        call = client.open("file.write", WRITE, body=b"x" * (frames.WINDOW + 10))
        got = 0
        found = []
        while got < frames.WINDOW:
            try:
                got += len(theirs.recv(1 << 20))
            except BlockingIOError:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        theirs.send(frames.credit_frame(1, 4))
        found = await heard_after(theirs)
        assert found == frame(frames.DATA, 1, b"x" * 4)
        theirs.send(frames.credit_frame(1, 100))
        assert await heard_after(theirs) == frame(frames.DATA, 1, b"x" * 6) + frame(frames.EOF, 1)
        theirs.send(json_frame(frames.END, 1, {"size": 1}))
        await call.done

    async def heard_after(theirs: socket.socket) -> bytes:
        data = b""
        for _ in range(20):
            await asyncio.sleep(0.002)
            try:
                data += theirs.recv(1 << 20)
            except BlockingIOError:
                continue
        return data[-len(data) :] if not data.startswith(b"x") else data.lstrip(b"x")

    with_peer(scenario)


def test_credit_is_granted_after_the_callback_and_withheld_by_false() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        granted = run(client, on_out=lambda data: None)
        held = run(client, on_out=lambda data: False)
        await heard(theirs, 4)
        lump = bytes(frames.MAX_PAYLOAD // 2)
        theirs.setblocking(True)
        send = asyncio.get_running_loop().run_in_executor
        await send(None, theirs.sendall, HELLO + frame(frames.OUT, 1, lump) + frame(frames.OUT, 3, lump))
        theirs.setblocking(False)
        assert await heard(theirs) == [(frames.CREDIT, 1, len(lump).to_bytes(4, "big"))]
        with pytest.raises(InvalidRequest):
            held.grant(len(lump) + 1)
        with pytest.raises(InvalidRequest):
            held.grant(-1)
        held.grant(len(lump))
        assert await heard(theirs) == [(frames.CREDIT, 3, len(lump).to_bytes(4, "big"))]
        held.grant()
        theirs.send(json_frame(frames.END, 1, OK) + json_frame(frames.END, 3, OK))
        await asyncio.gather(granted.done, held.done)
        held.grant()

    with_peer(scenario)


def test_small_output_costs_no_credit_frames() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        call = run(client, on_out=lambda data: None)
        await heard(theirs, 2)
        theirs.send(HELLO + frame(frames.OUT, 1, b"1\n") + json_frame(frames.END, 1, OK))
        await call.done
        with pytest.raises(BlockingIOError):
            theirs.recv(1)

    with_peer(scenario)


def test_a_callback_that_raises_fails_its_call_alone() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        def bad(data: bytes) -> None:
            raise LookupError("mine")

        failing, fine = run(client, on_out=bad), run(client)
        theirs.send(HELLO + frame(frames.OUT, 1, b"x") * 3 + json_frame(frames.END, 3, OK))
        with pytest.raises(LookupError):
            await failing.done
        assert (await fine.done)["status"] == "ok"
        theirs.send(json_frame(frames.END, 1, OK))
        assert await client.hello()

    with_peer(scenario)


def test_cancelling_the_wait_does_not_disturb_the_channel() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        call = run(client)
        call.done.cancel()
        theirs.send(HELLO + frame(frames.OUT, 1, b"x") + json_frame(frames.END, 1, OK))
        other = client.open("ping", {})
        theirs.send(json_frame(frames.END, 3, {}))
        assert await other.done == {}

    with_peer(scenario)


def test_at_most_256_calls() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        calls = [client.open("ping", {}) for _ in range(frames.MAX_CHANNELS)]
        with pytest.raises(InvalidRequest):
            client.open("ping", {})
        theirs.send(HELLO + json_frame(frames.END, 1, {}))
        await calls[0].done
        client.open("ping", {})

    with_peer(scenario)


@pytest.mark.parametrize(
    ("op", "fields", "body"),
    [
        ("nope", {}, b""),
        ("run", RUN, b""),
        ("run", RUN, b"12"),
        ("run", {**RUN, "context": "\ud800"}, b"1"),
        ("run", {**RUN, "context": "x" * frames.MAX_JSON}, b"1"),
        ("exec", {"argv": ["x"] * 100_000, "cwd": None, "env": {}, "stdin": False}, b""),
        ("exec", {"argv": ["a\0b"], "cwd": None, "env": {}, "stdin": False}, b""),
        ("file.read", {"path": "x"}, b"input"),
        ("file.read", {"path": "x\0"}, b""),
    ],
)
def test_requests_that_the_guest_would_refuse_are_refused_here(op: str, fields: dict[str, Any], body: bytes) -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        with pytest.raises(InvalidRequest) as caught:
            client.open(op, fields, body=body)
        assert caught.value.key in ("fields", "body")
        assert client.open("ping", {})._channel == 1, "a refused call takes no channel"

    with_peer(scenario)


def test_an_environment_of_a_megabyte_is_refused_here() -> None:
    async def scenario(client: Client, theirs: socket.socket) -> None:
        with pytest.raises(InvalidRequest) as caught:
            client.configure({"A": "x" * (1 << 20)}, "/")
        assert caught.value.key == "env"
        with pytest.raises(InvalidRequest):
            run(client).signal(0)

    with_peer(scenario)


def test_a_stream_of_two_descriptors() -> None:
    class Pipes:
        def __init__(self) -> None:
            self.read_fd, self.feed = os.pipe()
            self.sink, self.write_fd = os.pipe()
            for fd in (self.read_fd, self.write_fd, self.sink):
                os.set_blocking(fd, False)

        def close(self) -> None:
            for fd in {self.read_fd, self.write_fd}:
                os.close(fd)
            self.read_fd = self.write_fd = -1

    async def main() -> None:
        pipes = Pipes()
        client = Client(pipes)
        call = client.open("file.write", WRITE, body=b"x" * 300_000)
        os.write(pipes.feed, HELLO)
        got = 0
        while got < 300_000:
            await asyncio.sleep(0.001)
            try:
                got += len(os.read(pipes.sink, 1 << 16))
            except BlockingIOError:
                continue
        os.write(pipes.feed, json_frame(frames.END, 1, {"size": 300_000}))
        assert await call.done == {"size": 300_000}
        client.close()
        for fd in (pipes.feed, pipes.sink):
            os.close(fd)

    asyncio.run(main())


def test_a_flood_without_an_end_keeps_memory_bounded() -> None:
    """A guest fills every window of 256 channels with what nobody takes: no more than that is ever accepted."""

    async def scenario(client: Client, theirs: socket.socket) -> None:
        taken = 0

        def hold(data: bytes) -> bool:
            nonlocal taken
            taken += len(data)
            return False

        calls = [run(client, on_out=hold) for _ in range(frames.MAX_CHANNELS)]
        lump = frame(frames.OUT, 1, bytes(frames.MAX_PAYLOAD))[frames.HEADER_BYTES :]
        theirs.send(HELLO)

        def flood() -> None:
            theirs.settimeout(SECONDS)
            try:
                for call in calls:
                    theirs.sendall(frames.header(frames.OUT, call._channel, len(lump)) + lump)
                theirs.sendall(frame(frames.OUT, 1, b"one too many"))
            except OSError:
                pass

        flooding = asyncio.get_running_loop().run_in_executor(None, flood)
        with pytest.raises(GuestViolation):
            await calls[0].done
        await flooding
        assert taken == frames.MAX_CHANNELS * frames.WINDOW

    with_peer(scenario)
    gc.collect()
