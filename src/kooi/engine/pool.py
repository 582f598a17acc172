"""A pool of boxes that are open and warm before anyone asks: a backend around a backend.

Theory of operation. A pooled box is used once. What fits whom is the posture (level, image, preload, datasets and the
limits that are built into a box): code, files, environment and network are bound when the box is taken, before the
first frame of user code, and so are no part of it. A box is ready when its stream is readable: its guest says HELLO
only after it has warmed itself. `open` hands out the oldest ready box of the posture; without one it is the inner
backend's `open`, never an error. Boxes that died waiting are recognised by the end of their stream and put away. The
stock is refilled a moment after a request, not during it, one box at a time, and bounded by number and by memory.

A pool belongs to the event loop that first used it, because its boxes do; on another loop it steps aside.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections import deque
from collections.abc import Coroutine, Hashable
from dataclasses import dataclass, replace

from kooi.contract.backend import Availability, Backend, Box, HostFacts, Snapshot
from kooi.contract.errors import KooiError
from kooi.contract.limits import MIB
from kooi.contract.policy import Policy
from kooi.contract.result import Enforcement
from kooi.contract.spec import Spec
from kooi.images.store import Store

REFILL_DELAY_SECONDS = 0.01
READY_LOOK_SECONDS = 0.01
READY_SECONDS = 30.0
MAX_POSTURES = 16
ASSUMED_BYTES = 4 * MIB  # of a box that cannot be measured
_DEAD = select.POLLHUP | select.POLLERR | select.POLLNVAL


@dataclass
class _Pooled:
    """A box in stock and what it weighs."""

    box: Box
    memory_bytes: int = ASSUMED_BYTES

    def state(self) -> str:
        """Return `ready`, `warming` or `dead`."""
        poll = select.poll()
        poll.register(self.box.stream.read_fd, select.POLLIN)
        events = dict(poll.poll(0)).get(self.box.stream.read_fd, 0)
        return "dead" if events & _DEAD else "ready" if events & select.POLLIN else "warming"


@dataclass
class _Shelf:
    """The stock of one posture."""

    spec: Spec
    boxes: deque[_Pooled]


class Pool:
    """Keeps up to `size` boxes of `inner` ready, together within `memory_bytes` as far as they can be measured."""

    def __init__(self, inner: Backend, *, size: int, memory_bytes: int) -> None:
        self.inner = inner
        self.size = size
        self.memory_bytes = memory_bytes
        self._shelves: dict[Hashable, _Shelf] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refill: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def name(self) -> str:
        """The inner backend's name."""
        return self.inner.name

    @property
    def capabilities(self) -> frozenset[str]:
        """The inner backend's capabilities."""
        return self.inner.capabilities

    async def probe(self) -> Availability:
        """Ask the inner backend."""
        return await self.inner.probe()

    def enforcement(self, spec: Spec, facts: HostFacts) -> Enforcement:
        """Ask the inner backend."""
        return self.inner.enforcement(spec, facts)

    async def open(self, spec: Spec, snapshot: Snapshot | None = None) -> Box:
        """Hand out a ready box, or open one."""
        if snapshot is not None or self._closed or not self._is_mine(asyncio.get_running_loop()):
            return await self.inner.open(spec, snapshot)
        if spec.image is not None:
            # What the name means now; a name that is not in the store is the inner backend's own matter.
            try:
                spec = replace(spec, image=Store.of_user().resolve(spec.image))
            except KooiError:
                return await self.inner.open(spec)
        shelf = self._shelf(spec)
        box = self._take(shelf)
        self._refill_later()
        return box if box is not None else await self.inner.open(spec)

    async def close(self) -> None:
        """Kill every box in stock, then close the inner backend. Safe twice."""
        self._closed = True
        if self._refill is not None:
            self._refill.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._drain()
        await self.inner.close()

    def stock(self) -> int:
        """Return how many boxes wait, ready or not."""
        return sum(len(shelf.boxes) for shelf in self._shelves.values())

    def _is_mine(self, loop: asyncio.AbstractEventLoop) -> bool:
        if self._loop is None or self._loop.is_closed():
            self._loop = loop
            self._refill = None
            self._tasks.clear()
            self._shelves.clear()
        return self._loop is loop

    def _shelf(self, spec: Spec) -> _Shelf:
        key = posture(spec)
        shelf = self._shelves.pop(key, None) or _Shelf(bare(spec), deque())
        self._shelves[key] = shelf  # the posture asked for last is the last one to be given up
        if len(self._shelves) > MAX_POSTURES:
            oldest = next(iter(self._shelves))
            for pooled in self._shelves.pop(oldest).boxes:
                self._put_away(pooled)
        return shelf

    def _take(self, shelf: _Shelf) -> Box | None:
        for pooled in tuple(shelf.boxes):
            state = pooled.state()
            if state == "warming":
                continue
            shelf.boxes.remove(pooled)
            if state == "ready":
                return pooled.box
            self._put_away(pooled)
        return None

    def _refill_later(self) -> None:
        if self._refill is None and not self._closed:
            assert self._loop is not None
            self._refill = self._loop.call_later(REFILL_DELAY_SECONDS, self._start_refill)

    def _start_refill(self) -> None:
        self._spawn(self._fill())

    async def _fill(self) -> None:
        """Open one box after another until the stock is full; the posture asked for last comes first."""
        try:
            for shelf in reversed(list(self._shelves.values())):
                self._sweep(shelf)
                while self._has_room():
                    pooled = _Pooled(await self.inner.open(shelf.spec))
                    shelf.boxes.append(pooled)
                    await self._until_ready(pooled)
        except (KooiError, OSError):
            pass  # whoever asks next gets this error from the inner backend itself
        finally:
            self._refill = None

    def _has_room(self) -> bool:
        weight = sum(pooled.memory_bytes for shelf in self._shelves.values() for pooled in shelf.boxes)
        return not self._closed and self.stock() < self.size and weight + ASSUMED_BYTES <= self.memory_bytes

    def _sweep(self, shelf: _Shelf) -> None:
        for pooled in tuple(shelf.boxes):
            if pooled.state() == "dead":
                shelf.boxes.remove(pooled)
                self._put_away(pooled)

    async def _until_ready(self, pooled: _Pooled) -> None:
        """Wait until a box is ready, so that refilling never warms two at once, and weigh it."""
        for _ in range(int(READY_SECONDS / READY_LOOK_SECONDS)):
            if pooled.state() != "warming":
                break
            await asyncio.sleep(READY_LOOK_SECONDS)
        with contextlib.suppress(KooiError, OSError):
            used = (await pooled.box.usage()).memory_peak_bytes
            pooled.memory_bytes = ASSUMED_BYTES if used is None else max(used, MIB)

    def _put_away(self, pooled: _Pooled) -> None:
        self._spawn(_put_away(pooled.box))

    async def _drain(self) -> None:
        shelves = list(self._shelves.values())
        self._shelves.clear()
        for shelf in shelves:
            for pooled in shelf.boxes:
                await _put_away(pooled.box)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def posture(spec: Spec) -> Hashable:
    """Return what two specs must share for one box to serve either."""
    policy, limits = spec.policy, spec.limits
    built = (limits.cpu_seconds, limits.memory_bytes, limits.processes, limits.disk_bytes, limits.files)
    return (
        spec.level, spec.image, spec.preload, spec.fresh, policy.datasets, policy.require, policy.strict, built,
        limits.open_files,
    )  # fmt: skip


def bare(spec: Spec) -> Spec:
    """Return `spec` without what is bound when a box is taken."""
    policy = spec.policy
    plain = Policy(policy.datasets, waive=policy.waive, require=policy.require, strict=policy.strict)
    return replace(spec, policy=plain)


async def _put_away(box: Box) -> None:
    try:
        await box.kill()
    finally:
        box.stream.close()
