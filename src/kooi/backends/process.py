"""The level `process`: a child process with limits and a clean environment. No boundary: for trusted code.

Theory of operation. Where user, pid, mount and network namespaces can be had, boxes are forked from a warm zygote that
runs as the user: they end as one, have a private home and no network, and see no process but their own. Elsewhere
(`_child`) `open` makes a private folder, executes the running interpreter with the guest's agent in it and
hands it one end of a socket pair. The child is a new session without the host's descriptors, environment or terminal;
its limits (setrlimit) hold for each process by itself. The host keeps the child's pid, stops and kills its tree, and
removes the folder. What this cannot hold is listed by `enforcement` and waived by the level's name: the code can read
and write what the user can, see and signal the user's processes, and use the network.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from kooi.backends._child import ChildBox, spawn
from kooi.contract.backend import Availability, Box, HostFacts, Snapshot
from kooi.contract.errors import KooiError, Unsupported
from kooi.contract.result import Clause, Enforcement
from kooi.contract.spec import Spec
from kooi.images.host import View, native_view
from kooi.settings import load_settings, private_dir
from kooi.spawn import clauses, host
from kooi.spawn.plan import Plan, plan_process, plan_process_image
from kooi.spawn.service import Service

PROBE_SECONDS = 10.0


class ProcessBackend:
    """Opens boxes that are child processes."""

    name: ClassVar[str] = "process"
    capabilities: ClassVar[frozenset[str]] = frozenset({"run", "exec", "files", "fresh"})

    def __init__(self) -> None:
        self._boxes: set[ChildBox] = set()
        self._found: Availability | None = None
        self._facts: HostFacts | None = None
        self._service: Service | None = None

    async def probe(self) -> Availability:
        """Start a box and wait for its guest's first byte; cached."""
        if self._found is None:
            self._found = await self._try()
        return self._found

    def enforcement(self, spec: Spec, facts: HostFacts) -> Enforcement:
        """Say what a child process with limits holds, and what is open by the nature of this level."""
        found = _spawned_clauses(spec, facts) if _namespaces(facts) else _child_clauses(spec, facts)
        if spec.policy.network:
            # Asking for hosts that nothing can serve is not what naming this level waives.
            found = [clauses.unserved_network() if clause.name == "network" else clause for clause in found]
        open_here = (clause.name for clause in found if clause.grade == "none")
        waivers = tuple(name for name in open_here if name != "network" or not spec.policy.network)
        return Enforcement(self.name, "none", tuple(found), waivers)

    async def open(self, spec: Spec, snapshot: Snapshot | None = None) -> Box:
        """Start a child; returns before it is ready."""
        if snapshot is not None:
            raise Unsupported("the level process has no snapshots", key="snapshot", fix="use the level microvm")
        if _namespaces(self._host()):
            return await self._spawned().open(spec, self._host())
        if spec.image is not None:
            raise Unsupported(
                "the level process serves an image only where it can have user and mount namespaces, not here",
                key="image", fix="leave it out, or see `kooi doctor` for what is missing",
            )  # fmt: skip
        box = spawn(spec)
        self._boxes.add(box)
        box.when_gone = self._boxes.discard
        return box

    def explain(self, spec: Spec) -> Mapping[str, Any]:
        """Return the compiled plan of `spec`, without running anything."""
        if not _namespaces(self._host()):
            return {"strategy": "child process", "limits": dataclasses.asdict(spec.limits)}
        return dataclasses.asdict(self._spawned().plan(spec, self._host()).plan)

    async def close(self) -> None:
        """Kill every box."""
        for box in list(self._boxes):
            await box.kill()
        if self._service is not None:
            await self._service.close()

    def _host(self) -> HostFacts:
        if self._facts is None:
            self._facts = host.host_facts()
        return self._facts

    def _spawned(self) -> Service:
        if self._service is None:
            home = private_dir(private_dir(load_settings().run_dir) / "home")
            self._service = Service(functools.partial(_plan, str(home)), "none", native_view)
        return self._service

    async def _try(self) -> Availability:
        try:
            if _namespaces(self._host()):
                return await self._spawned().prove(Spec(level=self.name), self._host())
            box = await self.open(Spec(level=self.name))
        except (KooiError, OSError) as error:
            return Availability(False, str(error))
        try:
            ready = await _readable(box.stream.read_fd, PROBE_SECONDS)
        finally:
            await box.kill()
            box.stream.close()
        if not ready:
            return Availability(False, f"{sys.executable} did not answer within {PROBE_SECONDS:g} s")
        return Availability(True, detail={"python": sys.executable})


def _plan(home: str, spec: Spec, facts: HostFacts, view: View) -> Plan:
    return plan_process(spec, facts, view, home=home) if spec.image is None else plan_process_image(spec, facts, view)


def _namespaces(facts: HostFacts) -> bool:
    return facts.system == "Linux" and facts.user_namespaces and facts.mount_in_userns


def _spawned_clauses(spec: Spec, facts: HostFacts) -> list[Clause]:
    """Return what holds at a box of its own namespaces that runs as the user."""
    limits = spec.limits
    # RLIMIT_NPROC never binds the kernel's uid 0.
    maybe = (
        clauses.cpu_clause(spec, facts),
        _memory_clause(spec, facts),
        clauses.processes_clause(spec, facts, own_ids=facts.euid != 0),
        clauses.open_files_clause(spec),
    )
    found = clauses.time_clauses(spec) + [clause for clause in maybe if clause is not None]
    if limits.disk_bytes is not None:
        found.append(Clause("disk_bytes", "RLIMIT_FSIZE for each file, and the size of its home", "per_process"))
    if limits.files is not None:
        found.append(Clause("files", "counted in its home only", "none"))
    hidden = "pid namespace and a /proc of its own" if facts.proc_in_userns else "nothing: /proc is the host's"
    files = "every file of the user can be read and written" if spec.image is None else "its root is the image, no more"
    found += [
        Clause("host_files", f"nothing: {files}", "none"),
        Clause("network", "network namespace without a device but its own loopback", "kernel"),
        Clause("environment", "built from nothing", "kernel"),
        Clause("processes_hidden", hidden, "kernel" if facts.proc_in_userns else "none"),
        Clause("kill", "pid namespace: its first process's end is the end of all", "kernel"),
    ]
    return found


def _memory_clause(spec: Spec, facts: HostFacts) -> Clause | None:
    if facts.cgroup_writable or spec.limits.memory_bytes is None:
        return clauses.memory_clause(spec, facts)
    # Memory behind descriptors (memfd, /dev/shm, /tmp) is the host's here, and nothing counts it.
    return Clause("memory_bytes", "RLIMIT_DATA; what processes have mapped is watched every 20 ms", "per_process")


def _child_clauses(spec: Spec, facts: HostFacts) -> list[Clause]:
    """Return what holds at a plain child process."""
    limits = spec.limits
    grade = "per_process" if facts.system == "Linux" else "none"
    held = {
        "wall_seconds": Clause("wall_seconds", "the host's clock", "polled", "1 s when the guest does not answer"),
        "cpu_seconds": Clause("cpu_seconds", "looks at the process tree", "polled", "10 ms and a scheduling delay"),
        "memory_bytes": Clause("memory_bytes", "RLIMIT_DATA", "per_process" if grade == "per_process" else "none"),
        "processes": Clause("processes", "nothing: RLIMIT_NPROC would count all of the user's", "none"),
        "disk_bytes": Clause("disk_bytes", "RLIMIT_FSIZE, which limits each file", "per_process"),
        "files": Clause("files", "nothing", "none"),
        "output_bytes": Clause("output_bytes", "credit on the stream, counted by the host", "kernel"),
        "open_files": Clause("open_files", "RLIMIT_NOFILE in each process", "kernel"),
        "ttl_seconds": Clause("ttl_seconds", "the host's clock", "polled", "a scheduling delay"),
        "idle_seconds": Clause("idle_seconds", "the host's clock", "polled", "a scheduling delay"),
    }
    found = [clause for name, clause in held.items() if getattr(limits, name) is not None]
    return [
        *found,
        Clause("host_files", "nothing: every file of the user can be read and written", "none"),
        Clause("network", "nothing: the host's network is the code's", "none"),
        Clause("environment", "a new environment from an allow list", "kernel"),
        Clause("processes_hidden", "nothing: the user's processes can be seen and signalled", "none"),
        Clause("kill", "the process tree and what carries the box's mark; code can shed both", "none"),
    ]


async def _readable(fd: int, seconds: float) -> bool:
    """Wait for the first byte on `fd`; False when none comes, or its end."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()

    def arrived() -> None:
        if not came.done():
            came.set_result(None)

    loop.add_reader(fd, arrived)
    try:
        await asyncio.wait([came], timeout=seconds)
    finally:
        loop.remove_reader(fd)
    return came.done() and os.read(fd, 1) != b""
