"""The machine that is measured: how idle it is, how much memory it has left, how to run a command and wait for it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_command(argv: Sequence[str], env: Mapping[str, str]) -> tuple[float, bytes]:
    """Run a command; return the seconds from the call to its end of output and exit, and the output.

    Spawned directly: the standard library's own wrapper would add time of its own to the baseline.
    """
    read_end, write_end = os.pipe()
    started = time.perf_counter()
    pid = os.posix_spawn(
        argv[0], list(argv), dict(env),
        file_actions=[(os.POSIX_SPAWN_DUP2, write_end, 1), (os.POSIX_SPAWN_CLOSE, read_end)],
    )  # fmt: skip
    os.close(write_end)
    output = b""
    while block := os.read(read_end, 65536):
        output += block
    _, status = os.waitpid(pid, 0)
    elapsed = time.perf_counter() - started
    os.close(read_end)
    if status:
        raise ChildProcessError(f"{argv[0]} ended with status {os.waitstatus_to_exitcode(status)}")
    return elapsed, output


def busy_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Return which share of the processors was busy between two readings of `processor_times`."""
    total = after[1] - before[1]
    return 0.0 if total <= 0 else (after[0] - before[0]) / total


def processor_times() -> tuple[int, int]:
    """Return busy and all processor time so far, in ticks; zeros where it cannot be read."""
    try:
        fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return sum(fields) - fields[3] - fields[4], sum(fields)


async def wait_until_idle(share: float = 0.10, patience_seconds: float = 20.0) -> float:
    """Wait until at most `share` of the processors is busy; return the last share seen.

    Gives up after `patience_seconds`: a busy machine is measured all the same, and the report says so.
    """
    deadline = time.monotonic() + patience_seconds
    while True:
        before = processor_times()
        await asyncio.sleep(0.25)
        busy = busy_share(before, processor_times())
        if busy <= share or time.monotonic() >= deadline:
            return busy


def available_bytes() -> int:
    """Return `MemAvailable`: what new programs could have, everything of the kernel counted."""
    return _meminfo("MemAvailable")


def touch_memory(size_bytes: int) -> None:
    """Write to that much memory and give it back, but to no more than half of what is available.

    A virtual machine's page is far dearer the first time ever that it is used: its host has to find one too.
    """
    code = f"""
import mmap
block = mmap.mmap(-1, {min(size_bytes, available_bytes() // 2)}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for start in range(0, len(block), mmap.PAGESIZE):
    block[start] = 1
"""
    run_command([sys.executable, "-I", "-S", "-c", code], {})


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/meminfo has no {key}")


def proportional_bytes(pids: Sequence[int]) -> int:
    """Return the sum of the proportional set sizes (PSS) of `pids`; processes that are gone count as nothing."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))
    return total


def children_of(root: int) -> list[int]:
    """Return every process below `root`."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text(errors="replace")
            except OSError:
                continue
            parents.setdefault(int(stat[stat.rindex(")") + 2 :].split()[1]), []).append(int(entry))
    found, frontier = [], [root]
    while frontier:
        below = parents.get(frontier.pop(), [])
        found += below
        frontier += below
    return found
