"""A container of an engine: its stream is the attached standard input and output, and all else is seen from outside.

Theory of operation. `open` returns at once; a task creates the container, attaches to it, starts it, and then carries
bytes between the attached connection, on which the engine puts a head before each piece of output, and the socket pair
that the stream is. The container removes itself when it has ended, and it ends when our connection does, for the
agent's input is its life line. Counters come from its control group on this host, the end and `oom` from the engine's
events. It is killed by a pidfd of its first process where that is known, else by the engine; no grace is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Protocol

from kooi.contract.backend import BoxEvent, Posture, Snapshot, Stream
from kooi.contract.errors import KooiError, SetupFailed, Unsupported
from kooi.contract.result import Usage
from kooi.images.host import HOME
from kooi.linux import cgroup, process
from kooi.linux.cgroup_files import names
from kooi.linux.cgroup_layout import hierarchies
from kooi.spawn.posture import posture_of
from kooi.spawn.stream import SocketStream

_HEAD = 8
_WORDS_BYTES = 2000
_CHUNK = 256 * 1024
DEATH_SECONDS = 10.0
LOOK_SECONDS = 0.05
Free = Callable[[], None]


class Calls(Protocol):
    """What a box uses of its engine."""

    name: str

    async def create(self) -> str:
        """Create the container and return its id."""

    async def attach(self, ident: str) -> tuple[socket.socket, bytes]:
        """Return the connection to its input and output, and what has arrived."""

    async def start(self, ident: str) -> int:
        """Start it and return the pid of its first process on this host, 0 where that cannot be known."""

    async def kill(self, ident: str) -> None:
        """Kill and remove it; one that is gone is fine."""

    async def gone(self, ident: str) -> bool:
        """Return whether the engine does not know it any more."""

    async def pause(self, ident: str, on: bool) -> None:
        """Stop it from using CPU, or let it go on."""

    async def killed_for_memory(self, ident: str) -> bool:
        """Return whether the engine has seen it run out of memory."""


class EngineBox:
    """One container of an engine."""

    home = HOME

    def __init__(self, calls: Calls, program: bytes, free: Free) -> None:
        ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self.stream: Stream = SocketStream(ours)
        self.pid = 0
        self._calls = calls
        self._free = free
        self._owner = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._ident = ""
        self._pidfd = -1
        self._group: cgroup.Group | None = None
        self._reader: cgroup.Reader | None = None
        self._events: asyncio.Queue[BoxEvent] = asyncio.Queue()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[BoxEvent] = self._loop.create_future()
        self._last = Usage()
        self._cpu_base = 0
        self._oom = self._pids = 0
        self._words = b""
        self._killing: asyncio.Task[None] | None = None
        self._life: asyncio.Task[None] = self._loop.create_task(self._live(program))

    async def kill(self) -> None:
        """Kill it and wait until it is gone; safe twice. In a forked child of the host it does nothing."""
        if self._owner != os.getpid() or self._over.done():
            return
        if self._killing is None or self._killing.done():
            self._killing = self._loop.create_task(self._end())
        await asyncio.shield(self._killing)

    async def usage(self) -> Usage:
        """Return what it used so far."""
        if not self._opened.done():
            await asyncio.shield(self._opened)
        self._look()
        return self._last

    async def events(self) -> AsyncIterator[BoxEvent]:
        """Yield what happens to it, up to `exited` or `failed`."""
        while True:
            event = await self._events.get()
            yield event
            if event.kind in ("exited", "failed"):
                return

    @property
    def has_news(self) -> bool:
        """Whether there are events that nobody has taken yet."""
        return not self._events.empty()

    async def freeze(self) -> None:
        """Stop it from using CPU."""
        await self._set_frozen(True)

    async def thaw(self) -> None:
        """Undo `freeze`."""
        await self._set_frozen(False)

    async def snapshot(self) -> Snapshot:
        """Refuse: a container's memory cannot be stored."""
        raise Unsupported("a box of this level cannot be stored", fix="use the level microvm")

    async def posture(self) -> Posture:
        """Read its processes and mounts from outside. Raises `SetupFailed` when it is gone."""
        await asyncio.shield(self._opened)
        if self._over.done():
            raise SetupFailed("the box cannot be read: it is gone")
        if not self.pid:
            raise Unsupported(
                f"{self._calls.name} runs elsewhere: its processes cannot be read", fix="use runc or crun"
            )
        return await asyncio.to_thread(posture_of, self.pid)

    # Its life.

    async def _live(self, program: bytes) -> None:
        try:
            self._ident = await self._calls.create()
            connection, rest = await self._calls.attach(self._ident)
            with connection:
                self._began(await self._calls.start(self._ident))
                await self._carry(connection, program, rest)
            await self._until_gone()
        except (KooiError, OSError, ValueError) as error:
            said = error.message if isinstance(error, KooiError) else f"{type(error).__name__}: {error}"
            await self._remove()
            self._finish(BoxEvent("failed", detail=f"{self._calls.name}: {said}"))
            return
        said = b" ".join(self._words.split()).decode("utf-8", "replace")
        self._finish(BoxEvent("failed", detail=said) if said else BoxEvent("exited", usage=self._final()))

    def _began(self, pid: int) -> None:
        self.pid = pid
        if pid:
            with contextlib.suppress(OSError):
                self._pidfd = process.open_pidfd(pid)
            self._reader, self._group = _group_of(pid)
            if self._group is not None:
                self._cpu_base = self._group.cpu_ns()
        if not self._opened.done():
            self._opened.set_result(None)

    async def _carry(self, connection: socket.socket, program: bytes, rest: bytes) -> None:
        """Carry bytes both ways until the container closes its output."""
        up = self._loop.create_task(self._carry_in(connection, program))
        try:
            await self._carry_out(connection, rest)
        finally:
            up.cancel()
            await asyncio.wait([up])
            if not up.cancelled():
                up.exception()

    async def _carry_in(self, connection: socket.socket, program: bytes) -> None:
        await self._loop.sock_sendall(connection, program)
        while data := await self._loop.sock_recv(self._theirs, _CHUNK):
            await self._loop.sock_sendall(connection, data)
        connection.shutdown(socket.SHUT_WR)

    async def _carry_out(self, connection: socket.socket, rest: bytes) -> None:
        """Take the heads off the output: a byte that says which stream, three of nothing, a length."""
        buffer = bytearray(rest)
        left, which = 0, 0
        while True:
            while buffer:
                if left == 0:
                    if len(buffer) < _HEAD:
                        break
                    which, left = buffer[0], int.from_bytes(buffer[4:_HEAD], "big")
                    del buffer[:_HEAD]
                    continue
                part = bytes(buffer[:left])
                del buffer[: len(part)]
                left -= len(part)
                if which == 1:
                    await self._loop.sock_sendall(self._theirs, part)
                else:
                    self._words = (self._words + part)[-_WORDS_BYTES:]
            try:
                data = await self._loop.sock_recv(connection, _CHUNK)
            except ConnectionError:
                return
            if not data:
                return
            buffer += data

    async def _until_gone(self) -> None:
        """Wait until it is dead and removed; if it is not soon, it is killed."""
        end = self._loop.time() + DEATH_SECONDS
        while self._pidfd >= 0 and not await asyncio.to_thread(process.wait_pidfd, self._pidfd, LOOK_SECONDS):
            self._look()
            if self._loop.time() > end:
                await self._calls.kill(self._ident)
                end += DEATH_SECONDS
        if await self._calls.killed_for_memory(self._ident):
            self._note(max(self._oom, 1), self._pids)
        await self._remove()

    async def _remove(self) -> None:
        """Have the engine remove it, and verify that it has: nothing of it is left when this returns."""
        if not self._ident:
            return
        end = self._loop.time() + DEATH_SECONDS
        with contextlib.suppress(OSError):
            while not await self._calls.gone(self._ident):
                with contextlib.suppress(KooiError):
                    await self._calls.kill(self._ident)
                if self._loop.time() > end:
                    raise SetupFailed(f"{self._calls.name} does not remove the container {self._ident[:12]}")

    async def _end(self) -> None:
        self._look()
        if self._pidfd >= 0:
            process.signal_pidfd(self._pidfd, signal.SIGKILL)
        elif self._ident:
            with contextlib.suppress(KooiError, OSError):
                await self._calls.kill(self._ident)
        else:
            # Nobody is asked to take back what is being made: it is made, and then removed.
            self._theirs.close()
        await asyncio.wait([self._over])

    def _finish(self, event: BoxEvent) -> None:
        if self._over.done():
            return
        self._theirs.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if self._group is not None and self._reader is not None:
            self._group.close()
            self._reader.close()
            self._group = None
        self._free()
        self._over.set_result(event)
        if not self._opened.done():
            self._opened.set_result(None)
        self._events.put_nowait(event)

    async def _set_frozen(self, on: bool) -> None:
        await asyncio.shield(self._opened)
        if not self._over.done():
            await self._calls.pause(self._ident, on)

    # What is seen of it.

    def _look(self) -> None:
        """Read its counters while they are there."""
        if self._group is None:
            return
        try:
            counters = self._group.usage()
            self._note(self._group.oom_kills(), self._group.pids_hits())
        except (OSError, KooiError):
            return
        self._last = Usage(
            cpu_seconds=(counters.cpu_ns - self._cpu_base) / 1e9,
            memory_peak_bytes=counters.memory_peak,
            processes_peak=counters.pids_peak,
            processes_now=counters.pids_now,
        )

    def _final(self) -> Usage:
        self._last = replace(self._last, processes_now=0)
        return self._last

    def _note(self, oom: int, pids: int) -> None:
        if oom > self._oom:
            self._events.put_nowait(BoxEvent("oom", count=oom))
        if pids > self._pids:
            self._events.put_nowait(BoxEvent("pids_limit", count=pids))
        self._oom, self._pids = max(oom, self._oom), max(pids, self._pids)


def _group_of(pid: int) -> tuple[cgroup.Reader | None, cgroup.Group | None]:
    """Return the control group that a process is in, to read; none where it cannot be seen from here."""
    try:
        found = hierarchies(of=f"/proc/{pid}")
        own = {controller: one.own for one in found for controller in one.controllers or ("unified",)}
        name = os.path.basename(own.get("memory", own.get("unified", "")))
        # A mixture of versions may have it in the root of the unified tree, which is no group of its own.
        own = {key: path for key, path in own.items() if os.path.basename(path) == name}
        if not name or ("memory" in own) != ("pids" in own):
            return None, None
        features = frozenset[str]().union(*(names(path) for path in own.values()))
        parents = {key: os.path.dirname(path) for key, path in own.items()}
        reader = cgroup.Reader("v1" if "memory" in own else "v2", parents, features)
        return reader, reader.group(name)
    except (OSError, KooiError):
        return None, None
