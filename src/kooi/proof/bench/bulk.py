"""What is measured by itself: many sandboxes at once, how many fit, how fast bytes move."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence

from kooi.contract.errors import KooiError
from kooi.contract.limits import Limits
from kooi.contract.spec import Spec
from kooi.proof.access import BoxLike, open_box, run_once
from kooi.proof.bench.machine import (
    available_bytes,
    children_of,
    proportional_bytes,
    touch_memory,
    wait_until_idle,
)
from kooi.proof.bench.plan import PANDAS, expect_one
from kooi.proof.bench.results import Results
from kooi.proof.bench.stats import median

MEGABYTE = 1_000_000
STREAM_BYTES = 256 << 20
_BOX_BYTES = 8 << 20
_FLOOD = f"""
import os
block, left = b"x" * (1 << 20), {STREAM_BYTES}
while left:
    left -= os.write(1, block[:left])
"""
_ROOMY = Limits(
    wall_seconds=120, cpu_seconds=120, memory_bytes=2 << 30, disk_bytes=1 << 30, output_bytes=STREAM_BYTES + (1 << 20)
)
Bulk = Callable[[Results, bool], Awaitable[None]]


async def at_once(results: Results, quick: bool) -> None:
    """Start 50 and 100 fresh jails at the same moment; note when the last result is there."""
    spec = Spec(level="jail", preload=())
    for count in (50, 100):
        for _ in range(2 if quick else 7):
            await wait_until_idle(patience_seconds=5)
            results.add({f"jail_{count}_at_once": await burst(spec, count)})


async def burst(spec: Spec, count: int) -> float:
    """Return the seconds until the last of `count` simultaneous sandboxes has its result."""
    started = time.perf_counter()

    async def one() -> float:
        box = await open_box(spec)
        try:
            expect_one(await box.run("print(1)"))
            return time.perf_counter() - started
        finally:
            await box.close()

    return max(await asyncio.gather(*(one() for _ in range(count))))


async def throughput(results: Results, quick: bool) -> None:
    """Run one-shot jails in a closed loop on all cores; note how many a core does in a second."""
    seconds = 2.0 if quick else 8.0
    cores = len(os.sched_getaffinity(0))
    for name, preload in (("stdlib", ()), ("pandas", PANDAS)):
        spec = Spec(level="jail", preload=preload)
        await wait_until_idle(patience_seconds=5)
        done = await closed_loop(spec, in_flight=2 * cores, seconds=seconds)
        results.figures[f"jails_per_second_per_core_{name}"] = done / cores


async def closed_loop(spec: Spec, in_flight: int, seconds: float) -> float:
    """Return how many one-shot sandboxes a second come to an end, with `in_flight` of them at any moment."""
    expect_one(await run_once(spec, "print(1)"))
    started = time.perf_counter()
    ends: list[float] = []

    async def keep_going() -> None:
        while time.perf_counter() - started < seconds:
            expect_one(await run_once(spec, "print(1)"))
            ends.append(time.perf_counter())

    await asyncio.gather(*(keep_going() for _ in range(in_flight)))
    return len(ends) / (max(ends) - started)


async def density(results: Results, quick: bool) -> None:
    """Keep many idle jails with numpy and pandas; note what one costs, unused and after one run."""
    count = 50 if quick else 200
    spec = Spec(level="jail", preload=PANDAS)
    first = await open_box(spec)
    boxes: list[BoxLike] = []
    try:
        expect_one(await first.run("print(1)"))
        await _quiet()
        there, before = set(children_of(os.getpid())), available_bytes()
        for _ in range(count):
            boxes.append(await open_box(spec))
        await _quiet()
        results.figures["idle_bytes_available"] = (before - available_bytes()) / count
        mine = [pid for pid in children_of(os.getpid()) if pid not in there]
        results.figures["idle_bytes_pss"] = proportional_bytes(mine) / count
        for box in boxes:
            expect_one(await box.run("print(1)"))
        await _quiet()
        results.figures["used_bytes_available"] = (before - available_bytes()) / count
        results.figures["kill_all_seconds"] = await close_timed(boxes)
        results.figures["kill_all_count"] = count
    finally:
        await close_timed([first, *boxes])


async def _quiet() -> None:
    """Let helpers that work in the background come to rest."""
    await asyncio.sleep(1.0)
    await wait_until_idle(patience_seconds=5)


async def close_timed(boxes: Sequence[BoxLike]) -> float:
    """Close all at once; return the seconds until the last one is gone."""
    started = time.perf_counter()
    await asyncio.gather(*(box.close() for box in boxes))
    return time.perf_counter() - started


async def thousandth(results: Results, quick: bool) -> None:
    """Keep 1,000 jails open; note what the last ones take beside the first ones."""
    count = 200 if quick else 1000
    spec = Spec(level="jail", preload=())
    boxes: list[BoxLike] = []
    seconds = []
    touch_memory(count * _BOX_BYTES)
    try:
        for _ in range(count):
            started = time.perf_counter()
            boxes.append(await open_box(spec))
            expect_one(await boxes[-1].run("print(1)"))
            seconds.append(time.perf_counter() - started)
    finally:
        await close_timed(boxes)
    results.figures["last_over_first"] = median(seconds[-20:]) / median(seconds[:20])
    results.figures["open_at_last"] = count


async def streams(results: Results, quick: bool) -> None:
    """Move 256 MiB through standard output and through files, in and out."""
    repeats = 2 if quick else 5
    data = os.urandom(1 << 20) * (STREAM_BYTES >> 20)
    for _ in range(repeats):
        box = await open_box(Spec(level="jail", preload=(), limits=_ROOMY))
        try:
            await _out(box, results)
            await _files(box, data, results)
        finally:
            await box.close()


async def _out(box: BoxLike, results: Results) -> None:
    started = time.perf_counter()
    result = await box.run(_FLOOD)
    elapsed = time.perf_counter() - started
    if len(result.stdout_bytes) != STREAM_BYTES:
        raise KooiError(f"{len(result.stdout_bytes)} of {STREAM_BYTES} bytes came out, status {result.status}")
    results.add({"stdout_256_mib": elapsed})


async def _files(box: BoxLike, data: bytes, results: Results) -> None:
    started = time.perf_counter()
    await box.files.write("bulk.bin", data)
    written = time.perf_counter()
    back = await box.files.read_bytes("bulk.bin")
    read = time.perf_counter()
    if back != data:
        raise KooiError("the file that came out is not the one that went in")
    results.add({"file_in_256_mib": written - started, "file_out_256_mib": read - written})


BULK: dict[str, Bulk] = {
    "at-once": at_once,
    "throughput": throughput,
    "density": density,
    "thousandth": thousandth,
    "streams": streams,
}
