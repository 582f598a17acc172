"""What boxes without namespaces have in their place: a private folder that is watched, and a line to a warden."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from kooi.contract.errors import KooiError
from kooi.linux import process
from kooi.spawn.cells import Loop
from kooi.spawn.entries import Cell, Entry, Request
from kooi.spawn.homes import Gauge, Homes
from kooi.spawn.journal import Journal

_SWEEP_SECONDS = 2.0
_BETWEEN_KILLS = 0.002


class Wards:
    """The folders and lines of all boxes of cells that are `warded`; the others pass through untouched."""

    def __init__(
        self, loop: Loop, journal: Journal, full: Callable[[int], None], family: Callable[[], set[int]]
    ) -> None:
        """`family` returns the pids of all children that are known."""
        self._family = family
        self._homes = Homes(journal)
        #: calls `full` with the host's number of a box whose folder holds more than it may
        self.gauge = Gauge(self._homes, full)
        loop.watch(self._homes.wakeup_fd, self._homes.deliver)

    def furnish(self, plan: dict[str, Any]) -> None:
        """Tell the zygote of a warded cell where the folders of its boxes will be. Raises `OSError` or `KooiError`."""
        if plan["zygote"]["code"]:
            plan["zygote"]["homes"] = self._homes.path

    def give(self, cell: Cell, entry: Entry) -> tuple[dict[str, Any], list[socket.socket]]:
        """Give a blank a folder and a line; return what its zygote is told of them. Raises `OSError`."""
        if not cell.warded:
            return {}, []
        entry.line, theirs = socket.socketpair()
        entry.folder = self._homes.make(cell.uid, cell.plan["build"]["datasets"])
        return {"folder": f"{self._homes.path}/{entry.folder}"}, [theirs]

    def begin(self, entry: Entry, request: Request) -> None:
        """Watch a new box's folder."""
        if entry.folder:
            self.gauge.add(request.box, entry.folder, request.disk, request.files)

    def end(self, entry: Entry, then: Callable[[], None]) -> None:
        """Take away what a dead box or blank had, then call `then`."""
        if not entry.cell.warded:
            then()
            return
        if entry.slot is not None:
            # It is empty, unless somebody killed the warden alone.
            with contextlib.suppress(OSError, KooiError):
                entry.slot.group.strike()
        self._sweep()
        if entry.box is not None:
            self.gauge.remove(entry.box)
        self._homes.remove(entry.folder, then)

    def _sweep(self) -> None:
        """Kill what a warden left that somebody killed alone. It came to us, so its numbers are nobody else's."""
        process.reap_orphans()
        deadline = time.monotonic() + _SWEEP_SECONDS
        while (strays := process.children() - self._family()) and time.monotonic() < deadline:
            for pid in strays:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_BETWEEN_KILLS)
            process.reap_orphans()

    def close(self) -> None:
        """Remove all folders; every box is dead."""
        # Whoever inherits them may be a process 1 that reaps nothing, in a container.
        process.reap_orphans()
        self._homes.close()
