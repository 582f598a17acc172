"""What the warden keeps count of: berths and the containers that they become, and their control groups."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import Any

from kooi.linux import process
from kooi.linux.cgroup_layout import Layout, hierarchies
from kooi.oci import berth
from kooi.oci.bundle import RUNTIME_GROUP
from kooi.spawn.groups import Groups, Slot
from kooi.spawn.journal import Journal

WORDS_BYTES = 2000


class ContainerGroups(Groups):
    """Control groups that also bound what a runtime insists on managing."""

    def __init__(self, journal: Journal, extra: tuple[str, ...]) -> None:
        self._extra = extra
        super().__init__(journal)

    def where(self) -> Layout:
        """Return the layout, with one more hierarchy for each that the runtime must see."""
        found = super().where()
        if found.kind == "v2":
            return found
        own = {controller: one.own for one in hierarchies() for controller in one.controllers}
        more = {name: own[name] for name in self._extra if name in own}
        return found._replace(parents={**found.parents, **more})


class Kind:
    """Containers that are made alike: the bundle, the runtime's command line, and the program of process 1.

    `blanks` wait at their gates; `failures` is how many ended by themselves before anybody had them.
    """

    def __init__(self, plan: dict[str, Any], argv: list[str], program: int) -> None:
        self.plan = plan
        self.argv = argv
        self.program = program
        self.blanks: list[Place] = []
        self.failures = 0


class Request:
    """A box that the host asked for: its number there, its kind, its limits (memory, processes) and its stream."""

    def __init__(self, box: int, kind: Kind, limits: tuple[int | None, int | None], stream: int) -> None:
        self.box = box
        self.kind = kind
        self.limits = limits
        self.stream = stream

    def close(self) -> None:
        """Let go of the stream; safe twice."""
        stream, self.stream = self.stream, -1
        if stream >= 0:
            os.close(stream)


class Place:
    """A berth, later a container of a `kind`, at last somebody's (`request`). `folder` is its bundle's."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self.control = control
        self.pid = pid
        self.pidfd = process.open_pidfd(pid)
        self.folder = -1
        self.slot: Slot | None = None
        self.pair: tuple[int, int] | None = None
        self.gate: socket.socket | None = None
        self.kind: Kind | None = None
        self.started = False
        self.request: Request | None = None
        self.said = ""


def reap(pid: int) -> bool:
    """Reap a child that has ended; return whether it failed."""
    try:
        return os.waitpid(pid, 0)[1] != 0
    except ChildProcessError:
        return True


def reap_strays(known: set[int]) -> None:
    """Reap the children that have ended and are not `known`: what runtimes left to us besides their containers."""
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children", "rb") as file:
            for pid in {int(word) for word in file.read().split()} - known:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def remove_below(slot: Slot, keep: tuple[str, ...]) -> None:
    """Remove the groups that a runtime made in a box's own."""
    for name in keep:
        if (path := slot.group.paths.get(name or "unified")) is not None:
            with contextlib.suppress(OSError):
                os.rmdir(f"{path}/{RUNTIME_GROUP}")


def read(folder: int, name: str) -> str:
    """Return the start of a file in a bundle's folder, which only the runtime writes."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(fd, WORDS_BYTES).decode("utf-8", "replace") if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    finally:
        os.close(fd)


def last_words(place: Place) -> str:
    """Return what the runtime, or an agent that could not begin, wrote before its end."""
    if place.folder < 0 or place.kind is None:
        return ""
    try:
        return " ".join(read(place.folder, berth.LOG).split())
    except OSError:
        return ""


def to_keep(wanted: list[str]) -> tuple[str, ...]:
    """Return which folders of /sys/fs/cgroup a runtime gets to see: "" is all of a pure version 2."""
    if not wanted:
        return ()
    if any(one.version == 2 and one.mount == "/sys/fs/cgroup" for one in hierarchies()):
        return ("",)
    return tuple(name for name in wanted if os.path.isdir(f"/sys/fs/cgroup/{name}"))
