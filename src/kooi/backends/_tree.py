"""The processes of a box that has no namespace of its own: found by descent, and by a mark in their environment.

The agent adopts what its descendants orphan (on Linux), so descent finds all while the agent lives; the mark also
finds what an agent that was killed has left. Code that kills the agent and drops the mark (it executes a program with
another environment) is found by neither: a level that can only do this says so in its enforcement.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

_LINUX = sys.platform == "linux"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
KILL_PASSES = 50


@dataclass(frozen=True)
class Process:
    """One process as the system's table shows it. CPU time includes that of children it has waited for."""

    pid: int
    parent: int
    alive: bool
    cpu_seconds: float
    resident_bytes: int


def tree(root: int) -> list[Process]:
    """Return `root` and its descendants that the process table shows now."""
    if _LINUX:
        return _descend(root)
    return _below(_table(), root)


def kill(root: int, mark: str, *, orphans: bool) -> set[int]:
    """Kill `root` and its descendants; with `orphans` also whatever carries `mark` in its environment.

    Returns whom it killed besides the root: they die in their own time, see `any_alive`.

    The root, which adopts what its descendants orphan, is stopped first and killed last, so that nothing slips away to
    another parent. A root that had ended before can have lost some: then look for `orphans`.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(root, signal.SIGSTOP)
    killed: set[int] = set()
    for _ in range(KILL_PASSES):
        found = {process.pid for process in tree(root) if process.alive} - {root}
        if orphans:
            found |= _marked(mark)
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
    with contextlib.suppress(ProcessLookupError):
        os.kill(root, signal.SIGKILL)
    return killed


def any_alive(pids: set[int]) -> bool:
    """Return whether one of these processes lives."""
    if not _LINUX:
        return bool(pids) and any(process.alive for process in _table() if process.pid in pids)
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            if _stat(pid)[0].alive:
                return True
    return False


def _descend(root: int) -> list[Process]:
    found: list[Process] = []
    todo = [root]
    while todo:
        pid = todo.pop()
        try:
            process, threads = _stat(pid)
            found.append(process)
            for task in [pid] if threads == 1 else os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                    todo += map(int, file.read().split())
        except (OSError, ValueError):
            continue  # it ended while we looked
    return found


def _stat(pid: int) -> tuple[Process, int]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name in parentheses is the process's own choice and may hold anything, parentheses too.
        fields = file.read().rpartition(b")")[2].split()
    ticks = sum(map(int, fields[11:15]))
    process = Process(pid, int(fields[1]), fields[0] not in b"ZX", ticks / _TICKS, int(fields[21]) * _PAGE)
    return process, int(fields[17])


def _marked(mark: str) -> set[int]:
    if not _LINUX:
        return set()
    wanted, found = mark.encode(), set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0") and int(name) != os.getpid():
                    found.add(int(name))
    return found


def _table() -> list[Process]:
    columns = "pid=,ppid=,stat=,time=,rss="
    listed = subprocess.run(["ps", "-A", "-o", columns], capture_output=True, text=True, check=False).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [
        Process(int(pid), int(parent), not state.startswith("Z"), _seconds(time), int(rss) * 1024)
        for pid, parent, state, time, rss in (row for row in rows if len(row) == 5)
    ]


def _seconds(clock: str) -> float:
    """Return the seconds of `[[days-]hours:]minutes:seconds`."""
    days, _, rest = clock.rpartition("-")
    total = 0.0
    for part in rest.split(":"):
        total = total * 60 + float(part.replace(",", "."))
    return total + float(days or 0) * 86_400


def _below(table: list[Process], root: int) -> list[Process]:
    found = [process for process in table if process.pid == root]
    for parent in found:
        found += [process for process in table if process.parent == parent.pid]
    return found
