"""What the spawner keeps count of: cells, the blanks and boxes that came from them, and boxes that are asked for."""

from __future__ import annotations

import socket
import subprocess
from collections import deque
from typing import Any

from kooi.spawn.groups import Slot
from kooi.spawn.ids import IdPairs
from kooi.spawn.leases import Lease


class Watch:
    """One watched box: its limit, the resident size and sockets it began with, its workspace, what was seen so far.

    `outside` is the device that the workspace's path is on where nothing is mounted there.
    """

    __slots__ = ("base", "cpu_ns", "limit", "outside", "peak", "pids_peak", "reported", "sockets", "workspace")

    def __init__(self, limit: int | None, base: int, workspace: str, outside: int, sockets: int) -> None:
        self.limit = limit
        self.base = base
        self.workspace = workspace
        self.outside = outside
        self.sockets = sockets
        self.peak = self.cpu_ns = self.pids_peak = 0
        self.reported = False


class Entry:
    """One blank, later one box. `box` is the host's number for it, None while it is a blank."""

    __slots__ = ("box", "cell", "control", "number", "pair", "pid", "pidfd", "slot", "watch")

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


class Request:
    """A box that the host asked for: its limits, whether it is a fresh one, its plan and its end of the stream."""

    __slots__ = ("box", "fresh", "memory", "plan", "processes", "stream")

    def __init__(self, head: dict[str, Any], plan: bytes, stream: int) -> None:
        self.box: int = head["box"]
        self.memory: int | None = head["memory"]
        self.processes: int | None = head["processes"]
        self.fresh: bool = head["fresh"]
        self.plan = plan
        self.stream = stream


class Cell:
    """One zygote and what came from it."""

    def __init__(self, key: str, plan: dict[str, Any], control: socket.socket) -> None:
        self.key = key
        self.plan = plan
        self.home: str = plan["zygote"]["guest"]["home"]
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
