"""Deadlines that are hardly ever met: one timer of the loop for all of a box.

Theory of operation: a timer per run would be made, sorted in and cancelled for nothing, again and again. Here a
deadline is an entry in a table, and the timer stays where it is as long as nothing is due earlier. When it goes off it
moves to the next deadline, if there is one, and calls what is due: a box without runs has no timer for longer than its
last run's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Call = Callable[[], None]


class Alarm:
    """The deadlines of one box. Use it in its loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: dict[int, tuple[float, Call]] = {}
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._when = 0.0

    def set(self, when: float, call: Call) -> int:
        """Call `call` at the loop's time `when`; return what `drop` wants to know."""
        self._numbers += 1
        self._due[self._numbers] = when, call
        if self._timer is None or when < self._when:
            self._move(when)
        return self._numbers

    def drop(self, number: int) -> None:
        """Forget a deadline. Safe for one that was met."""
        self._due.pop(number, None)

    def stop(self) -> None:
        """Forget everything."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _move(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._when = when
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        """Meet one deadline, the earliest; one that is due too is met next. So none is lost to what another does."""
        self._timer = None
        if not self._due:
            return
        number = min(self._due, key=lambda each: self._due[each][0])
        when, call = self._due[number]
        if when > self._when:
            self._move(when)
            return
        del self._due[number]
        if self._due:
            self._move(min(when for when, _ in self._due.values()))
        call()
