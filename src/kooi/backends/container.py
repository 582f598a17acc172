"""The level `container`: Docker, Podman, runc or crun, with every hole of the plain flags closed.

Theory of operation. Which engine it is comes from the operator's settings, or is the first that really starts one. A
runtime (crun, runc) is driven by a warden of ours, without a daemon (`oci.service`); an engine through its interface on
its own socket (`oci.engine`). Either way process 1 of the container is our agent, and its standard input is the stream.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from kooi.contract.backend import Availability, Box, HostFacts, Snapshot
from kooi.contract.errors import KooiError, LevelUnavailable, Unsupported
from kooi.contract.result import Clause, Enforcement
from kooi.contract.spec import Spec
from kooi.oci import ready, runtimes
from kooi.oci.engine import Engine
from kooi.oci.podman import podman
from kooi.oci.service import Service
from kooi.settings import load_settings
from kooi.spawn import clauses, host
from kooi.spawn.service import greeting

# In the order in which they are tried: without a daemon first, and the faster of the two.
ENGINES = ("crun", "runc", "docker", "podman")


class Containers(Protocol):
    """What the two ways have in common."""

    name: str

    @property
    def about(self) -> str:
        """What is to be known about it, once one was started."""

    async def connect(self) -> None:
        """Raise `LevelUnavailable` where it is not there."""

    async def open(self, spec: Spec, facts: HostFacts, image: str) -> Box:
        """Ask for a container."""

    def explain(self, spec: Spec, facts: HostFacts, image: str) -> Mapping[str, Any]:
        """Return what it would be told."""

    async def close(self) -> None:
        """Kill everything; safe twice."""


class ContainerBackend:
    """Opens boxes that are containers."""

    name: ClassVar[str] = "container"
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"run", "exec", "files", "freeze", "posture", "preload", "fresh"}
    )

    def __init__(self) -> None:
        self._facts: HostFacts | None = None
        self._availability: Availability | None = None
        self._service: Containers | None = None

    async def probe(self) -> Availability:
        """Say which engines start a container here, by starting one with each; kept."""
        if self._availability is None:
            self._availability = await self._probe()
        return self._availability

    def enforcement(self, spec: Spec, facts: HostFacts) -> Enforcement:
        """Say what holds each clause of `spec`. Pure."""
        return Enforcement(self.name, "kernel-shared", tuple(_clauses(spec, facts)))

    async def open(self, spec: Spec, snapshot: Snapshot | None = None) -> Box:
        """Start a container; the stream buffers what is written before it is there."""
        if snapshot is not None:
            raise Unsupported("a container cannot start from a snapshot", fix="use the level microvm")
        service = await self._chosen()
        image = spec.image if spec.image is not None else await ready.ready_image()
        return await service.open(spec, self._host(), image)

    def explain(self, spec: Spec) -> Mapping[str, Any]:
        """Return the compiled bundle of `spec`, without running anything."""
        containers = self._service or _first(self._wanted())
        return {"engine": containers.name, **containers.explain(spec, self._host(), spec.image or ready.NAME)}

    async def close(self) -> None:
        """Kill every container and helper; safe twice."""
        if self._service is not None:
            await self._service.close()

    def _host(self) -> HostFacts:
        if self._facts is None:
            if not sys.platform.startswith("linux"):
                raise LevelUnavailable("the level container needs Linux", key="level", fix="use the level process")
            self._facts = host.host_facts()
        return self._facts

    def _wanted(self) -> tuple[str, ...]:
        asked = load_settings().container_engine
        return ENGINES if asked == "auto" else (asked,)

    async def _chosen(self) -> Containers:
        """Return the service of the engine that boxes get: the one that is asked for, else the first that works."""
        if self._service is None:
            found = await self.probe()
            if self._service is None:
                raise LevelUnavailable(
                    f"no container starts here: {found.reason}", key="level", fix=found.fix or "see `kooi doctor`"
                )
        return self._service

    async def _probe(self) -> Availability:
        if self._host().euid != 0:
            fix = "run as root, or use the level jail, which needs none"
            return Availability(False, "the level container needs root in this version: nothing is rootless yet", fix)
        detail: dict[str, str] = {}
        fixes: list[str] = []
        for name in self._wanted():
            try:
                service = _engine(name)
                await service.connect()
                said = await self._prove(service)
            except KooiError as error:
                detail[name] = error.message
                if error.fix:
                    fixes.append(error.fix)
                continue
            detail[name] = said or service.about
            if said is None and self._service is None:
                self._service = service
            else:
                await service.close()
        if self._service is not None:
            return Availability(True, detail={"engine": self._service.name, **detail})
        return Availability(False, "; ".join(f"{key}: {value}" for key, value in detail.items()), _or(fixes), detail)

    async def _prove(self, service: Containers) -> str | None:
        """Start a container and wait for its first word; return what went wrong, if anything did."""
        box = await service.open(Spec(level=self.name), self._host(), await ready.ready_image())
        try:
            return await greeting(box)
        finally:
            await box.kill()
            box.stream.close()


def _engine(name: str) -> Containers:
    if name == "podman":
        return podman()
    if name == "docker":
        fix = "start it (as root: apt-get install docker.io), or set docker_socket in [settings]"
        return Engine(name, str(load_settings().docker_socket), fix)
    return Service(runtimes.find(name))


def _first(names: tuple[str, ...]) -> Containers:
    """Return the first that is installed; whether it starts is not asked."""
    missing: KooiError | None = None
    for name in names:
        try:
            return _engine(name)
        except KooiError as error:
            missing = error
    assert missing is not None
    raise missing


def _or(fixes: list[str]) -> str | None:
    return " or ".join(dict.fromkeys(fixes)) or None


def _clauses(spec: Spec, facts: HostFacts) -> list[Clause]:
    limits = spec.limits
    maybe = (
        clauses.cpu_clause(spec, facts),
        clauses.memory_clause(spec, facts),
        clauses.processes_clause(spec, facts, own_ids=True),
        clauses.open_files_clause(spec),
    )
    found = clauses.time_clauses(spec) + [clause for clause in maybe if clause is not None]
    if limits.disk_bytes is not None:
        found.append(Clause("disk_bytes", "one sized tmpfs for home, /tmp and /dev/shm", "kernel"))
    if limits.files is not None:
        found.append(Clause("files", "the inodes of that tmpfs", "kernel"))
    found += [
        Clause("host_files", "the image as a read-only root, nothing of the host", "kernel"),
        Clause("environment", "built from nothing", "kernel"),
        Clause("processes_hidden", "pid namespace and a /proc of its own", "kernel"),
        Clause("kill", "pid namespace and control group; no engine is asked", "kernel"),
        clauses.unserved_network()
        if spec.policy.network
        else Clause("network", "network namespace without a device but its own loopback", "kernel"),
    ]
    return found
