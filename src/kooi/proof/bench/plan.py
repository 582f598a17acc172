"""What is measured: every series of the interleaved run, with what it does once.

A one-shot jail gives several series from one call: the time to the result as the caller's own code sees it, and the
time until nothing of it is left. The pool is off in all of them but `pool_hit`.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from kooi.contract.errors import KooiError
from kooi.contract.limits import Limits
from kooi.contract.result import Result
from kooi.contract.spec import Spec
from kooi.proof.access import BoxLike, open_box, run_once
from kooi.proof.bench import baseline, peers
from kooi.proof.bench.interleave import Measure
from kooi.proof.bench.machine import run_command
from kooi.proof.bench.results import Samples
from kooi.spawn.shop import FRESH_AHEAD

PANDAS = ("numpy", "pandas")
_IN_A_ROW = 10
_PRINT, _IMPORT = "print(1)", "import numpy, pandas; print(1)"
_REST_SECONDS = 0.1
Once = Callable[[], Awaitable[Samples]]


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often each class of measure is repeated."""

    fast: int = 200
    slow: int = 30


def measures(rounds: Rounds, levels: tuple[str, ...]) -> list[Measure]:
    """Return the measures of the interleaved run, baselines first, for the `levels` that work here."""
    found = [
        Measure("r0", _command("r0", baseline.r0()), rounds.fast),
        Measure("r1", _command("r1", baseline.r1()), rounds.fast),
    ]
    loaded = baseline.r2()
    if loaded is not None:
        found.append(Measure("r2", _command("r2", loaded), rounds.slow))
    if "process" in levels:
        found += _level("process", rounds)
    if "confined" in levels:
        found += _level("confined", rounds)
    if "jail" in levels:
        found += _level("jail", rounds)
        found += _jail(rounds, loaded is not None)
    if "container" in levels:
        found += _container(rounds)
    return found + peers.measures(rounds.fast)


def _level(level: str, rounds: Rounds) -> list[Measure]:
    spec = Spec(level=level, preload=())
    fresh = replace(spec, fresh=True)
    return [
        Measure(f"{level}_first", _kept(f"{level}_first", spec), rounds.fast),
        Measure(f"{level}_reaped", _one_shot(f"{level}_reaped", spec), rounds.fast),
        Measure(f"{level}_fresh", _rested(_kept(f"{level}_fresh", fresh)), rounds.fast),
        Measure(f"{level}_fresh_next", _rested(_next(f"{level}_fresh_next", fresh)), rounds.fast),
        live(level, rounds.fast),
    ]


def _jail(rounds: Rounds, with_pandas: bool) -> list[Measure]:
    found = []
    if with_pandas:
        spec = Spec(level="jail", preload=PANDAS)
        found.append(Measure("jail_pandas_first", _kept("jail_pandas_first", spec, _IMPORT), rounds.fast))
        found.append(Measure("jail_pandas_reaped", _one_shot("jail_pandas_reaped", spec, _IMPORT), rounds.fast))
    return found


def _container(rounds: Rounds) -> list[Measure]:
    spec = Spec(level="container", preload=())
    return [
        Measure("container_reaped", _rested(_one_shot("container_reaped", spec)), rounds.fast),
        Measure("container_cold", _rested(_first_of_its_kind("container_cold", spec)), rounds.slow),
        live("container", rounds.fast),
        *peers.hardened_docker(rounds.slow),
    ]


def _first_of_its_kind(name: str, spec: Spec) -> Once:
    """Time one call that finds nothing made ahead: no two of them ask for the same."""
    numbers = itertools.count(300)

    async def once() -> Samples:
        return await _one_shot(name, replace(spec, limits=Limits(open_files=next(numbers))))()

    return once


def live(level: str, rounds: int) -> Measure:
    """Measure runs in a sandbox that is already open and has run before: ten in a row, and by itself the first.

    The first one comes after all that other series did meanwhile, and finds no cache of a processor as it left it.
    """
    open_boxes: list[BoxLike] = []

    async def begin() -> None:
        open_boxes.append(await open_box(Spec(level=level, preload=(), limits=Limits(cpu_seconds=None))))

    async def once() -> Samples:
        times = [await _timed_run(open_boxes[0]) for _ in range(_IN_A_ROW)]
        return {f"{level}_live": times, f"{level}_live.after_others": times[0]}

    async def end() -> None:
        for box in open_boxes:
            await box.close()

    return Measure(f"{level}_live", once, rounds, begin, end)


async def _timed_run(box: BoxLike) -> float:
    started = time.perf_counter()
    result = await box.run(_PRINT)
    elapsed = time.perf_counter() - started
    expect_one(result)
    return elapsed


def _kept(name: str, spec: Spec, code: str = _PRINT) -> Once:
    """Time opening a sandbox, its first result, and closing it."""

    async def once() -> Samples:
        started = time.perf_counter()
        box = await open_box(spec)
        opened = time.perf_counter()
        try:
            result = await box.run(code)
            answered = time.perf_counter()
        finally:
            await box.close()
        closed = time.perf_counter()
        expect_one(result)
        return {name: answered - started, f"{name}.create": opened - started, f"{name}.close": closed - answered}

    return once


def _rested(once: Once) -> Once:
    """Wait after it, off the clock, until what it used up is made again, which takes a CPU from what comes next."""

    async def then_rest() -> Samples:
        samples = await once()
        await asyncio.sleep(_REST_SECONDS)
        return samples

    return then_rest


def _next(name: str, spec: Spec) -> Once:
    """Time a fresh sandbox that is asked for right after as many as are kept ready, and so finds none."""
    once = _kept(name, spec)

    async def after_others() -> Samples:
        others = [await open_box(spec) for _ in range(FRESH_AHEAD)]
        try:
            return await once()
        finally:
            for box in others:
                await box.close()

    return after_others


def _one_shot(name: str, spec: Spec, code: str = _PRINT) -> Once:
    """Time one call from start to nothing left."""

    async def once() -> Samples:
        started = time.perf_counter()
        result = await run_once(spec, code)
        elapsed = time.perf_counter() - started
        expect_one(result)
        return {name: elapsed}

    return once


def _command(name: str, argv: list[str]) -> Once:
    async def once() -> Samples:
        elapsed, output = run_command(argv, baseline.PLAIN_ENV)
        if output.strip() != b"1":
            raise OSError(f"{argv[0]} printed {output[:40]!r}")
        return {name: elapsed}

    return once


def expect_one(result: Result) -> None:
    """Refuse a time that belongs to a wrong answer."""
    if not result.ok or result.stdout.strip() != "1":
        raise KooiError(f"print(1) came to status {result.status} with output {result.stdout[:40]!r}")
