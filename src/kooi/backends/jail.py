"""The level `jail`: every namespace, a read-only view, Landlock, a system call filter, forked from a warm zygote."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from kooi.contract.backend import Availability, Box, HostFacts, Snapshot
from kooi.contract.errors import KooiError, LevelUnavailable, Unsupported
from kooi.contract.result import Clause, Enforcement
from kooi.contract.spec import Spec
from kooi.spawn import clauses, host
from kooi.spawn.plan import id_mode, plan_jail
from kooi.spawn.service import Service


class JailBackend:
    """Boxes forked from a warm zygote into fresh namespaces."""

    name: ClassVar[str] = "jail"
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"run", "exec", "files", "freeze", "posture", "preload", "fresh"}
    )

    def __init__(self) -> None:
        self._facts: HostFacts | None = None
        self._service: Service | None = None
        self._availability: Availability | None = None

    async def probe(self) -> Availability:
        """Say whether a jail starts here, by starting one; kept."""
        if self._availability is None:
            self._availability = await self._probe()
        return self._availability

    def enforcement(self, spec: Spec, facts: HostFacts) -> Enforcement:
        """Say what holds each clause of `spec`. Pure."""
        limits = spec.limits
        found = clauses.time_clauses(spec)
        found += [
            clause
            for clause in (
                clauses.cpu_clause(spec, facts),
                clauses.memory_clause(spec, facts),
                clauses.processes_clause(spec, facts, own_ids=True),
                clauses.open_files_clause(spec),
            )
            if clause is not None
        ]
        if limits.disk_bytes is not None:
            found.append(Clause("disk_bytes", "one sized tmpfs for home, /tmp and /dev/shm", "kernel"))
        if limits.files is not None:
            found.append(Clause("files", "the inodes of that tmpfs", "kernel"))
        found += _access_clauses(spec, facts)
        return Enforcement(self.name, "kernel-shared", tuple(found))

    async def open(self, spec: Spec, snapshot: Snapshot | None = None) -> Box:
        """Start a box; the stream buffers what is written before it is there."""
        if snapshot is not None:
            raise Unsupported("a jail cannot start from a snapshot", fix="use the level microvm")
        return await self._boxes().open(spec, self._host())

    def explain(self, spec: Spec) -> Mapping[str, Any]:
        """Return the compiled plan of `spec`, without running anything."""
        return dataclasses.asdict(self._boxes().plan(spec, self._host()).plan)

    async def close(self) -> None:
        """Kill every box and helper; safe twice."""
        if self._service is not None:
            await self._service.close()

    def _host(self) -> HostFacts:
        if self._facts is None:
            if not sys.platform.startswith("linux"):
                raise LevelUnavailable("the level jail needs Linux", key="level", fix="use the level process")
            self._facts = host.host_facts()
        return self._facts

    def _boxes(self) -> Service:
        if self._service is None:
            self._service = Service(plan_jail, id_mode(self._host()))
        return self._service

    async def _probe(self) -> Availability:
        try:
            facts = self._host()
            if not (facts.user_namespaces and facts.mount_in_userns and facts.proc_in_userns):
                return Availability(False, _why_not())
            return await self._boxes().prove(Spec(level=self.name), facts)
        except KooiError as error:
            return Availability(False, error.message, error.fix)


def _why_not() -> str:
    said = (host.reasons().get(name) for name in ("user_namespaces", "mount_in_userns", "proc_in_userns"))
    return "; ".join(dict.fromkeys(text for text in said if text)) or "user namespaces cannot be had"


def _access_clauses(spec: Spec, facts: HostFacts) -> list[Clause]:
    found = [
        Clause("host_files", "a root of its own: a read-only allow list, nothing else of the host", "kernel"),
        Clause("environment", "built from nothing", "kernel"),
        Clause("processes_hidden", "pid namespace and a /proc of its own", "kernel"),
        Clause("kill", "pid namespace: its first process's end is the end of all", "kernel"),
    ]
    if spec.policy.network:
        found.append(clauses.unserved_network())
    else:
        found.append(Clause("network", "network namespace without a device but its own loopback", "kernel"))
    if facts.landlock_abi >= 1:
        found.append(Clause("landlock", f"second layer, ABI {facts.landlock_abi}", "kernel"))
    return found
