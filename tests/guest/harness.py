"""A real agent in a plain child process, driven through `Client` or frame by frame."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from kooi.engine.client import Call, Client
from kooi.guest import frames

MAIN = Path(frames.__file__).parent / "__main__.py"
SECONDS = 20.0

T = TypeVar("T")
Frame = tuple[int, int, bytes]


class SocketStream:
    """A socket as the contract's `Stream`."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self.read_fd = self.write_fd = end.fileno()

    def close(self) -> None:
        """Close it."""
        self._end.close()


@contextmanager
def agent(
    home: Path, python: str = sys.executable, **setup: Any
) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """Start an agent; yield its process and our end of its stream. Kill it and all it started at the end."""
    ours, theirs = socket.socketpair()
    fields = {"home": str(home), "env": {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}, **setup}
    command = [python, "-I", "-S", "-B", str(MAIN), str(theirs.fileno())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()], start_new_session=True)
    with process, ours:
        theirs.close()
        assert process.stdin is not None
        process.stdin.write(json.dumps(fields).encode())
        process.stdin.close()
        try:
            yield process, ours
        finally:
            ours.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


class Box:
    """A client and what its calls said."""

    def __init__(self, client: Client, process: subprocess.Popen[bytes], home: Path) -> None:
        self.client = client
        self.process = process
        self.home = home

    def start(self, code: str | bytes, context: str = "", stdin: bytes | None = None, **more: Any) -> Spoken:
        """Start a run."""
        source = code.encode("utf-8", "surrogatepass") if isinstance(code, str) else code
        fields = {"context": context, "code_bytes": len(source), "stdin": stdin is not None, "limits": {}}
        return Spoken(self.client, "run", fields, source + (stdin or b""), **more)

    async def run(self, code: str | bytes, context: str = "", stdin: bytes | None = None) -> Spoken:
        """Run code to its end."""
        return await self.start(code, context, stdin).ended()

    def command(self, what: str | list[str], stdin: bytes | None = None, **more: Any) -> Spoken:
        """Start a command."""
        fields = {
            "cwd": None,
            "env": {},
            "stdin": stdin is not None,
            **{k: more.pop(k) for k in ("cwd", "env") if k in more},
        }
        fields["shell" if isinstance(what, str) else "argv"] = what
        return Spoken(self.client, "exec", fields, stdin or b"", **more)

    async def file(self, op: str, body: bytes = b"", **fields: Any) -> Spoken:
        """Do a file operation."""
        return await Spoken(self.client, f"file.{op}", fields, body).ended()


class Spoken:
    """A call, with its output kept."""

    def __init__(self, client: Client, op: str, fields: Mapping[str, Any], body: bytes, **more: Any) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self.data = bytearray()
        self.events: list[Mapping[str, Any]] = []
        heard: dict[str, Any] = {
            "on_out": self.out.extend, "on_err": self.err.extend, "on_data": self.data.extend,
            "on_event": self.events.append,
        }  # fmt: skip
        self.call: Call = client.open(op, fields, body=body, **{**heard, **more})
        self.end: Mapping[str, Any] = {}

    async def ended(self) -> Spoken:
        """Wait for its END."""
        self.end = await asyncio.wait_for(self.call.done, SECONDS)
        return self

    @property
    def status(self) -> str:
        """How it ended."""
        return str(self.end["status"])

    @property
    def error(self) -> Mapping[str, str]:
        """The error it ended with."""
        assert self.end["error"] is not None, self.end
        return self.end["error"]  # type: ignore[no-any-return]

    @property
    def value(self) -> str:
        """The text of its result."""
        (event,) = self.events
        return str(event["data"]["text/plain"])


def drive(home: Path, scenario: Callable[[Box], Awaitable[T]], **setup: Any) -> T:
    """Run `scenario` against an agent of its own."""

    async def main(process: subprocess.Popen[bytes], ours: socket.socket) -> T:
        client = Client(SocketStream(ours))
        client.configure({"KOOI": "yes"}, str(home))
        try:
            return await asyncio.wait_for(scenario(Box(client, process, home)), 3 * SECONDS)
        finally:
            client.close()

    with agent(home, **setup) as (process, ours):
        return asyncio.run(main(process, ours))


class Raw:
    """The host's end of a stream, frame by frame. Blocking."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(SECONDS)
        self._end = end
        self._parser = frames.Parser(frames.FROM_GUEST, memoryview(bytearray(frames.SCRATCH_BYTES)))
        self._arrived: list[Frame] = []

    def send(self, *parts: bytes) -> None:
        """Send bytes."""
        self._end.sendall(b"".join(parts))

    def open(self, channel: int, op: str, **fields: Any) -> None:
        """Send an OPEN."""
        self.send(opening(channel, op, **fields))

    def receive(self) -> Frame:
        """Return the next frame; raise `EOFError` at the end of the stream."""
        while not self._arrived:
            try:
                data = self._end.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError
            self._arrived += [(kind, channel, bytes(view)) for kind, channel, view in self._parser.feed(data)]
        return self._arrived.pop(0)

    def until_end(self, channel: int) -> list[Frame]:
        """Return the frames up to the END of `channel`."""
        found = [self.receive()]
        while found[-1][:2] != (frames.END, channel):
            found.append(self.receive())
        return found

    def until_end_or_credit(self, channel: int) -> Frame:
        """Return the first CREDIT or END of `channel`."""
        while True:
            found = self.receive()
            if found[0] in (frames.CREDIT, frames.END) and found[1] == channel:
                return found

    def is_over(self) -> bool:
        """Return whether the stream ends, whatever still comes."""
        try:
            while True:
                self.receive()
        except EOFError:
            return True
        except TimeoutError:
            return False


def opening(channel: int, op: str, **fields: Any) -> bytes:
    """Return an OPEN frame."""
    return frames.json_frame(frames.OPEN, channel, {"op": op, **fields})


def running(channel: int, code: bytes, context: str = "", stdin: bool = False) -> bytes:
    """Return the frames of a run."""
    head = opening(channel, "run", context=context, code_bytes=len(code), stdin=stdin, limits={})
    return head + (frames.frame(frames.DATA, channel, code) if code else b"")


def alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


async def gone(pid: int) -> bool:
    """Wait until a process is gone, for a moment."""
    for _ in range(200):
        if not alive(pid):
            return True
        await asyncio.sleep(0.02)
    return False


async def until(true: Callable[[], bool]) -> None:
    """Wait until something holds, however busy the machine is; fail when it never does."""
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def end_process(pid: int) -> None:
    """Kill a process that a test left on purpose."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
