"""The one plug-in contract: a backend opens boxes; a box is a stream to a guest, and a way to kill it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from kooi.contract.result import Enforcement, Usage
from kooi.contract.spec import Spec


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a level runs on this host; proved by starting one. `reason` and `fix` when it does not."""

    ok: bool
    reason: str | None = None
    fix: str | None = None
    detail: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the host offers, gathered once by `linux/facts.py`; everything `plan()` may depend on."""

    system: str
    machine: str
    kernel: str
    euid: int
    cpus: int
    landlock_abi: int
    user_namespaces: bool
    mount_in_userns: bool
    proc_in_userns: bool
    cgroup: Literal["v1", "hybrid", "v2", "none"]
    cgroup_writable: bool
    subuid_count: int
    newuidmap: bool
    python: str
    python_version: tuple[int, int]


@dataclass(frozen=True, slots=True)
class BoxEvent:
    """Something the host saw happen to a box.

    kinds: `exited` (everything in it is dead and cleaned up; `usage` is final), `oom` and `pids_limit`
    (`count` is how often so far), `failed` (it never started; `detail` says why), `struck` (it is being killed because
    a watched limit was met; `detail` is the status that comes of it).
    """

    kind: Literal["exited", "oom", "pids_limit", "failed", "struck"]
    count: int = 0
    detail: str = ""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class ProcessPosture:
    """One process of a box, read from outside. `capabilities` are the five sets of /proc/PID/status as integers."""

    role: Literal["agent", "code"]
    uids: tuple[int, ...]
    gids: tuple[int, ...]
    groups: tuple[int, ...]
    capabilities: Mapping[str, int]
    no_new_privs: bool
    seccomp: int
    namespaces: Mapping[str, Literal["own", "inherited"]]
    fds: tuple[str, ...]
    dumpable: bool
    threads_uniform: bool


@dataclass(frozen=True, slots=True)
class Posture:
    """A box as the host sees it: its processes and its mounts."""

    processes: tuple[ProcessPosture, ...]
    mounts: tuple[str, ...]
    landlock_abi: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A stored box that a level can start again."""

    id: str
    level: str


class Stream(Protocol):
    """A duplex byte channel to the guest: two non-blocking descriptors (equal for a socket)."""

    read_fd: int
    write_fd: int

    def close(self) -> None:
        """Close both descriptors; safe twice."""
        ...


class Box(Protocol):
    """A backend's live instance.

    Two more members are taken where they are there: `async cpu_seconds()`, that part of `usage` for less work, and
    `has_news`, whether `events` has some that were not taken yet.
    """

    stream: Stream

    async def kill(self) -> None:
        """Kill it; everything in it is dead and cleaned up when this returns. Safe twice."""
        ...

    async def usage(self) -> Usage:
        """Return what it used so far, measured from outside."""
        ...

    def events(self) -> AsyncIterator[BoxEvent]:
        """Yield what the host sees happen to it; ends after `exited` or `failed`."""
        ...

    async def freeze(self) -> None:
        """Stop it from using CPU; memory is kept. Raises `Unsupported` where the level cannot."""
        ...

    async def thaw(self) -> None:
        """Undo `freeze`."""
        ...

    async def snapshot(self) -> Snapshot:
        """Store it. Raises `Unsupported` where the level cannot."""
        ...

    async def posture(self) -> Posture:
        """Read its ids, capabilities, seccomp mode, namespaces, descriptors and mounts from outside."""
        ...


class Backend(Protocol):
    """A level's implementation."""

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[str]]

    async def probe(self) -> Availability:
        """Say whether it runs on this host, proved by really starting one; cached."""
        ...

    def enforcement(self, spec: Spec, facts: HostFacts) -> Enforcement:
        """Say what holds each clause of `spec`. Pure."""
        ...

    async def open(self, spec: Spec, snapshot: Snapshot | None = None) -> Box:
        """Start a box. May return before the guest is ready: the stream buffers what is written meanwhile."""
        ...

    async def close(self) -> None:
        """Kill every box and helper this backend started. Safe twice."""
        ...
