"""A run as an async iterator: its events while it runs, its result afterwards."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType

from kooi.contract.result import Result, RunEvent
from kooi.engine.openbox import persist

Start = Callable[[Callable[[RunEvent], None]], Awaitable[Result]]


class _Feed:
    """What has happened and nobody has taken yet. Bounded by the run's output cap."""

    def __init__(self) -> None:
        self.events: deque[RunEvent] = deque()
        self.waiter: asyncio.Future[None] | None = None

    def put(self, event: RunEvent) -> None:
        self.events.append(event)
        self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class RunStream:
    """The events of a run as they happen; the run begins with the first one that is asked for.

    `result` is there when the iteration has ended. Leaving the iteration early, or dropping the stream, kills the run;
    `aclose` (or `async with`) returns only when it is dead.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._feed = _Feed()
        self._task: asyncio.Task[Result] | None = None
        self._result: Result | None = None
        self._owner = os.getpid()

    @property
    def result(self) -> Result:
        """How the run ended; raises `RuntimeError` before it has."""
        if self._result is None:
            raise RuntimeError("the run has not ended: take its events to the end first")
        return self._result

    def __aiter__(self) -> RunStream:
        """Return itself."""
        return self

    async def __anext__(self) -> RunEvent:
        """Return the next event; raise what the run raised."""
        task = self._task or self._begin()
        while not self._feed.events:
            if task.done():
                self._result = task.result()
                raise StopAsyncIteration
            self._feed.waiter = asyncio.get_running_loop().create_future()
            try:
                await self._feed.waiter
            except asyncio.CancelledError:
                await persist(self.aclose)
                raise
        return self._feed.events.popleft()

    async def aclose(self) -> None:
        """Kill the run if it still runs. Safe twice."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def __aenter__(self) -> RunStream:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the run if it still runs."""
        await self.aclose()

    def __del__(self) -> None:
        """Kill the run if it still runs."""
        task = self._task
        if task is None or task.done() or task.get_loop().is_closed() or self._owner != os.getpid():
            return
        task.get_loop().call_soon_threadsafe(task.cancel)

    def _begin(self) -> asyncio.Task[Result]:
        feed = self._feed
        self._task = task = asyncio.ensure_future(self._start(feed.put))
        task.add_done_callback(lambda _: feed.wake())
        return task
