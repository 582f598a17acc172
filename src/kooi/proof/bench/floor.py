"""What this machine's kernel itself allows: a warm interpreter is forked into new namespaces, prints 1 and exits.

No file view, no limits, no control group, no filter, no agent and no host side: nobody can be faster here with one
process a sandbox, and ours has two. Beside it one can see what of a figure is the machine's and what is ours.

Theory of operation: a program of its own, single-threaded, imports what a cell's zygote imports and forks from there.
It is told what to do by its arguments and answers with one line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from kooi.contract.errors import SetupFailed
from kooi.linux import namespaces
from kooi.proof.bench.machine import available_bytes
from kooi.proof.bench.results import Results

_ALL = namespaces.NEWUSER | namespaces.NEWPID | namespaces.NEWNET
_ALL |= namespaces.NEWIPC | namespaces.NEWUTS | namespaces.NEWNS
_SETTLE_SECONDS = 1.0
_EDGE = 20


async def floors(results: Results, quick: bool) -> None:
    """Note the floors under `jail`, `per-second`, `100-at-once`, `density` and `thousandth`, as `floor_…`."""
    from kooi.images.host import WARM_STDLIB

    root = str(Path(__file__).parents[3])
    boot = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from kooi.proof.bench.floor import main; main()"
    for name, preload in (("stdlib", ()), ("pandas", ("numpy", "pandas"))):
        argv = [json.dumps([root, *sys.path]), json.dumps([*WARM_STDLIB, *preload]), "1" if quick else ""]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", boot, *argv, stdout=-1, stderr=-1, env={"OPENBLAS_NUM_THREADS": "1"}
        )
        out, err = await process.communicate()
        if process.returncode != 0:
            raise SetupFailed(f"the floor could not be measured: {err.decode(errors='replace')[-300:]}")
        found = json.loads(out)
        results.series[f"floor_first_{name}"] = found["first"]
        results.series[f"floor_100_at_once_{name}"] = found["at_once"]
        for figure in ("per_second_per_core", "idle_bytes_available", "last_over_first"):
            results.figures[f"floor_{figure}_{name}"] = found[figure]


def main() -> None:
    """Measure, with the warm set of the second argument; a third one means fewer rounds."""
    for name in json.loads(sys.argv[2]):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    quick = bool(sys.argv[3])
    first = [_first() for _ in range(50 if quick else 300)]
    at_once = [_at_once(100) for _ in range(2 if quick else 7)]
    rate = _rate(1.0 if quick else 4.0)
    idle, last_over_first = _many(100 if quick else 1000)
    print(json.dumps({
        "first": first, "at_once": at_once, "per_second_per_core": rate,
        "idle_bytes_available": idle, "last_over_first": last_over_first,
    }))  # fmt: skip


def _fork(out: int, held: int = -1, holder: int = -1) -> int:
    """Fork one, which prints to `out`, and with `held` waits until nobody has the other end, `holder`, any more."""
    pid, pidfd = namespaces.fork_into(_ALL)
    if pid == 0:
        _print(out, held, holder)
    os.close(pidfd)
    return pid


def _print(out: int, held: int, holder: int) -> NoReturn:
    try:
        if holder >= 0:
            os.close(holder)
        os.dup2(out, 1)
        exec(compile("print(1, flush=True)", "<floor>", "exec"), {})
        if held >= 0:
            os.read(held, 1)
    finally:
        os._exit(0)


def _first() -> float:
    """Return the seconds from the fork to the 1."""
    reader, writer = os.pipe()
    started = time.perf_counter()
    pid = _fork(writer)
    os.close(writer)
    printed = os.read(reader, 16)
    elapsed = time.perf_counter() - started
    os.close(reader)
    os.waitpid(pid, 0)
    if printed != b"1\n":
        raise OSError(f"it printed {printed!r}")
    return elapsed


def _at_once(count: int) -> float:
    """Return the seconds until the last of `count` has printed."""
    reader, writer = os.pipe()
    started = time.perf_counter()
    pids = [_fork(writer) for _ in range(count)]
    left = 2 * count
    while left:
        left -= len(os.read(reader, 4096))
    elapsed = time.perf_counter() - started
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(reader)
    os.close(writer)
    return elapsed


def _rate(seconds: float) -> float:
    """Return how many a core comes to in a second, with one forking process per core."""
    cores = len(os.sched_getaffinity(0))
    reader, writer = os.pipe()
    for _ in range(cores):
        if os.fork() == 0:
            _count(seconds, writer)
    os.close(writer)
    counts = []
    while line := os.read(reader, 8):
        counts.append(int.from_bytes(line, "big"))
    for _ in range(cores):
        os.wait()
    os.close(reader)
    return sum(counts) / seconds / cores


def _count(seconds: float, writer: int) -> NoReturn:
    try:
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            _first()
            done += 1
        os.write(writer, done.to_bytes(8, "big"))
    finally:
        os._exit(0)


def _many(count: int) -> tuple[float, float]:
    """Keep `count`; return the bytes that one costs, and what the last ones took beside the first ones."""
    held, holder = os.pipe()
    before, pids, seconds = available_bytes(), [], []
    for _ in range(count):
        reader, writer = os.pipe()
        started = time.perf_counter()
        pid = _fork(writer, held, holder)
        os.close(writer)
        os.read(reader, 16)
        seconds.append(time.perf_counter() - started)
        os.close(reader)
        pids.append(pid)
    time.sleep(_SETTLE_SECONDS)
    cost = (before - available_bytes()) / count
    os.close(holder)
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(held)
    middle = _EDGE // 2
    return cost, sorted(seconds[-_EDGE:])[middle] / sorted(seconds[:_EDGE])[middle]
