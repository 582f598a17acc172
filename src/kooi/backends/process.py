"""The level `process`: a child process with limits and a clean environment. No boundary: for trusted code.

Theory of operation. `open` makes a private folder, executes the running interpreter with the guest's agent in it and
hands it one end of a socket pair. The child is a new session without the host's descriptors, environment or terminal;
its limits (setrlimit) hold for each process by itself. The host keeps the child's pid, stops and kills its tree, and
removes the folder. What this cannot hold is listed by `enforcement` and waived by the level's name: the code can read
and write what the user can, see and signal the user's processes, and use the network.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import ClassVar

from kooi.backends._child import ChildBox, spawn
from kooi.contract.backend import Availability, Box, HostFacts, Snapshot
from kooi.contract.errors import KooiError, Unsupported
from kooi.contract.limits import Limits
from kooi.contract.result import Clause, Enforcement, Grade
from kooi.contract.spec import Spec

PROBE_SECONDS = 10.0


class ProcessBackend:
    """Opens boxes that are child processes."""

    name: ClassVar[str] = "process"
    capabilities: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self._boxes: set[ChildBox] = set()
        self._found: Availability | None = None

    async def probe(self) -> Availability:
        """Start a box and wait for its guest's first byte; cached."""
        if self._found is None:
            self._found = await self._try()
        return self._found

    def enforcement(self, spec: Spec, facts: HostFacts) -> Enforcement:
        """Say what a child process with limits holds, and what is open by the nature of this level."""
        clauses = (*_limit_clauses(spec.limits, facts.system), *_OPEN)
        waivers = tuple(clause.name for clause in clauses if clause.grade == "none")
        return Enforcement(self.name, "none", clauses, waivers)

    async def open(self, spec: Spec, snapshot: Snapshot | None = None) -> Box:
        """Start a child; returns before it is ready."""
        if snapshot is not None:
            raise Unsupported("the level process has no snapshots", key="snapshot", fix="use the level microvm")
        if spec.image is not None:
            raise Unsupported("the level process has no image but the running interpreter", key="image")
        box = spawn(spec)
        self._boxes.add(box)
        box.when_gone = self._boxes.discard
        return box

    async def close(self) -> None:
        """Kill every box."""
        for box in list(self._boxes):
            await box.kill()

    async def _try(self) -> Availability:
        try:
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


_OPEN = (
    Clause("files", "nothing: every file of the user can be read and written", "none"),
    Clause("network", "nothing: the host's network is the code's", "none"),
    Clause("environment", "a new environment from an allow list", "kernel"),
    Clause("processes_hidden", "nothing: the user's processes can be seen and signalled", "none"),
    Clause("kill", "the process tree and what carries the box's mark; code can shed both", "none"),
)


def _limit_clauses(limits: Limits, system: str) -> list[Clause]:
    """Return what holds each limit that is set."""
    memory: Grade = "per_process" if system == "Linux" else "none"
    held = {
        "wall_seconds": Clause("wall_seconds", "the host's clock", "polled", "1 s when the guest does not answer"),
        "cpu_seconds": Clause("cpu_seconds", "looks at the process tree", "polled", "10 ms and a scheduling delay"),
        "memory_bytes": Clause("memory_bytes", "RLIMIT_DATA", memory),
        "processes": Clause("processes", "nothing: RLIMIT_NPROC would count all of the user's", "none"),
        "disk_bytes": Clause("disk_bytes", "RLIMIT_FSIZE, which limits each file", "per_process"),
        "output_bytes": Clause("output_bytes", "credit on the stream, counted by the host", "kernel"),
        "open_files": Clause("open_files", "RLIMIT_NOFILE", "per_process"),
        "ttl_seconds": Clause("ttl_seconds", "the host's clock", "polled", "a scheduling delay"),
        "idle_seconds": Clause("idle_seconds", "the host's clock", "polled", "a scheduling delay"),
    }
    return [clause for name, clause in held.items() if getattr(limits, name) is not None]


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
