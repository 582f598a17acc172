"""The host's side of the spawner: starts it, asks it for cells and boxes, and is a `Box` for each (asyncio)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from kooi.contract.backend import BoxEvent, Posture, Snapshot, Stream
from kooi.contract.errors import SetupFailed, Unsupported
from kooi.contract.result import Usage
from kooi.linux import cgroup, process
from kooi.spawn import messages
from kooi.spawn.plan import BoxPlan, CellPlan
from kooi.spawn.posture import posture_of
from kooi.spawn.stream import SocketStream

SOURCE = str(Path(__file__).resolve().parent.parent.parent)
_REAP_SECONDS = 0.02


class SpawnedBox:
    """A box that the spawner made."""

    def __init__(self, handle: SpawnerHandle, number: int, stream: SocketStream, home: str) -> None:
        self.stream: Stream = stream
        self.home = home
        self.number = number
        self.pid = 0
        self._handle = handle
        self._events: asyncio.Queue[BoxEvent] = asyncio.Queue()
        self._over: asyncio.Future[BoxEvent] = handle.loop.create_future()
        self._opened: asyncio.Future[None] = handle.loop.create_future()
        self._group: cgroup.Group | None = None
        self._base: list[int] = []
        self._oom = self._pids = 0
        self._usage_asked: list[asyncio.Future[Usage]] = []

    def told(self, head: Mapping[str, Any]) -> None:
        """Take in one event of the spawner."""
        if "opened" in head:
            self.pid = head["opened"]
            if head["slot"] is not None and self._handle.reader is not None:
                self._group = self._handle.reader.group(head["slot"]["name"])
                self._group.peak_base = head["slot"]["peak_base"]
                self._base = head["slot"]["base"]
            _settle(self._opened)
        elif "failed" in head:
            self._finish(BoxEvent("failed", detail=head["failed"]))
        elif "oom" in head:
            self._note_counts(head["oom"], self._pids)
        elif "struck" in head:
            self._events.put_nowait(BoxEvent("struck", detail=head["struck"]))
        elif "usage" in head:
            self._answer_usage(head["usage"])
        elif "exited" in head:
            final = head["exited"]
            self._note_counts(final.get("oom", 0), final.get("pids", 0))
            self._finish(BoxEvent("exited", usage=_final_usage(final)))

    def _answer_usage(self, values: Mapping[str, Any]) -> None:
        asked, self._usage_asked = self._usage_asked, []
        for future in asked:
            if not future.done():
                future.set_result(_final_usage(values))

    def _note_counts(self, oom: int, pids: int) -> None:
        if oom > self._oom:
            self._events.put_nowait(BoxEvent("oom", count=oom))
        if pids > self._pids:
            self._events.put_nowait(BoxEvent("pids_limit", count=pids))
        self._oom, self._pids = max(oom, self._oom), max(pids, self._pids)

    def _finish(self, event: BoxEvent) -> None:
        if self._over.done():
            return
        self._handle.boxes.pop(self.number, None)
        if self._group is not None:
            self._group.close()
            self._group = None
        self._over.set_result(event)
        _settle(self._opened)
        self._answer_usage({})
        self._events.put_nowait(event)

    async def kill(self) -> None:
        """Kill it and wait until it is gone; safe twice."""
        if not self._over.done():
            self._handle.send({"op": "kill", "box": self.number})
            await asyncio.shield(self._over)

    async def usage(self) -> Usage:
        """Return what it used so far."""
        if not self._opened.done():
            await asyncio.shield(self._opened)
        if self._over.done():
            return self._over.result().usage or Usage()
        if self._group is None:
            return await self._ask_usage()
        try:
            return self._read_usage(self._group)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            # Its group went away between two events; the last word is on its way.
            await asyncio.shield(self._over)
            return self._over.result().usage or Usage()

    async def cpu_seconds(self) -> float | None:
        """Return the CPU time used so far; notes what limits were met, as `usage` does, with less to read."""
        group = self._group
        if group is None:
            return (await self.usage()).cpu_seconds
        try:
            # Code may run while no run is on, of a signal handler for one, and what it meets then is no run's.
            self._look(group)
            return (group.cpu_ns() - self._base[0]) / 1e9
        except OSError:
            return (await self.usage()).cpu_seconds

    @property
    def has_news(self) -> bool:
        """Whether there are events that nobody has taken yet."""
        return not self._events.empty()

    def _look(self, group: cgroup.Group) -> None:
        oom, pids = group.oom_kills() - self._base[2], group.pids_hits() - self._base[3]
        if oom > self._oom or pids > self._pids:
            self._note_counts(oom, pids)

    def _read_usage(self, group: cgroup.Group) -> Usage:
        counters = group.usage()
        cpu_ns, pids_peak, _oom, _pids = self._base
        self._look(group)
        return Usage(
            cpu_seconds=(counters.cpu_ns - cpu_ns) / 1e9,
            memory_peak_bytes=counters.memory_peak,
            processes_peak=counters.pids_peak if (counters.pids_peak or 0) > pids_peak else None,
            processes_now=counters.pids_now,
        )

    async def _ask_usage(self) -> Usage:
        future: asyncio.Future[Usage] = self._handle.loop.create_future()
        self._usage_asked.append(future)
        self._handle.send({"op": "usage", "box": self.number})
        return await future

    async def events(self) -> AsyncIterator[BoxEvent]:
        """Yield what happens to it, up to `exited` or `failed`."""
        while True:
            event = await self._events.get()
            yield event
            if event.kind in ("exited", "failed"):
                return

    async def freeze(self) -> None:
        """Stop it from using CPU. Raises `Unsupported` where it has no control group."""
        await self._set_frozen("freeze")

    async def thaw(self) -> None:
        """Undo `freeze`."""
        await self._set_frozen("thaw")

    async def _set_frozen(self, operation: str) -> None:
        await asyncio.shield(self._opened)
        if self._over.done():
            return
        if self._group is None:
            raise Unsupported("a box without a control group cannot be frozen", fix="see `kooi doctor`: cgroup")
        self._handle.send({"op": operation, "box": self.number})

    async def snapshot(self) -> Snapshot:
        """Refuse: a forked box cannot be stored."""
        raise Unsupported("a box of this level cannot be stored", fix="use the level microvm")

    async def posture(self) -> Posture:
        """Read its processes and mounts from outside, once it is confined. Raises `SetupFailed` when it is gone."""
        await asyncio.shield(self._opened)
        if self._over.done():
            raise SetupFailed("the box cannot be read: it is gone")
        return await asyncio.to_thread(posture_of, self.pid)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _final_usage(final: Mapping[str, Any]) -> Usage:
    if not final:
        return Usage()
    return Usage(
        cpu_seconds=final["cpu_ns"] / 1e9,
        memory_peak_bytes=final["memory_peak"],
        processes_peak=final["pids_peak"],
        processes_now=final.get("pids_now", 0),
    )


class SpawnerHandle:
    """One spawner process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, config: Mapping[str, Any]) -> None:
        self.loop = loop
        self.boxes: dict[int, SpawnedBox] = {}
        self._cells: dict[str, asyncio.Future[None]] = {}
        self._numbers = 0
        self.alive = True
        self._crash = ""
        self.reader: cgroup.Reader | None = None
        self._started: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        owner = process.open_pidfd(os.getpid())
        fds = (theirs.fileno(), owner)
        boot = (
            f"import sys; sys.path.insert(0, {SOURCE!r}); from kooi.spawn.spawner import main; main({fds[0]}, {fds[1]})"
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", boot],
                pass_fds=fds,
                env={},
                # Not ours: whoever reads the caller's output to its end must not wait for the spawner's.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
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
        # A spawner that is gone is noticed where it is listened to, and there everyone is told.
        with contextlib.suppress(ConnectionError):
            self._outbox.send(head, body, fds)

    async def cell(self, key: str, plan: CellPlan) -> None:
        """Return when the cell `key`, built as `plan` says, is running; start it if need be. Raises `SetupFailed`."""
        future = self._cells.get(key)
        if future is None:
            future = self._cells[key] = self.loop.create_future()
            try:
                self.send({"op": "cell", "cell": key}, plan.encode(SOURCE))
            except OSError as error:
                del self._cells[key]
                raise SetupFailed(f"the spawner could not be asked for a cell: {error}") from error
        if not future.done():
            await asyncio.shield(future)
        future.result()

    def open(self, key: str, plan: BoxPlan, encoded: bytes) -> SpawnedBox:
        """Ask for a box in cell `key`; what is written to its stream meanwhile waits there. Raises `SetupFailed`."""
        if not self.alive:
            raise SetupFailed("the spawner ended")
        ours, theirs = socket.socketpair()
        self._numbers += 1
        box = SpawnedBox(self, self._numbers, SocketStream(ours), plan.home)
        self.boxes[box.number] = box
        head = {"op": "open", "box": box.number, "cell": key, **plan.bounds()}
        try:
            self.send(head, encoded, (theirs.fileno(),))
        except OSError as error:
            del self.boxes[box.number]
            ours.close()
            raise SetupFailed(f"the spawner could not be asked for a box: {error}") from error
        finally:
            theirs.close()
        return box

    def _want_write(self, wanted: bool) -> None:
        if wanted:
            self.loop.add_writer(self._socket.fileno(), self._writable)
        else:
            self.loop.remove_writer(self._socket.fileno())

    def _writable(self) -> None:
        try:
            self._outbox.flush()
        except ConnectionError:
            self._want_write(False)

    def _readable(self) -> None:
        """Take one packet; the loop calls again for the next."""
        try:
            head, _body, _fds = messages.receive(self._socket)
        except BlockingIOError:
            return
        except ConnectionError:
            head = None
        if head is None:
            self._lost()
        else:
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
        elif "crashed" in head:
            self._crash = head["crashed"]
        elif "started" in head:
            started = head["started"]
            if started["cgroups"]:
                self.reader = cgroup.Reader(started["kind"], started["paths"], started["features"])
            self._started.set_result(started)

    def _lost(self) -> None:
        reason = f"the spawner ended: {self._crash.strip() or 'no reason given'}"
        self.alive = False
        if not self._started.done():
            self._started.set_exception(SetupFailed(reason))
        for future in self._cells.values():
            if not future.done():
                future.set_exception(SetupFailed(reason))
        for box in list(self.boxes.values()):
            box.told({"failed": reason})
        self._leave_loop()

    def abandon(self) -> None:
        """Let the spawner go without its loop, which is another thread's or closed: it kills everything as we close."""
        self.alive = False
        if self.loop.is_closed():
            self._let_go()
            self._process.wait()
        else:
            self.loop.call_soon_threadsafe(self._leave_loop)

    def _reap(self) -> None:
        if self._process.poll() is None:
            self.loop.call_later(_REAP_SECONDS, self._reap)

    def _leave_loop(self) -> None:
        self._hang_up()
        self._let_go()
        self._reap()

    def _hang_up(self) -> None:
        """Close our socket, in the loop's thread; safe twice."""
        if self._socket.fileno() >= 0:
            self.loop.remove_reader(self._socket.fileno())
            self.loop.remove_writer(self._socket.fileno())
            self._socket.close()
        self._outbox.clear()

    def _let_go(self) -> None:
        self._outbox.clear()
        self._socket.close()
        for box in list(self.boxes.values()):
            box.stream.close()
        if self.reader is not None:
            self.reader.close()

    async def close(self) -> None:
        """End the spawner, and with it every box; return when all is gone."""
        self.alive = False
        self._hang_up()
        while self._process.poll() is None:
            await asyncio.sleep(0.002)
        for box in list(self.boxes.values()):
            box.told({"exited": {}})
        if self.reader is not None:
            self.reader.close()
