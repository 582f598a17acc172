"""The spawner's cells: building one, hearing from its zygote, replacing one that has served long enough, ending one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Protocol

from kooi.contract.errors import KooiError
from kooi.linux import process, subids
from kooi.spawn import messages
from kooi.spawn.cell import zygote_argv
from kooi.spawn.entries import Cell
from kooi.spawn.ids import IdPairs
from kooi.spawn.journal import Journal
from kooi.spawn.leases import Leases

_TOOLS_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REASON_BYTES = 2000
_END_SECONDS = 5.0


class Loop(Protocol):
    """What cells and boxes use of the spawner's event loop."""

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `fd` is readable."""

    def forget(self, fd: int) -> None:
        """Stop watching `fd`."""

    def tell_host(self, head: dict[str, Any]) -> None:
        """Send the host an event."""


class Owner(Protocol):
    """Who hears what becomes of a cell."""

    def cell_forked(self, cell: Cell) -> None:
        """Its first process is there and waits for `Cells.begin`."""

    def cell_dead(self, cell: Cell) -> None:
        """Everything in it is dead."""

    def cell_ready(self, cell: Cell) -> None:
        """Its zygote is warm."""

    def cell_ended(self, cell: Cell, reason: str) -> None:
        """It is dead; nothing more comes from it."""

    def blank_made(self, cell: Cell, head: dict[str, Any], fds: list[int]) -> None:
        """Its zygote reports a blank."""


class Cells:
    """All cells, the serving one of each key among them."""

    def __init__(self, loop: Loop, owner: Owner, journal: Journal, config: dict[str, Any]) -> None:
        self._loop = loop
        self._owner = owner
        self._journal = journal
        self._rotate_after: int = config["rotate_after"]
        self.serving: dict[str, Cell] = {}
        self._all: set[Cell] = set()
        self._next: dict[str, Cell] = {}
        self._leases = (
            Leases(config["run_dir"], config["uid_base"], config["uid_count"], block=config["uid_block"])
            if config["ids"] in ("root", "leased")
            else None
        )

    def start(self, key: str, plan: dict[str, Any]) -> None:
        """Build the cell that serves `key` from now on; the host is told when it is ready or why not."""
        if key in self.serving:
            if self.serving[key].live:
                self._loop.tell_host({"cell": key, "ready": True})
            return
        cell = self._build(key, plan)
        if cell is not None:
            self.serving[key] = cell

    def rotate(self, cell: Cell) -> None:
        """Begin to replace a cell that has served long enough; it goes on until the new one is ready."""
        if cell.served >= self._rotate_after and cell.key not in self._next:
            successor = self._build(cell.key, cell.plan)
            if successor is not None:
                self._next[cell.key] = successor

    def end(self, cell: Cell, reason: str) -> None:
        """Kill a cell and all in it; its ids come back when it is dead."""
        if cell.ended:
            return
        cell.ended = True
        self._loop.forget(cell.control.fileno())
        cell.control.close()
        for table in (self.serving, self._next):
            if table.get(cell.key) is cell:
                del table[cell.key]
        self._owner.cell_ended(cell, reason)
        if cell.pidfd < 0:
            self._dead(cell)
            return
        process.signal_pidfd(cell.pidfd, signal.SIGKILL)
        self._loop.watch(cell.pidfd, lambda: self._dead(cell))

    def _dead(self, cell: Cell) -> None:
        """Its first process is dead, and with that everything: give back what it had."""
        self._all.discard(cell)
        if cell.pidfd >= 0:
            self._loop.forget(cell.pidfd)
            process.reap_pidfd(cell.pidfd)
            os.close(cell.pidfd)
            cell.pidfd = -1
        if cell.launcher is not None:
            # It is its zygote already, or ends at once without a socket.
            cell.launcher.wait()
        self._owner.cell_dead(cell)
        if cell.block is not None:
            cell.block.release()
            self._journal.done(cell.record)
            cell.block = None

    def close(self) -> None:
        """Kill every cell and wait until each is dead."""
        for cell in list(self._all):
            self.end(cell, "closed")
        for cell in list(self._all):
            process.wait_pidfd(cell.pidfd, _END_SECONDS)
            self._dead(cell)

    def _build(self, key: str, plan: dict[str, Any]) -> Cell | None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        cell = Cell(key, plan, ours)
        try:
            self._lease(cell)
            cell.launcher = _launch(plan, theirs)
            if not plan["isolated"]:
                cell.pidfd = process.open_pidfd(cell.launcher.pid)
            messages.send(ours, plan["build"] if plan["isolated"] else plan["zygote"])
        except (OSError, KooiError) as error:
            ours.close()
            self._dead(cell)
            self._loop.tell_host({"cell": key, "failed": f"{type(error).__name__}: {error}"})
            return None
        finally:
            theirs.close()
        ours.setblocking(False)
        self._all.add(cell)
        self._loop.watch(ours.fileno(), lambda: self._hear(cell))
        return cell

    def _lease(self, cell: Cell) -> None:
        build = cell.plan["build"] = dict(cell.plan["build"])
        if cell.plan["ids"] in ("root", "leased") and self._leases is not None:
            cell.block = self._leases.take()
            # The lease is a lock that the kernel drops with us; the record lets the reaper look for strays.
            cell.record = self._journal.intend("uid_block", base=cell.block.base, count=cell.block.count)
            if cell.plan["ids"] == "leased":
                cell.uid = cell.block.base
                cell.plan["zygote"] = {**cell.plan["zygote"], "uid": cell.uid}
                return
            build["id_base"], build["id_count"] = cell.block.base, cell.block.count
            cell.ids = IdPairs(cell.block.count)
        elif cell.plan["ids"] == "subuid":
            build["id_base"], build["id_count"] = subids.first("/etc/subuid")
            build["gid_base"], build["gid_count"] = subids.first("/etc/subgid")
            cell.ids = IdPairs(min(build["id_count"], build["gid_count"]) + 1)

    def _hear(self, cell: Cell) -> None:
        """Take one packet of a zygote (or of what becomes one); anything out of order is its end."""
        try:
            head, _body, fds = messages.receive(cell.control)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            head, fds = None, []
        if head is None:
            self.end(cell, "its zygote ended")
        elif isinstance(head.get("blank"), int) and cell.live:
            self._owner.blank_made(cell, head, fds)
        elif "failed" in head:
            messages.close_all(fds)
            self.end(cell, str(head["failed"])[:_REASON_BYTES])
        elif "cell" in head and len(fds) == 1 and cell.pidfd < 0:
            self._first_process(cell, fds[0])
        elif head.get("ready") is True and not cell.live:
            self._ready(cell)
        else:
            messages.close_all(fds)
            self.end(cell, "its zygote broke the protocol")

    def _first_process(self, cell: Cell, pidfd: int) -> None:
        cell.pidfd = pidfd
        # Only once its launcher is gone is the first process ours, and may ask for a signal at our end.
        if cell.launcher is not None:
            cell.launcher.wait()
        self._owner.cell_forked(cell)

    def begin(self, cell: Cell) -> None:
        """Let the first process of a cell become its zygote."""
        try:
            messages.send(cell.control, cell.plan["zygote"])
        except ConnectionError:
            # It is gone already: its last words, and its end, wait to be heard.
            return
        except OSError as error:
            self.end(cell, f"its first process does not answer: {error}")

    def _ready(self, cell: Cell) -> None:
        cell.live = True
        if self._next.get(cell.key) is cell:
            del self._next[cell.key]
            old = self.serving.get(cell.key)
            self.serving[cell.key] = cell
            if old is not None:
                cell.fresh_asked = old.fresh_asked
                self.retire(old)
        else:
            self._loop.tell_host({"cell": cell.key, "ready": True})
        self._owner.cell_ready(cell)

    def living(self) -> list[Cell]:
        """Return every cell that has not ended: those that serve, their successors, and replaced ones with boxes."""
        return [cell for cell in self._all if not cell.ended]

    def family(self) -> set[int]:
        """Return the pids of all zygotes, and of all blanks and boxes, which become ours when theirs dies."""
        zygotes = {cell.launcher.pid for cell in self._all if cell.launcher is not None}
        return zygotes | {entry.pid for cell in self._all for entry in cell.entries()}

    def retire(self, cell: Cell) -> None:
        """End a cell that no longer serves as soon as its last box is gone."""
        if self.serving.get(cell.key) is not cell and not cell.boxes and not cell.waiting:
            self.end(cell, "replaced")


def _launch(plan: dict[str, Any], control: socket.socket) -> subprocess.Popen[bytes]:
    fd = control.fileno()
    if plan["isolated"]:
        boot = f"import sys; sys.path.insert(0, {plan['source']!r}); from kooi.spawn.cell import main; main({fd})"
        argv = [sys.executable, "-I", "-S", "-B", "-c", boot]
    else:
        argv = zygote_argv(plan["zygote"]["python"], plan["source"], fd)
    # newuidmap and newgidmap are found on the usual path.
    env = {"PATH": _TOOLS_PATH, **dict(plan["env"])}
    return subprocess.Popen(argv, pass_fds=(fd,), env=env, stdin=subprocess.DEVNULL, start_new_session=True)
