"""Measure several things in one run, A-B-A-B, so that a drifting machine drifts under all of them alike."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kooi.contract.errors import KooiError
from kooi.proof.bench.machine import wait_until_idle
from kooi.proof.bench.results import Results, Samples

WARM_UPS = 2
GATE_EVERY = 50
REST_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing to measure: `once` returns the seconds of its parts by name, and is called `rounds` times."""

    name: str
    once: Callable[[], Awaitable[Samples]]
    rounds: int
    begin: Callable[[], Awaitable[None]] | None = None
    end: Callable[[], Awaitable[None]] | None = None


async def interleave(measures: Sequence[Measure], results: Results, step: Callable[[str], None]) -> None:
    """Run all `measures` in turn, round by round, into `results`; one that fails is noted there and left out."""
    alive = [m for m in measures if await _begun(m, results)]
    try:
        for number in range(WARM_UPS):
            step(f"warming up {number + 1}/{WARM_UPS}")
            alive = [m for m in alive if await _once(m, None, results)]
        gc.collect()
        gc.disable()
        for number in range(max((m.rounds for m in alive), default=0)):
            if number % GATE_EVERY == 0:
                busy = await wait_until_idle()
                if busy > 0.10:
                    results.remarks.append(f"round {number}: the machine was {busy:.0%} busy, waiting did not help")
            step(f"round {number + 1}")
            alive = [m for m in alive if number >= m.rounds or await _once(m, results, results)]
    finally:
        gc.enable()
        for measure in measures:
            if measure.end is not None:
                await measure.end()


async def _begun(measure: Measure, results: Results) -> bool:
    try:
        if measure.begin is not None:
            await measure.begin()
        return True
    except (KooiError, OSError) as error:
        results.absent[measure.name] = f"{type(error).__name__}: {error}"
        return False


async def _once(measure: Measure, into: Results | None, results: Results) -> bool:
    # What the measure before set going (blanks being made, memory given back) is not this one's.
    await asyncio.sleep(REST_SECONDS)
    try:
        samples = await measure.once()
    except (KooiError, OSError) as error:
        results.absent[measure.name] = f"{type(error).__name__}: {error}"
        return False
    if into is not None:
        into.add(samples)
    return True
