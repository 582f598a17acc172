"""The classic table: `print(1)` ten times per level, median and longest, beside a bare interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kooi.contract.errors import InvalidRequest, KooiError
from kooi.contract.spec import Spec
from kooi.proof.access import close_all, probe_all, run_once
from kooi.proof.bench import baseline
from kooi.proof.bench.machine import run_command
from kooi.proof.bench.plan import expect_one
from kooi.proof.bench.stats import median

RUNS = 10


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: milliseconds, or why there are none."""

    name: str
    what: str
    median_ms: float | None
    longest_ms: float | None
    reason: str | None = None


async def table(levels: Sequence[str] = (), step: Callable[[str], None] = lambda name: None) -> list[Line]:
    """Measure `print(1)` in a sandbox of its own, from the call to nothing left, at each level that works here.

    The first call of a level starts what stays warm; it is a line of its own.
    """
    found = await probe_all()
    await close_all()
    unknown = [level for level in levels if level not in found]
    if unknown:
        raise InvalidRequest(f"no level {unknown[0]!r}", key="level", fix=f"choose among {', '.join(found)}")
    step("python3")
    bare = [run_command(baseline.r1(), baseline.PLAIN_ENV)[0] for _ in range(RUNS)]
    lines = [_line("python3", "a bare interpreter, no sandbox", bare)]
    for level in levels or found:
        step(level)
        state = found[level]
        if not state.ok:
            lines.append(Line(level, "", None, None, state.reason))
            continue
        lines += await _level(Spec(level=level, preload=()))
    await close_all()
    return lines


async def _level(spec: Spec) -> list[Line]:
    try:
        first = await _once(spec)
        warm = [await _once(spec) for _ in range(RUNS)]
        fresh = [await _once(replace(spec, fresh=True)) for _ in range(RUNS)]
    except KooiError as error:
        return [Line(spec.level, "", None, None, str(error))]
    return [
        _line(spec.level, "forked from a warm interpreter", warm),
        _line(spec.level, "a new interpreter (fresh=True)", fresh),
        _line(spec.level, "the very first call, with what stays warm", [first]),
    ]


async def _once(spec: Spec) -> float:
    started = time.perf_counter()
    result = await run_once(spec, "print(1)")
    elapsed = time.perf_counter() - started
    expect_one(result)
    return elapsed


def _line(name: str, what: str, seconds: Sequence[float]) -> Line:
    return Line(name, what, median(seconds) * 1000, max(seconds) * 1000)
