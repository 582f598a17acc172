"""A box's control group where memory and pids are v1 controllers: plain v1 and hybrid hosts.

CPU time comes from the unified directory (`cpu.stat`) where there is one, else from cpuacct.

The v1 memory limit does not count the buffers of TCP and UDP sockets (measured: 158 MB held over loopback in a group
of 64 MB). They are counted and bounded apart once their own limit is set, so a box gets a small one on top.
"""

from __future__ import annotations

from kooi.linux.cgroup_files import Counters, check_limit
from kooi.linux.cgroup_group import Group

MEMORY = "memory.limit_in_bytes"
SWAP = "memory.memsw.limit_in_bytes"
SOCKETS = "memory.kmem.tcp.limit_in_bytes"
SOCKET_BYTES_MIN = 1 << 20
SOCKET_BYTES_MAX = 16 << 20


class GroupV1(Group):
    """A group with one directory per v1 controller and, on a hybrid host, one in the unified tree."""

    _memory: int | None = None

    def set_limits(self, memory_bytes: int | None, processes: int | None) -> None:
        memory, tasks = check_limit("memory_bytes", memory_bytes), check_limit("processes", processes)
        files = [MEMORY, SWAP] if SWAP in self._features else [MEMORY]
        # memory + swap may never be below memory alone, so the one that leaves room moves first.
        if memory is None or (self._memory is not None and memory > self._memory):
            files.reverse()
        for file in files:
            self._write("memory", file, memory, b"-1")
        self._memory = memory
        if SOCKETS in self._features:
            self._write("memory", SOCKETS, socket_bytes(memory), b"-1")
        self._write("pids", "pids.max", tasks, b"max")

    def usage(self) -> Counters:
        return Counters(
            self.cpu_ns(),
            self._value("memory", "memory.max_usage_in_bytes"),
            self._value("pids", "pids.current"),
            self._value("pids", "pids.peak") if "pids.peak" in self._features else None,
        )

    def cpu_ns(self) -> int:
        if "cpuacct" in self._parents:
            return self._value("cpuacct", "cpuacct.usage")
        return self._value("unified", "cpu.stat", "usage_usec") * 1000

    def memory_now(self) -> int:
        return self._value("memory", "memory.usage_in_bytes")

    def oom_kills(self) -> int:
        return self._value("memory", "memory.oom_control", "oom_kill")

    def pids_hits(self) -> int:
        return self._value("pids", "pids.events", "max")

    def reset_peaks(self) -> bool:
        self._write("memory", "memory.max_usage_in_bytes", 0, b"0")
        return True


def socket_bytes(memory: int | None) -> int | None:
    """Return the bound on socket buffers that goes with a memory limit: a sixteenth, within 1 MiB and 16 MiB."""
    return None if memory is None else min(max(memory // 16, SOCKET_BYTES_MIN), SOCKET_BYTES_MAX)
