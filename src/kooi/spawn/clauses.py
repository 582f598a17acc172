"""What holds each clause at the levels that boxes of the spawner serve; pure, from the spec and the host's facts."""

from __future__ import annotations

from kooi.contract.backend import HostFacts
from kooi.contract.result import Clause
from kooi.contract.spec import Spec

CPU_OVERSHOOT = "about 2 ms of CPU time per CPU"
MEMORY_OVERSHOOT = "what can be allocated in 20 ms, about 10 to 25 MB from Python"


def time_clauses(spec: Spec) -> list[Clause]:
    """Return the clauses that the host's own clock and counters hold, the same at every level."""
    limits = spec.limits
    found = []
    if limits.wall_seconds is not None:
        found.append(Clause("wall_seconds", "the host's clock, then SIGKILL to the whole box", "kernel"))
    if limits.output_bytes is not None:
        found.append(Clause("output_bytes", "counted by the host on its side of the stream", "kernel"))
    if limits.ttl_seconds is not None:
        found.append(Clause("ttl_seconds", "the host's clock", "kernel"))
    if limits.idle_seconds is not None:
        found.append(Clause("idle_seconds", "the host's clock", "kernel"))
    return found


def cpu_clause(spec: Spec, facts: HostFacts) -> Clause | None:
    """Return what holds `cpu_seconds`."""
    limits = spec.limits
    if limits.cpu_seconds is None:
        return None
    if limits.wall_seconds is not None and limits.cpu_seconds >= limits.wall_seconds * facts.cpus:
        return Clause("cpu_seconds", "cannot be reached within wall_seconds on this host's CPUs", "kernel")
    if facts.cgroup_writable:
        return Clause("cpu_seconds", "the control group's CPU time, read when it can be due", "polled", CPU_OVERSHOOT)
    return Clause("cpu_seconds", "CPU time of all its processes, read when it can be due", "polled", CPU_OVERSHOOT)


def memory_clause(spec: Spec, facts: HostFacts) -> Clause | None:
    """Return what holds `memory_bytes`."""
    if spec.limits.memory_bytes is None:
        return None
    if facts.cgroup_writable:
        return Clause("memory_bytes", "control group, swap included", "kernel")
    return Clause("memory_bytes", "watched every 20 ms, RLIMIT_DATA per process", "polled", MEMORY_OVERSHOOT)


def processes_clause(spec: Spec, facts: HostFacts, own_ids: bool) -> Clause | None:
    """Return what holds `processes`; `own_ids` says whether RLIMIT_NPROC counts this box alone and binds it."""
    if spec.limits.processes is None:
        return None
    if facts.cgroup_writable:
        return Clause("processes", "control group", "kernel")
    if own_ids:
        return Clause("processes", "RLIMIT_NPROC, counted in the box's own user namespace", "kernel")
    return Clause("processes", "RLIMIT_NPROC counts every process of the user, and binds root not at all", "none")


def open_files_clause(spec: Spec) -> Clause | None:
    """Return what holds `open_files`, a limit per process by its meaning."""
    if spec.limits.open_files is None:
        return None
    return Clause("open_files", "RLIMIT_NOFILE in each process", "kernel")


def unserved_network() -> Clause:
    """Return the clause of a policy that allows hosts, which no level of this version can let through."""
    return Clause("network", "allow rules need the egress broker, which this version does not have", "none")
