"""What the spawner keeps count of: cells, the blanks and boxes that came from them, and boxes that are asked for."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections import deque
from typing import Any

from kooi.linux import process
from kooi.spawn.groups import Slot
from kooi.spawn.ids import IdPairs
from kooi.spawn.leases import Lease

WORDS_BYTES = 2000


class Watch:
    """One watched box: its limit, the resident size and sockets it began with, its workspace, what was seen so far.

    `outside` is the device that the workspace's path is on where nothing is mounted there.
    `processes` is the limit on processes and threads, where nothing else holds it.
    """

    __slots__ = (
        "base", "cpu_ns", "limit", "outside", "over_memory", "peak", "pids_peak", "processes", "reported", "sockets",
        "workspace",
    )  # fmt: skip

    def __init__(
        self, limit: int | None, processes: int | None, base: int, workspace: str, outside: int, sockets: int
    ) -> None:
        self.limit = limit
        self.processes = processes
        self.base = base
        self.workspace = workspace
        self.outside = outside
        self.sockets = sockets
        self.peak = self.cpu_ns = self.pids_peak = 0
        self.reported = self.over_memory = False


class Entry:
    """One blank, later one box. `box` is the host's number for it, None while it is a blank."""

    __slots__ = ("begun", "box", "cell", "control", "folder", "line", "number", "pair", "pid", "pidfd", "slot", "watch")

    def __init__(self, number: int, cell: Cell, control: socket.socket) -> None:
        self.number = number
        self.cell = cell
        self.control = control
        self.slot: Slot | None = None
        self.pair: tuple[int, int] | None = None
        self.pidfd = -1
        self.pid = 0
        self.box: int | None = None
        self.watch: Watch | None = None
        #: the line to its warden and its private folder, where the cell has no namespaces
        self.line: socket.socket | None = None
        self.folder = ""
        #: whether it was told to go on, and may have a warden
        self.begun = False

    def strike(self) -> None:
        """Kill it: its first process, whose end is the end of all, or by order to its warden, who kills all first."""
        if self.line is not None and self.begun:
            self.line.close()
        else:
            process.signal_pidfd(self.pidfd, signal.SIGKILL)

    def leave(self) -> None:
        """Be in no stock of its cell any more, and close what is the spawner's of it but its pidfd."""
        self.cell.making.pop(self.number, None)
        for stock in (self.cell.ready, self.cell.fresh):
            if self in stock:
                stock.remove(self)
        self.control.close()
        if self.line is not None:
            self.line.close()

    def last_words(self) -> str:
        """Return why a blank could not go on, if it said so."""
        try:
            return self.control.recv(WORDS_BYTES)[:WORDS_BYTES].decode("utf-8", "replace")
        except OSError:
            return ""


class Request:
    """A box that the host asked for: its limits, whether it is a fresh one, its plan and its end of the stream."""

    __slots__ = ("box", "disk", "files", "fresh", "memory", "plan", "processes", "stream")

    def __init__(self, head: dict[str, Any], plan: bytes, stream: int) -> None:
        self.box: int = head["box"]
        self.memory: int | None = head["memory"]
        self.processes: int | None = head["processes"]
        self.disk: int | None = head["disk"]
        self.files: int | None = head["files"]
        self.fresh: bool = head["fresh"]
        self.plan = plan
        self.stream = stream


class Cell:
    """One zygote and what came from it."""

    def __init__(self, key: str, plan: dict[str, Any], control: socket.socket) -> None:
        self.key = key
        self.plan = plan
        self.home: str = plan["zygote"]["guest"]["home"]
        #: whether its boxes have wardens and private folders in place of namespaces
        self.warded = bool(plan["zygote"]["code"])
        self.uid: int | None = None
        self.control = control
        self.launcher: subprocess.Popen[bytes] | None = None
        self.block: Lease | None = None
        self.record = 0
        self.slot: Slot | None = None
        self.ids: IdPairs | None = None
        self.pidfd = -1
        #: blanks whose interpreter is forked, and those whose interpreter was executed
        self.ready: deque[Entry] = deque()
        self.fresh: deque[Entry] = deque()
        #: whether a fresh box was asked for, of this cell or the one it replaces
        self.fresh_asked = False
        self.waiting: deque[Request] = deque()
        self.making: dict[int, Entry] = {}
        self.boxes: set[Entry] = set()
        self.served = 0
        self.failures = 0
        self.live = False
        self.ended = False

    def entries(self) -> list[Entry]:
        """Return all its blanks and boxes."""
        return [*self.making.values(), *self.ready, *self.fresh, *self.boxes]

    def to_be_fresh(self, ahead: int) -> bool:
        """Say whether its next blank is to execute an interpreter, which takes longer than all else it has to do.

        `ahead`: how many such are to be ready.
        """
        if self.waiting:
            return self.waiting[0].fresh
        # Of two kinds that lack, a forked one first: it serves requests of both, a fresh one only its own.
        return len(self.fresh) < min(len(self.ready), ahead)

    def made(self, pidfd: int) -> bool:
        """Say whether `pidfd` means a child of its zygote, or one that is gone already.

        A zygote can get pidfds of strangers, of the peer of a socket for one, and what it names is put into a control
        group and killed.
        """
        try:
            return process.parent_of(pidfd) in (process.pid_of(self.pidfd), -1)
        except OSError:
            return False
