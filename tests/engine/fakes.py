"""A level for tests: its guest is a thread that speaks the protocol and does what the "code" tells it line by line.

out TEXT, err TEXT, item TEXT, echo; ok, exit N, signal N, error NAME VALUE, left N; burn SECONDS (of CPU, as the host
sees); oom, pids (counters move); flood BYTES; hang (until killed); deaf (not even then); die; break (a frame of an
unknown kind).
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

from kooi.contract.backend import Availability, BoxEvent, HostFacts, Posture, Snapshot
from kooi.contract.errors import Unsupported
from kooi.contract.result import Clause, Enforcement, Usage
from kooi.contract.spec import Spec
from kooi.guest import frames


class Gone(Exception):
    pass


class Peer:
    """The guest's end of the stream."""

    def __init__(self, connection: socket.socket, box: FakeBox) -> None:
        self.connection = connection
        self.box = box
        self.credit: dict[int, int] = {}
        self.signals: dict[int, int] = {}
        self.input: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.opened: list[tuple[int, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}

    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        try:
            self.connection.sendall(struct.pack(">IBI", len(payload), kind, channel) + payload)
        except OSError:
            raise Gone from None

    def send_json(self, kind: int, channel: int, value: object) -> None:
        self.send(kind, channel, json.dumps(value).encode())

    def take(self) -> None:
        """Take in one frame."""
        size, kind, channel = struct.unpack(">IBI", self._exactly(9))
        payload = self._exactly(size)
        if kind == frames.CONFIG:
            self.box.config = json.loads(payload)
        elif kind == frames.OPEN:
            self.opened.append((channel, json.loads(payload)))
            self.credit[channel] = frames.WINDOW
            self.input[channel] = b""
        elif kind == frames.DATA:
            self.input[channel] += payload
            self.send(frames.CREDIT, channel, struct.pack(">I", len(payload)))
        elif kind == frames.EOF:
            self.ended.add(channel)
        elif kind == frames.CREDIT:
            self.credit[channel] = self.credit.get(channel, 0) + struct.unpack(">I", payload)[0]
        elif kind == frames.CONTROL:
            self.signals[channel] = json.loads(payload)["signal"]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                part = self.connection.recv(size - len(data))
            except OSError:
                raise Gone from None
            if not part:
                raise Gone
            data += part
        return data

    def output(self, kind: int, channel: int, data: bytes) -> bool:
        """Send output as credit allows; False when the run was killed meanwhile."""
        view = memoryview(data)
        least = len(data) if kind == frames.EVENT else 1
        while view:
            while self.credit[channel] < least and channel not in self.signals:
                self.take()
            if self.credit[channel] < least:
                return False
            part = view[: min(self.credit[channel], 65536)]
            self.credit[channel] -= len(part)
            self.send(kind, channel, bytes(part))
            view = view[len(part) :]
        return True

    def end(self, channel: int, status: str, **more: object) -> None:
        fields = {"status": status, "exit_code": None, "signal": None, "error": None, "left": None, **more}
        self.send_json(frames.END, channel, fields)


def serve(peer: Peer) -> None:
    """The guest's life."""
    try:
        peer.send_json(frames.HELLO, 0, {"protocol": 1, "python": "3.11.0", "pid": 1})
        while True:
            while not peer.opened:
                peer.take()
            channel, fields = peer.opened.pop(0)
            if fields["op"] in ("run", "exec"):
                _run(peer, channel, fields)
            else:
                _file(peer, channel, fields)
    except Gone:
        pass
    finally:
        peer.connection.close()
        peer.box.guest_ended()


def _run(peer: Peer, channel: int, fields: dict[str, Any]) -> None:
    size = fields.get("code_bytes", 0)
    while len(peer.input[channel]) < size or (fields["stdin"] and channel not in peer.ended):
        peer.take()
    code, stdin = peer.input[channel][:size], peer.input[channel][size:]
    text = code.decode() if fields["op"] == "run" else fields.get("shell") or " ".join(fields["argv"])
    left = None
    for line in text.split("\n"):
        verb, _, rest = line.partition(" ")
        if verb in ("out", "err", "echo"):
            data = stdin if verb == "echo" else rest.encode()
            peer.output(frames.ERR if verb == "err" else frames.OUT, channel, data)
        elif verb == "item":
            peer.send_json(frames.EVENT, channel, {"type": "result", "data": {"text/plain": rest}})
        elif verb == "left":
            left = int(rest)
        elif verb == "burn":
            peer.box.cpu += float(rest)
        elif verb in ("oom", "pids"):
            peer.box.count(verb)
        elif verb == "flood":
            peer.output(frames.OUT, channel, b"x" * int(rest))
            if channel in peer.signals:
                return peer.end(channel, "signal", signal=9, left=left)
        elif verb == "hang":
            while channel not in peer.signals:
                peer.take()
            return peer.end(channel, "signal", signal=peer.signals[channel], left=left)
        elif verb == "deaf":
            while True:
                peer.take()
        elif verb == "die":
            raise Gone
        elif verb == "break":
            peer.send(77, channel)
        elif verb == "exit":
            return peer.end(channel, "exit", exit_code=int(rest), left=left)
        elif verb == "signal":
            return peer.end(channel, "signal", signal=int(rest), left=left)
        elif verb == "error":
            name, _, value = rest.partition(" ")
            error = {"name": name, "value": value, "traceback": f"Traceback: {name}"}
            return peer.end(channel, "error", error=error, left=left)
        elif verb == "ok":
            break
    peer.end(channel, "ok", left=left)


def _file(peer: Peer, channel: int, fields: dict[str, Any]) -> None:
    op, path = fields["op"], fields["path"]
    entry = {"name": path, "path": path, "type": "file", "size": 1, "mode": 0o644, "mtime": 1.5, "target": None}
    if path == "silent":
        while True:
            peer.take()
    if op == "file.write":
        while channel not in peer.ended:
            peer.take()
        peer.files[path] = (peer.files.get(path, b"") if fields["append"] else b"") + peer.input[channel]
        peer.send_json(frames.END, channel, {"size": len(peer.input[channel])})
    elif op == "file.list":
        pages = 1_000_000 if path == "endless" else 1
        for _ in range(pages):
            if channel in peer.signals or not peer.output(
                frames.EVENT, channel, json.dumps({"type": "entries", "entries": [entry] * 100}).encode()
            ):
                break
        peer.send_json(frames.END, channel, {"count": 100})
    elif op == "file.mkdir":
        peer.send_json(frames.END, channel, {})
    elif path not in peer.files:
        peer.send_json(frames.END, channel, {"errno": 2, "message": "No such file or directory"})
    elif op == "file.read":
        if peer.output(frames.DATA, channel, peer.files[path]):
            peer.send(frames.EOF, channel)
        peer.send_json(frames.END, channel, {"size": len(peer.files[path])})
    elif op == "file.stat":
        peer.send_json(frames.END, channel, {"entry": entry})
    else:
        del peer.files[path]
        peer.send_json(frames.END, channel, {})


class Pair:
    """Our end."""

    def __init__(self, ours: socket.socket) -> None:
        ours.setblocking(False)
        self.connection = ours
        self.read_fd = self.write_fd = ours.fileno()

    def close(self) -> None:
        self.connection.close()


class FakeBox:
    """A box that is a thread."""

    def __init__(self, guest: Callable[[Peer], None]) -> None:
        ours, theirs = socket.socketpair()
        self.stream = Pair(ours)
        self.loop = asyncio.get_running_loop()
        self.config: dict[str, Any] = {}
        self.cpu = 0.0
        self.looks = 0
        self.counts = {"oom": 0, "pids": 0}
        self.killed = 0
        self.queue: asyncio.Queue[BoxEvent] = asyncio.Queue()
        self._theirs = theirs
        self._gone = False
        self.thread = threading.Thread(target=guest, args=(Peer(theirs, self),), daemon=True)
        self.thread.start()

    def count(self, what: str) -> None:
        self.counts[what] += 1
        kind = "oom" if what == "oom" else "pids_limit"
        self._say(BoxEvent(kind, self.counts[what]))

    def guest_ended(self) -> None:
        if not self._gone:
            self._gone = True
            self._say(BoxEvent("exited", usage=Usage(cpu_seconds=self.cpu, memory_peak_bytes=1000)))

    def _say(self, event: BoxEvent) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.queue.put_nowait, event)

    async def kill(self) -> None:
        self.killed += 1
        try:
            self._theirs.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        while self.thread.is_alive():
            await asyncio.sleep(0.001)

    async def usage(self) -> Usage:
        self.looks += 1
        return Usage(cpu_seconds=self.cpu, memory_peak_bytes=1000)

    async def events(self) -> AsyncIterator[BoxEvent]:
        while True:
            event = await self.queue.get()
            yield event
            if event.kind in ("exited", "failed"):
                return

    async def freeze(self) -> None:
        raise Unsupported("no")

    async def thaw(self) -> None:
        raise Unsupported("no")

    async def snapshot(self) -> Snapshot:
        raise Unsupported("no")

    async def posture(self) -> Posture:
        return Posture((), (), 0)


class FakeBackend:
    """Opens fake boxes and remembers them."""

    name: ClassVar[str] = "fake"
    capabilities: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, guest: Callable[[Peer], None] = serve, clauses: tuple[Clause, ...] = ()) -> None:
        self.guest = guest
        self.clauses = clauses
        self.boxes: list[FakeBox] = []
        self.closed = 0

    async def probe(self) -> Availability:
        return Availability(True)

    def enforcement(self, spec: Spec, facts: HostFacts) -> Enforcement:
        return Enforcement(self.name, "kernel-shared", self.clauses)

    async def open(self, spec: Spec, snapshot: Snapshot | None = None) -> FakeBox:
        box = FakeBox(self.guest)
        self.boxes.append(box)
        return box

    async def close(self) -> None:
        self.closed += 1
        for box in self.boxes:
            await box.kill()
            box.stream.close()
