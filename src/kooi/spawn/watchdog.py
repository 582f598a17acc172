"""Boxes that no control group counts: their processes are read from /proc, and their memory every 20 ms.

Resident memory alone is no measure: forks of a zygote share most of it. So it is only the trigger; near the limit the
proportional sizes are read instead. What is in the workspace's tmpfs is added: no process need have it mapped. So are
sockets, whose contents no file of /proc tells: each counts for what its buffers can hold.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from kooi.spawn.entries import Entry, Watch
from kooi.spawn.journal import HOMES_PARENT

TICK_SECONDS = 0.02
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
# So many descriptors any program may have; each more counts as a socket would, for nothing tells what is in one.
_FREE_DESCRIPTORS = 32


class Watchdog:
    """Reads what boxes without a control group use; calls `exceeded` once for one that uses too much memory."""

    def __init__(
        self, exceeded: Callable[[Entry], None], crowded: Callable[[Entry, str], None], stored: Mapping[int, int]
    ) -> None:
        """`crowded` is called for one with too many processes, with the status that comes of it.

        `stored` says what is in the private folders of boxes.
        """
        self._exceeded = exceeded
        self._crowded = crowded
        self._stored = stored
        self._entries: dict[int, Entry] = {}
        self._next = 0.0

    def add(self, entry: Entry, limit: int | None, processes: int | None = None) -> None:
        """Begin to watch a box; its processes are counted against `processes` if nothing else bounds them."""
        home = entry.cell.home
        workspace = f"/proc/{entry.pid}/root{home}"
        entry.watch = Watch(limit, processes, _resident(entry.pid), workspace, _device(home), _sockets(entry.pid))
        self._entries[entry.number] = entry

    def remove(self, entry: Entry) -> dict[str, Any]:
        """Stop watching a box that is gone; return what it used as far as it was seen."""
        self._entries.pop(entry.number, None)
        return _report(entry.watch, 0) if entry.watch is not None else {}

    def usage(self, entry: Entry) -> dict[str, Any]:
        """Return what a box uses now."""
        if entry.watch is None:
            return {}
        pids = tree(entry.pid)
        self._sample(entry, entry.watch, pids)
        return _report(entry.watch, len(pids))

    def seconds(self) -> float | None:
        """Return in how many seconds `tick` wants to be called; None when nothing is watched."""
        return max(0.0, self._next - time.monotonic()) if self._entries else None

    def tick(self) -> None:
        """Look at every watched box, if it is time."""
        now = time.monotonic()
        if not self._entries or now < self._next:
            return
        self._next = now + TICK_SECONDS
        for entry in list(self._entries.values()):
            if entry.watch is not None:
                pids, tasks = survey(entry.pid)
                self._sample(entry, entry.watch, pids)
                self._count(entry, entry.watch, tasks)

    def _count(self, entry: Entry, watch: Watch, tasks: int) -> None:
        if watch.processes is not None and tasks > watch.processes and not watch.reported:
            watch.reported = True
            self._crowded(entry, "pids_limit")

    def _sample(self, entry: Entry, watch: Watch, pids: list[int]) -> None:
        watch.pids_peak = max(watch.pids_peak, len(pids))
        watch.cpu_ns = max(watch.cpu_ns, sum(map(_cpu_ns, pids)))
        sizes = sorted(((max(0, _resident(pid) - watch.base), pid) for pid in pids), reverse=True)
        if entry.cell.warded:
            shared = self._stored.get(entry.box or 0, 0) if _in_memory() else 0
            shared += sum(map(_descriptor_bytes, pids))
        else:
            shared = _stored_bytes(watch.workspace, watch.outside)
            shared += max(0, _sockets(entry.pid) - watch.sockets) * _socket_bytes()
        used = shared + sum(size for size, _ in sizes)
        if watch.limit is not None and used > watch.limit // 2:
            used = shared + sum(_proportional(pid) for _, pid in sizes)
        watch.peak = max(watch.peak, used)
        if watch.limit is not None and used > watch.limit and not watch.reported:
            watch.reported = watch.over_memory = True
            self._exceeded(entry)


def tree(root: int) -> list[int]:
    """Return `root` and all its descendants; no orphan leaves a box's first process."""
    return survey(root)[0]


def survey(root: int) -> tuple[list[int], int]:
    """Return `root` and all its descendants, and how many threads they have together."""
    found, ahead, tasks = [], [root], 0
    while ahead:
        pid = ahead.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                tasks += 1
                with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                    ahead += map(int, file.read().split())
        except (OSError, ValueError):
            continue
    return found, tasks


def _report(watch: Watch, pids_now: int) -> dict[str, Any]:
    return {
        "cpu_ns": watch.cpu_ns,
        "memory_peak": watch.peak,
        "pids_peak": watch.pids_peak,
        "pids_now": pids_now,
        "oom": int(watch.over_memory),
        "pids": 0,
    }


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _resident(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def _cpu_ns(pid: int) -> int:
    """Return the CPU time of a process and of its children that it has waited for."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) * (1_000_000_000 // _TICKS) if len(fields) > 14 else 0


def _proportional(pid: int) -> int:
    """Return the private and shared-out anonymous and shared memory of a process, in bytes."""
    total = 0
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
            total += int(line.split()[1]) * 1024
    return total


def _sockets(pid: int) -> int:
    """Return how many sockets there are in the network namespace of a process, also those on their way in another."""
    for line in _read(f"/proc/{pid}/net/sockstat").splitlines():
        if line.startswith(b"sockets: used "):
            return int(line.split()[2])
    return 0


@functools.lru_cache(maxsize=1)
def _socket_bytes() -> int:
    """Return what a socket holds at most, both ways, as long as nobody changes its buffers."""
    return sum(int(_read(f"/proc/sys/net/core/{name}_default") or 212_992) for name in ("rmem", "wmem"))


def _descriptor_bytes(pid: int) -> int:
    """Return what the descriptors of a process can hold beyond those that any program has."""
    try:
        count = os.stat(f"/proc/{pid}/fd").st_size or len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0
    return max(0, count - _FREE_DESCRIPTORS) * _socket_bytes() // 2


@functools.lru_cache(maxsize=1)
def _in_memory() -> bool:
    """Say whether private folders are files in memory."""
    for line in _read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(b" - ")
        if before.split()[4] == HOMES_PARENT.encode() and after.startswith(b"tmpfs "):
            return True
    return False


def _device(path: str) -> int:
    try:
        return os.stat(path).st_dev
    except OSError:
        return -1


def _stored_bytes(workspace: str, outside: int) -> int:
    """Return what is in the box's tmpfs, once it is mounted; at level process an ordinary user may not look."""
    try:
        # A blank that is still getting ready shows what lies below: at level process the host's disk.
        if os.stat(workspace).st_dev == outside:
            return 0
        found = os.statvfs(workspace)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize
