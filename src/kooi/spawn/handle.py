"""The host's side of the spawner: starts it, asks it for cells and boxes, and is a `Box` for each (asyncio)."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kooi.contract.backend import BoxEvent, Posture, Snapshot
from kooi.contract.errors import SetupFailed, Unsupported
from kooi.contract.result import Usage
from kooi.images.host import GUEST_ROOT
from kooi.linux import process
from kooi.spawn import messages
from kooi.spawn.plan import BoxPlan, CellPlan

SOURCE = str(Path(__file__).resolve().parent.parent.parent)
_CELL_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/home/user",
    # A zygote must have one thread, and a pool of threads does not live through a fork.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}


class SocketStream:
    """A stream over one socket: read and write side are the same descriptor."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self.read_fd = self.write_fd = connection.fileno()

    def close(self) -> None:
        """Close it; safe twice."""
        self._socket.close()


class SpawnedBox:
    """A box that the spawner made."""

    def __init__(self, handle: SpawnerHandle, number: int, stream: SocketStream) -> None:
        self.stream = stream
        self.number = number
        self.pid = 0
        self._handle = handle
        self._events: asyncio.Queue[BoxEvent] = asyncio.Queue()
        self._over: asyncio.Future[BoxEvent] = handle.loop.create_future()
        self._paths: Mapping[str, str] | None = None

    def told(self, head: Mapping[str, Any]) -> None:
        """Take in one event of the spawner."""
        if "opened" in head:
            self.pid, self._paths = head["opened"], head["paths"]
        elif "failed" in head:
            self._events.put_nowait(BoxEvent("failed", detail=head["failed"]))
            if not self._over.done() and self.pid == 0:
                self._finish(BoxEvent("failed", detail=head["failed"]))
        elif "exited" in head:
            self._finish(_exited(head["exited"]))

    def _finish(self, event: BoxEvent) -> None:
        if not self._over.done():
            self._over.set_result(event)
            self._events.put_nowait(event)
            self._handle.boxes.pop(self.number, None)

    async def kill(self) -> None:
        """Kill it and wait until it is gone; safe twice."""
        if not self._over.done():
            self._handle.send({"op": "kill", "box": self.number})
            await asyncio.shield(self._over)
        self.stream.close()

    async def usage(self) -> Usage:
        """Return what it used so far."""
        if self._over.done():
            return self._over.result().usage or Usage()
        return Usage()

    async def events(self) -> AsyncIterator[BoxEvent]:
        """Yield what happens to it, up to `exited` or `failed`."""
        while True:
            event = await self._events.get()
            yield event
            if event.kind in ("exited", "failed"):
                return

    async def freeze(self) -> None:
        """Stop it from using CPU."""
        self._handle.send({"op": "freeze", "box": self.number})

    async def thaw(self) -> None:
        """Undo `freeze`."""
        self._handle.send({"op": "thaw", "box": self.number})

    async def snapshot(self) -> Snapshot:
        """Refuse: a forked box cannot be stored."""
        raise Unsupported("a box of this level cannot be stored", fix="use the level microvm")

    async def posture(self) -> Posture:
        """Read it from outside."""
        raise NotImplementedError


def _exited(final: Mapping[str, Any]) -> BoxEvent:
    counters = final.get("counters")
    if not counters:
        return BoxEvent("exited", usage=Usage())
    usage = Usage(
        cpu_seconds=counters[0] / 1e9, memory_peak_bytes=counters[1], processes_peak=counters[4], processes_now=0
    )
    return BoxEvent("exited", count=final.get("oom", 0), usage=usage)


class SpawnerHandle:
    """One spawner process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: Mapping[str, Any]) -> None:
        self.loop = loop
        self.boxes: dict[int, SpawnedBox] = {}
        self._config = config
        self._cells: dict[str, asyncio.Future[None]] = {}
        self._numbers = 0
        self._started: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        owner = process.open_pidfd(os.getpid())
        fds = (theirs.fileno(), owner)
        boot = (
            f"import sys; sys.path.insert(0, {SOURCE!r}); "
            f"from kooi.spawn.spawner import main; main({fds[0]}, {fds[1]})"
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", boot], pass_fds=fds, stdin=subprocess.DEVNULL, env={}
            )
        finally:
            theirs.close()
            os.close(owner)
        self._outbox = messages.Outbox(self._socket, self._want_write)
        loop.add_reader(self._socket.fileno(), self._readable)
        self.send({"op": "start", **config})

    async def started(self) -> Mapping[str, Any]:
        """Return what the spawner found on this host."""
        return await asyncio.shield(self._started)

    def send(self, head: Mapping[str, Any], body: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """Send one packet to the spawner, or queue it (with copies of `fds`) while the socket is full."""
        self._outbox.send(head, body, fds)

    async def cell(self, plan: CellPlan) -> str:
        """Return the key of a running cell for `plan`, starting one if there is none. Raises `SetupFailed`."""
        key = plan.key
        future = self._cells.get(key)
        if future is None:
            future = self._cells[key] = self.loop.create_future()
            self.send({"op": "cell", "cell": key}, _cell_message(plan))
        await asyncio.shield(future)
        return key

    def open(self, key: str, plan: BoxPlan, encoded: bytes) -> SpawnedBox:
        """Ask for a box in cell `key`; what is written to its stream meanwhile waits there."""
        ours, theirs = socket.socketpair()
        self._numbers += 1
        box = SpawnedBox(self, self._numbers, SocketStream(ours))
        self.boxes[box.number] = box
        head = {
            "op": "open",
            "box": box.number,
            "cell": key,
            "memory": plan.memory_bytes,
            "processes": plan.processes,
            "watch": plan.watch_memory,
        }
        try:
            self.send(head, encoded, (theirs.fileno(),))
        finally:
            theirs.close()
        return box

    def _want_write(self, wanted: bool) -> None:
        if wanted:
            self.loop.add_writer(self._socket.fileno(), self._outbox.flush)
        else:
            self.loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        while True:
            try:
                head, _body, _fds = messages.receive(self._socket)
            except BlockingIOError:
                return
            if head is None:
                self._lost()
                return
            self._told(head)

    def _told(self, head: Mapping[str, Any]) -> None:
        if "box" in head:
            box = self.boxes.get(head["box"])
            if box is not None:
                box.told(head)
        elif "cell" in head:
            future = self._cells.get(head["cell"])
            if "failed" in head:
                self._cells.pop(head["cell"], None)
            if future is not None and not future.done():
                if "failed" in head:
                    future.set_exception(SetupFailed(f"the cell could not be built: {head['failed']}"))
                else:
                    future.set_result(None)
        elif "started" in head:
            self._started.set_result(head["started"])

    def _lost(self) -> None:
        self.loop.remove_reader(self._socket.fileno())
        for box in list(self.boxes.values()):
            box.told({"failed": "the spawner ended"})

    async def close(self) -> None:
        """End the spawner, and with it every box."""
        self.loop.remove_reader(self._socket.fileno())
        self._socket.close()
        while self._process.poll() is None:
            await asyncio.sleep(0.002)


def _cell_message(plan: CellPlan) -> bytes:
    import json

    view = plan.view
    binds = list(view.binds) + [(SOURCE + "/kooi", GUEST_ROOT + "/kooi")]
    binds += [(source, "/data/" + name) for name, source in plan.datasets]
    zygote = {
        "python": view.python,
        "sys_path": view.sys_path,
        "warm": view.warm,
        "restrictions": plan.restrictions,
        "namespaces": plan.namespaces,
        "ids": plan.ids,
        "prepare": plan.prepare,
    }
    build = {
        "ids": plan.ids,
        "id_base": 0,
        "id_count": 1,
        "binds": binds,
        "links": view.links,
        "texts": view.texts,
        "python": view.python,
        "guest_root": GUEST_ROOT,
        "env": list((_CELL_ENV | dict(plan.env)).items()),
    }
    message = {
        "isolated": plan.isolated,
        "ids": plan.ids,
        "source": SOURCE,
        "env": list((_CELL_ENV | dict(plan.env)).items()),
        "build": build,
        "zygote": zygote,
    }
    return json.dumps(message).encode()
