"""See a hostile program from outside: by the command name that it took, in the host's own process table."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

PROC = "/proc"


def pids_named(tag: str) -> list[int]:
    """Return the processes (zombies too) whose command name is `tag`."""
    found = []
    for name in os.listdir(PROC):
        if name.isdigit() and command_name(int(name)) == tag:
            found.append(int(name))
    return found


def command_name(pid: int) -> str | None:
    """Return the command name of a process; `None` when it is gone."""
    try:
        with open(f"{PROC}/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return None


class Sighting:
    """How many processes of one program the host sees: at most, and now."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.peak = 0

    def look(self) -> int:
        """Count now."""
        count = len(pids_named(self.tag)) if os.path.isdir(f"{PROC}/self") else 0
        self.peak = max(self.peak, count)
        return count

    async def settle(self, seconds: float) -> int:
        """Wait until none is left, `seconds` at most; return how many are."""
        deadline = asyncio.get_running_loop().time() + seconds
        while (left := self.look()) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        return left


@contextlib.asynccontextmanager
async def watching(tag: str, period_seconds: float = 0.025) -> AsyncIterator[Sighting]:
    """Count the processes of a program every `period_seconds` while the body runs."""
    sighting = Sighting(tag)

    async def poll() -> None:
        while True:
            await asyncio.to_thread(sighting.look)
            await asyncio.sleep(period_seconds)

    task = asyncio.create_task(poll())
    try:
        yield sighting
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
