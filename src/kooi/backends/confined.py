"""The level `confined`: Landlock, a system call filter and watched totals, without namespaces and without privilege.

Theory of operation. Boxes are forked from a warm zygote that is confined itself, into Landlock domains one inside the
other (`spawn/plan_confined`). It works where namespaces are refused: inside an unprivileged container. What it cannot
do without them its report says: the process table is shared, totals are looked at again and again, and what Landlock
does not cover (metadata of files) is open.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from kooi.contract.backend import Availability, Box, HostFacts, Snapshot
from kooi.contract.errors import KooiError, LevelUnavailable, Unsupported
from kooi.contract.result import Clause, Enforcement
from kooi.contract.spec import Spec
from kooi.images.host import confined_view
from kooi.spawn import clauses, host
from kooi.spawn.plan_confined import FILES_ABI, SCOPE_ABI, plan_confined
from kooi.spawn.service import Service

_FOLDER_OVERSHOOT = "what can be written in 20 ms, or in ten times what a look at the folder takes"
_PROCESSES_OVERSHOOT = "what can be started in 20 ms, about 100 processes from Python"
# What this level's name waives. Not on a kernel too old for what the rest of the report relies on.
_OPEN = ("processes_hidden", "host_metadata")


class ConfinedBackend:
    """Boxes forked from a warm, confined zygote into Landlock domains."""

    name: ClassVar[str] = "confined"
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"run", "exec", "files", "freeze", "posture", "preload", "fresh"}
    )

    def __init__(self) -> None:
        self._facts: HostFacts | None = None
        self._service: Service | None = None
        self._availability: Availability | None = None

    async def probe(self) -> Availability:
        """Say whether a confined box starts here, by starting one; kept."""
        if self._availability is None:
            self._availability = await self._probe()
        return self._availability

    def enforcement(self, spec: Spec, facts: HostFacts) -> Enforcement:
        """Say what holds each clause of `spec`. Pure."""
        found = clauses.time_clauses(spec)
        found += [
            clause
            for clause in (
                clauses.cpu_clause(spec, facts),
                clauses.memory_clause(spec, facts),
                _processes_clause(spec, facts),
                clauses.open_files_clause(spec),
            )
            if clause is not None
        ]
        found += _folder_clauses(spec) + _access_clauses(spec, facts)
        waivers = _OPEN if facts.landlock_abi >= SCOPE_ABI else ()
        return Enforcement(self.name, "kernel-shared", tuple(found), waivers)

    async def open(self, spec: Spec, snapshot: Snapshot | None = None) -> Box:
        """Start a box; the stream buffers what is written before it is there."""
        if snapshot is not None:
            raise Unsupported("a confined box cannot start from a snapshot", fix="use the level microvm")
        _refuse_image(spec)
        return await self._boxes().open(spec, self._host())

    def explain(self, spec: Spec) -> Mapping[str, Any]:
        """Return the compiled plan of `spec`, without running anything."""
        _refuse_image(spec)
        return dataclasses.asdict(self._boxes().plan(spec, self._host()).plan)

    async def close(self) -> None:
        """Kill every box and helper; safe twice."""
        if self._service is not None:
            await self._service.close()

    def _host(self) -> HostFacts:
        if self._facts is None:
            if not sys.platform.startswith("linux"):
                raise LevelUnavailable("the level confined needs Linux", key="level", fix="use the level process")
            self._facts = host.host_facts()
        return self._facts

    def _boxes(self) -> Service:
        if self._service is None:
            ids = "leased" if self._host().euid == 0 else "none"
            self._service = Service(plan_confined, ids, confined_view)
        return self._service

    async def _probe(self) -> Availability:
        try:
            facts = self._host()
            if facts.landlock_abi < SCOPE_ABI:
                return Availability(False, _too_old(facts), "use Linux 6.12 or newer with Landlock among its modules")
            return await self._boxes().prove(Spec(level=self.name), facts)
        except KooiError as error:
            return Availability(False, error.message, error.fix)


def _refuse_image(spec: Spec) -> None:
    if spec.image is not None:
        raise Unsupported(
            "the level confined has no root of its own to show an image as",
            key="image",
            fix="leave it out, or use the level jail",
        )


def _too_old(facts: HostFacts) -> str:
    said = host.reasons().get("landlock_abi")
    return said or f"Landlock has ABI {facts.landlock_abi} here, and killing a whole box needs {SCOPE_ABI}"


def _processes_clause(spec: Spec, facts: HostFacts) -> Clause | None:
    if spec.limits.processes is None or facts.cgroup_writable:
        return clauses.processes_clause(spec, facts, own_ids=False)
    return Clause("processes", "counted every 20 ms, then SIGKILL to all of it", "polled", _PROCESSES_OVERSHOOT)


def _folder_clauses(spec: Spec) -> list[Clause]:
    limits, found = spec.limits, []
    if limits.disk_bytes is not None:
        how = "its private folder looked at, RLIMIT_FSIZE for each file; not what is open and has no name any more"
        found.append(Clause("disk_bytes", how, "polled", _FOLDER_OVERSHOOT))
    if limits.files is not None:
        found.append(Clause("files", "its private folder looked at", "polled", _FOLDER_OVERSHOOT))
    return found


def _access_clauses(spec: Spec, facts: HostFacts) -> list[Clause]:
    abi = facts.landlock_abi
    mine = "they belong to another id" if facts.euid == 0 else "those of the user's own can be changed"
    found = [
        Clause("host_files", "Landlock: an allow list, read-only but for a private folder", "kernel")
        if abi >= FILES_ABI
        else Clause("host_files", f"Landlock has ABI {abi}, which does not stop truncate(2); needed: 3", "none"),
        Clause("host_metadata", f"not in Landlock: stat shows names, sizes and times; modes and times: {mine}", "none"),
        Clause("environment", "built from nothing", "kernel"),
        _hidden_clause(abi),
        Clause("kill", "kill(-1) inside a Landlock domain by its first process", "kernel")
        if abi >= SCOPE_ABI
        else Clause("kill", f"Landlock has ABI {abi} and no domain for signals; needed: {SCOPE_ABI}", "none"),
    ]
    if spec.policy.network:
        found.append(clauses.unserved_network())
    else:
        found.append(Clause("network", "the filter: no sockets but pairs", "kernel"))
    if abi >= 1:
        found.append(Clause("landlock", f"the first layer, ABI {abi}", "kernel"))
    return found


def _hidden_clause(abi: int) -> Clause:
    seen = "the process table is the host's: that a process exists can be found out"
    if abi >= SCOPE_ABI:
        return Clause("processes_hidden", f"{seen}; /proc cannot be read, no signal leaves the domain", "none")
    return Clause("processes_hidden", f"{seen}, and the user's can be signalled", "none")
