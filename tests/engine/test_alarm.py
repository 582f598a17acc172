"""Deadlines that share one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kooi.engine.alarm import Alarm

Set = Callable[[float, Callable[[], object]], int]


def met(scenario: Callable[[Alarm, Set, list[str]], None]) -> list[str]:
    """Let `scenario` set deadlines in seconds from now; return what was noted when all have gone by."""

    async def main() -> list[str]:
        loop, seen = asyncio.get_running_loop(), list[str]()
        loop.set_exception_handler(lambda _, context: seen.append(type(context["exception"]).__name__))
        alarm, now = Alarm(loop), loop.time()
        scenario(alarm, lambda seconds, call: alarm.set(now + seconds, call), seen)
        over = loop.create_future()
        alarm.set(now + 0.05, lambda: over.set_result(None))
        await asyncio.wait_for(over, 20)
        return seen

    return asyncio.run(main())


def test_deadlines_are_met_in_their_order() -> None:
    def scenario(alarm: Alarm, later: Set, seen: list[str]) -> None:
        for seconds in (0.03, 0.01, 0.02, 0.01):
            later(seconds, lambda seconds=seconds: seen.append(str(seconds)))  # type: ignore[misc]

    assert met(scenario) == ["0.01", "0.01", "0.02", "0.03"]


def test_one_that_raises_stops_no_other() -> None:
    def scenario(alarm: Alarm, later: Set, seen: list[str]) -> None:
        later(0.01, lambda: {}["raised"])
        later(0.01, lambda: seen.append("same"))
        later(0.02, lambda: seen.append("later"))

    assert met(scenario) == ["KeyError", "same", "later"]


def test_what_was_dropped_is_not_met_even_if_it_is_due() -> None:
    def scenario(alarm: Alarm, later: Set, seen: list[str]) -> None:
        alarm.drop(later(0.005, lambda: seen.append("the first")))
        later(0.01, lambda: alarm.drop(other))
        other = later(0.01, lambda: seen.append("the other"))
        alarm.drop(other + 1000)

    assert met(scenario) == []


def test_a_deadline_may_set_another() -> None:
    def scenario(alarm: Alarm, later: Set, seen: list[str]) -> None:
        later(0.01, lambda: later(0.0, lambda: seen.append("at once")))
        later(0.03, lambda: seen.append("later"))

    assert met(scenario) == ["at once", "later"]


def test_nothing_is_met_after_stop() -> None:
    seen = list[str]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        alarm = Alarm(loop)
        alarm.set(loop.time() + 0.01, lambda: seen.append("met"))
        alarm.stop()
        await asyncio.sleep(0.03)

    asyncio.run(main())
    assert seen == []
