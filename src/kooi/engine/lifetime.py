"""How long a sandbox lives: `ttl_seconds` from its opening, `idle_seconds` from the end of its last call."""

from __future__ import annotations

import asyncio

from kooi.contract.limits import Limits
from kooi.engine.openbox import OpenBox


class Lifetime:
    """The two clocks of one open sandbox. A run or a file transfer in flight is not idleness."""

    def __init__(self, held: OpenBox) -> None:
        limits: Limits = held.prepared.spec.limits
        self._held = held
        self._idle = limits.idle_seconds
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._end: asyncio.Task[None] | None = None
        if limits.ttl_seconds is not None:
            why = f"ttl_seconds ({limits.ttl_seconds:g} s) is over"
            self._timers["ttl"] = self._loop.call_later(limits.ttl_seconds, self._expire, why)
        if self._idle is not None:
            self._look_later(self._idle)

    def touch(self) -> None:
        """Note that the sandbox is in use now."""
        if self._idle is not None:
            self._last = self._loop.time()

    def stop(self) -> None:
        """Stop both clocks."""
        for timer in self._timers.values():
            timer.cancel()

    def _look_later(self, seconds: float) -> None:
        self._timers["idle"] = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        assert self._idle is not None
        if self._held.inflight or self._held.transfers:
            self._last = self._loop.time()
        remaining = self._last + self._idle - self._loop.time()
        if remaining > 0:
            self._look_later(remaining)
        else:
            self._expire(f"idle for idle_seconds ({self._idle:g} s)")

    def _expire(self, why: str) -> None:
        self.stop()
        self._end = self._loop.create_task(self._held.close(why))
