"""An open box: its client, what the host has seen happen to it, and its end.

The box's events are read by a task for a sandbox that is kept, and after the kill for one that is used once: there
the oom and pids counters are only wanted when everything is over, and the hot path saves a task.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from kooi.contract.backend import Backend, Box, BoxEvent
from kooi.contract.errors import SandboxClosed, SandboxLost, SetupFailed
from kooi.contract.result import Enforcement, Status, Usage
from kooi.contract.spec import Spec
from kooi.engine import registry
from kooi.engine.alarm import Alarm
from kooi.engine.client import Call, Client
from kooi.engine.enforce import granted, host_facts
from kooi.images.host import HOME

DRAIN_SECONDS = 0.5  # for what a dead box still has in its stream
EVENTS_SECONDS = 2.0
_MEMO = 256


@dataclass(frozen=True, slots=True)
class Prepared:
    """A spec that its level can hold: what opening a box and writing a result need, worked out once."""

    spec: Spec
    digest: str
    backend: Backend
    enforcement: Enforcement
    cpus: int
    file_size: bool


class InFlight(Protocol):
    """A run that has not ended."""

    call: Call

    def doom(self, reason: str) -> None:
        """Note why the host ends it."""
        ...


_prepared: dict[Spec, Prepared] = {}
_open: weakref.WeakSet[OpenBox] = weakref.WeakSet()
_pid = 0


def prepare(spec: Spec) -> Prepared:
    """Find the level's backend and check that it holds every clause of `spec`; remembered per spec.

    Raises `LevelUnavailable` or `PolicyUnenforceable`.
    """
    backend = registry.find(spec.level)
    known = _prepared.get(spec)
    if known is not None and known.backend is backend:
        return known
    facts = host_facts()
    enforcement = granted(backend.enforcement(spec, facts), spec.policy)
    if len(_prepared) >= _MEMO:
        _prepared.clear()
    # Where the disk limit is held by a limit on each file, that is what a program sees of it.
    file_size = any(each.name == "disk_bytes" and each.grade == "per_process" for each in enforcement.clauses)
    made = _prepared[spec] = Prepared(spec, spec.digest(), backend, enforcement, facts.cpus, file_size)
    return made


async def persist(work: Callable[[], Awaitable[object]]) -> None:
    """Do `work` to its end although the caller is cancelled meanwhile, again and again if need be.

    A closing loop cancels the inner task too: it is started anew, so `work` must be safe to repeat.
    """
    task = asyncio.ensure_future(work())
    while True:
        try:
            await asyncio.shield(task)
            return
        except asyncio.CancelledError:
            if task.cancelled():
                task = asyncio.ensure_future(work())


class OpenBox:
    """One box in use."""

    def __init__(self, prepared: Prepared, box: Box, env: Mapping[str, str]) -> None:
        self.prepared = prepared
        self.box = box
        self.client = Client(box.stream)
        self.alarm = Alarm(self.client.loop)
        # A level without an own root says where its home is.
        home: str = getattr(box, "home", HOME)
        self.client.configure({**prepared.spec.policy.env, **env}, home)
        self.inflight: set[InFlight] = set()
        self.started = 0
        self.transfers = 0
        self.oom = 0
        self.pids = 0
        self.struck: Status | None = None
        self.failed: str | None = None
        self.final: Usage | None = None
        self.closed: str | None = None
        self.lost: str | None = None
        self.inherited = False
        self._followed = False
        self._watcher: asyncio.Task[None] | None = None
        self._seen: asyncio.Event | None = None

    def watch(self) -> None:
        """Follow the box's events from now on."""
        self._seen = asyncio.Event()
        self._watcher = asyncio.get_running_loop().create_task(self._follow())

    async def settle(self, seconds: float) -> None:
        """Wait at most `seconds` for the next event of the box."""
        if self._seen is not None and self._watcher is not None and not self._watcher.done():
            self._seen.clear()
            # Where the host keeps counters, a look at them is what brings the event.
            await self.box.usage()
            waiter = asyncio.ensure_future(self._seen.wait())
            await asyncio.wait([waiter], timeout=seconds)
            waiter.cancel()

    async def usage(self) -> Usage:
        """Return what the box used so far; the last word once it is gone."""
        return self.final if self.final is not None else await self.box.usage()

    async def cpu_seconds(self) -> float | None:
        """Return the CPU time used so far; like `usage` it notes what limits were met."""
        look: Callable[[], Awaitable[float | None]] | None = getattr(self.box, "cpu_seconds", None)
        if look is None or self.final is not None:
            return (await self.usage()).cpu_seconds
        return await look()

    @property
    def has_news(self) -> bool:
        """Whether events of the box may be under way to `watch`; a box that cannot tell always may have some."""
        return self._watcher is not None and getattr(self.box, "has_news", True)

    def check(self) -> None:
        """Raise if the box cannot serve a call any more."""
        if self.closed is not None:
            raise SandboxClosed(f"the sandbox was closed: {self.closed}")
        if self.failed is not None:
            raise SetupFailed(f"the sandbox did not start: {self.failed}")
        if self.lost is not None:
            raise SandboxLost(f"the sandbox is gone: {self.lost}", fix="open a new one")

    async def close(self, why: str) -> None:
        """Kill the box by the caller's wish: runs in flight end as `killed`, later calls raise `SandboxClosed`."""
        if self.closed is None:
            self.closed = why
        for run in tuple(self.inflight):
            run.doom("killed")
        await self.end("closed")

    async def end(self, why: str) -> None:
        """Kill the box, learn how it ended and close its stream. Safe twice; done to its end even when cancelled."""
        if self.inherited:
            return
        if self.lost is None:
            self.lost = why
        try:
            await self._end()
        except asyncio.CancelledError:
            await persist(self._end)
            raise

    async def _end(self) -> None:
        await self.box.kill()
        if calls := [run.call.done for run in self.inflight if not run.call.done.done()]:
            await asyncio.wait(calls, timeout=DRAIN_SECONDS)
        self.client.close()
        self.alarm.stop()
        if self._watcher is not None:
            await asyncio.wait([self._watcher], timeout=EVENTS_SECONDS)
        elif not self._followed:
            self._followed = True
            await self._follow()

    async def _follow(self) -> None:
        async for event in self.box.events():
            self._note(event)
        if self.inflight or self.transfers:
            # All in it is dead. What it wrote is read to its end, but no end is waited for that never comes.
            asyncio.get_running_loop().call_later(DRAIN_SECONDS, self.client.close)

    def _note(self, event: BoxEvent) -> None:
        if event.kind == "oom":
            self.oom = max(self.oom, event.count)
        elif event.kind == "pids_limit":
            self.pids = max(self.pids, event.count)
        elif event.kind == "struck":
            self.struck = cast(Status, event.detail)
        elif event.kind == "failed":
            self.failed = event.detail or "no reason given"
        else:
            self.final = event.usage
            if self.lost is None:
                self.lost = self._reason()
        if self._seen is not None:
            self._seen.set()

    def _reason(self) -> str:
        if self.struck is not None:
            return f"it met a limit ({self.struck})"
        return "it ran out of memory" if self.oom else "it ended by itself"


async def open_box(prepared: Prepared, env: Mapping[str, str]) -> OpenBox:
    """Open a box; nothing of it is left if that fails or is cancelled."""
    registry.opened_on(prepared.spec.level, asyncio.get_running_loop())
    box = await prepared.backend.open(prepared.spec)
    try:
        held = OpenBox(prepared, box, env)
    except BaseException:
        await persist(box.kill)
        raise
    _remember(held)
    return held


def _remember(held: OpenBox) -> None:
    global _pid
    if _pid == 0:
        os.register_at_fork(after_in_child=_forget)
    _pid = os.getpid()
    _open.add(held)


def _forget() -> None:
    """In a forked child: drop the parent's streams without a word on them. Its boxes stay the parent's."""
    for held in list(_open):
        held.closed = held.closed or "it belongs to the process that this one was forked from"
        held.inherited = True
        held.box.stream.close()
    _open.clear()
    _prepared.clear()
