"""Cells, blanks and boxes as the spawner keeps them: which exist, who waits for one, and what is left of one that ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from kooi.linux import cgroup, process
from kooi.spawn import messages
from kooi.spawn.cell import zygote_argv
from kooi.spawn.groups import Groups
from kooi.spawn.ids import IdPairs
from kooi.spawn.leases import Leases

if TYPE_CHECKING:
    from kooi.spawn.spawner import Spawner

_TICK_SECONDS = 0.02
_CODE_INSIDE = 1000
_MAKING = 8


class Entry:
    """One blank, later one box."""

    __slots__ = ("box", "cell", "control", "group", "number", "pair", "pid", "pidfd", "started", "watch_bytes")

    def __init__(self, number: int, cell: Cell, group: cgroup.Group | None, control: socket.socket) -> None:
        self.number = number
        self.cell = cell
        self.group = group
        self.control = control
        self.pair: tuple[int, int] | None = None
        self.pidfd = -1
        self.pid = 0
        self.box: int | None = None
        self.started = 0.0
        self.watch_bytes: int | None = None


class Request:
    """A box that the host asked for."""

    __slots__ = ("box", "memory", "plan", "processes", "stream", "watch")

    def __init__(self, head: dict[str, Any], plan: bytes, stream: int) -> None:
        self.box: int = head["box"]
        self.memory: int | None = head["memory"]
        self.processes: int | None = head["processes"]
        self.watch: bool = head["watch"]
        self.plan = plan
        self.stream = stream


class Cell:
    """One zygote and what came from it."""

    def __init__(self, key: str, plan: dict[str, Any], control: socket.socket) -> None:
        self.key = key
        self.plan = plan
        self.control = control
        self.ids: IdPairs | None = None
        self.block: Any = None
        self.pidfd = -1
        self.ready: deque[Entry] = deque()
        self.waiting: deque[Request] = deque()
        self.making: dict[int, Entry] = {}
        self.boxes = 0
        self.served = 0
        self.live = False
        self.retired = False


class Shop:
    """Everything the spawner has: cells by key, boxes by the host's number."""

    def __init__(self, loop: Spawner, groups: Groups, config: dict[str, Any]) -> None:
        self._loop = loop
        self._groups = groups
        self._config = config
        self._ahead: int = config["blanks_ready"]
        self._cells: dict[str, Cell] = {}
        self._all_cells: list[Cell] = []
        self._boxes: dict[int, Entry] = {}
        self._watched: list[Entry] = []
        self._numbers = 0
        self._leases = (
            Leases(config["run_dir"], config["uid_base"], config["uid_count"], block=config["uid_block"])
            if config["ids"] == "root"
            else None
        )
        loop.watch(groups.wakeup_fd, groups.deliver)

    # -- what the host asks ------------------------------------------------------------------------------------

    def handle(self, operation: str, head: dict[str, Any], body: bytes, fds: list[int]) -> None:
        """Do what one packet of the host asks."""
        if operation == "open":
            self._open(head, body, fds[0])
        elif operation == "kill":
            self._kill(head["box"])
        elif operation == "cell":
            self._start_cell(head["cell"], json.loads(body))
        elif operation in ("freeze", "thaw"):
            self._freeze(head["box"], operation == "freeze")
        elif operation == "drop":
            self._drop_cell(head["cell"])
        else:
            messages.close_all(fds)

    def _open(self, head: dict[str, Any], plan: bytes, stream: int) -> None:
        request = Request(head, plan, stream)
        cell = self._cells.get(head["cell"])
        if cell is None:
            os.close(stream)
            self._loop.tell_host({"box": request.box, "failed": "its cell is gone"})
            return
        cell.served += 1
        if cell.ready:
            self._hand_over(cell.ready.popleft(), request)
        else:
            cell.waiting.append(request)
        self._refill(cell)

    def _kill(self, box: int) -> None:
        entry = self._boxes.get(box)
        if entry is not None:
            process.signal_pidfd(entry.pidfd, signal.SIGKILL)
            return
        for cell in self._all_cells:
            for request in list(cell.waiting):
                if request.box == box:
                    cell.waiting.remove(request)
                    os.close(request.stream)
                    self._loop.tell_host({"box": box, "exited": {}})

    def _freeze(self, box: int, frozen: bool) -> None:
        entry = self._boxes.get(box)
        if entry is not None and entry.group is not None:
            if frozen:
                entry.group.freeze()
            else:
                entry.group.thaw()
            self._loop.tell_host({"box": box, "frozen": frozen})

    # -- cells -------------------------------------------------------------------------------------------------

    def _start_cell(self, key: str, plan: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        cell = Cell(key, plan, ours)
        try:
            self._give_ids(cell, plan)
            self._launch(plan, theirs)
        except Exception as error:
            ours.close()
            self._loop.tell_host({"cell": key, "failed": f"{type(error).__name__}: {error}"})
            return
        finally:
            theirs.close()
        self._cells[key] = cell
        self._all_cells.append(cell)
        self._loop.watch(ours.fileno(), lambda: self._from_zygote(cell))
        if plan["isolated"]:
            messages.send(ours, plan["build"])
        else:
            messages.send(ours, plan["zygote"])

    def _give_ids(self, cell: Cell, plan: dict[str, Any]) -> None:
        build = plan["build"]
        if plan["ids"] == "root" and self._leases is not None:
            cell.block = self._leases.take()
            build["id_base"], build["id_count"] = cell.block.first, cell.block.count
            cell.ids = IdPairs(cell.block.count)
        elif plan["ids"] == "subuid":
            cell.ids = IdPairs(build["id_count"] + 1)

    def _launch(self, plan: dict[str, Any], control: socket.socket) -> None:
        fd = control.fileno()
        if plan["isolated"]:
            boot = f"import sys; sys.path.insert(0, {plan['source']!r}); from kooi.spawn.cell import main; main({fd})"
            argv = [sys.executable, "-I", "-S", "-B", "-c", boot]
        else:
            argv = zygote_argv(plan["zygote"]["python"], plan["source"], fd)
        env = dict(plan["env"])
        # The id tools of an ordinary user are found on the usual path.
        env.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        self._child = subprocess.Popen(argv, pass_fds=(fd,), env=env, stdin=subprocess.DEVNULL, start_new_session=True)

    def _from_zygote(self, cell: Cell) -> None:
        try:
            head, _body, fds = messages.receive(cell.control)
        except (OSError, ValueError):
            head, fds = None, []
        if head is None:
            self._cell_ended(cell, "its zygote ended")
        elif "blank" in head:
            self._blank_made(cell, head, fds)
        elif "failed" in head:
            self._cell_ended(cell, str(head["failed"])[:2000])
        elif "cell" in head and fds:
            cell.pidfd = fds[0]
            self._child.wait()
            messages.send(cell.control, cell.plan["zygote"])
        elif head.get("ready") is True:
            cell.live = True
            self._loop.tell_host({"cell": cell.key, "ready": True})
            self._refill(cell)

    def _cell_ended(self, cell: Cell, reason: str) -> None:
        self._loop.forget(cell.control.fileno())
        cell.control.close()
        if cell.pidfd >= 0:
            process.signal_pidfd(cell.pidfd, signal.SIGKILL)
            os.close(cell.pidfd)
            cell.pidfd = -1
        if self._cells.get(cell.key) is cell:
            del self._cells[cell.key]
        for entry in list(cell.making.values()):
            self._discard(entry)
        for request in cell.waiting:
            os.close(request.stream)
            self._loop.tell_host({"box": request.box, "failed": reason})
        cell.waiting.clear()
        self._loop.tell_host({"cell": cell.key, "failed": reason})

    def _drop_cell(self, key: str) -> None:
        cell = self._cells.get(key)
        if cell is not None:
            self._cell_ended(cell, "closed")

    # -- blanks ------------------------------------------------------------------------------------------------

    def _refill(self, cell: Cell) -> None:
        """Have as many blanks on the way as requests wait, and `ahead` more."""
        if not cell.live:
            return
        wanted = len(cell.waiting) + self._ahead - len(cell.ready) - len(cell.making)
        # A zygote's queue holds about ten packets; it never gets more than it can take at once.
        for _ in range(min(wanted, _MAKING - len(cell.making))):
            if not self._make_blank(cell):
                return

    def _make_blank(self, cell: Cell) -> bool:
        pair = cell.ids.take() if cell.ids is not None else None
        if cell.ids is not None and pair is None:
            return False
        self._numbers += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        entry = Entry(self._numbers, cell, self._groups.new(), ours)
        entry.pair = pair
        cell.making[entry.number] = entry
        head: dict[str, Any] = {"blank": entry.number}
        if pair is not None:
            head |= {"agent": pair[0], "code": pair[1], "code_inside": _CODE_INSIDE}
        messages.send(cell.control, head, fds=[theirs.fileno()])
        theirs.close()
        return True

    def _blank_made(self, cell: Cell, head: dict[str, Any], fds: list[int]) -> None:
        entry = cell.making.get(head["blank"])
        if entry is None or not fds:
            messages.close_all(fds)
            if entry is not None:
                self._discard(entry)
            return
        entry.pidfd = fds[0]
        entry.pid = process.pid_of(entry.pidfd)
        self._loop.watch(entry.pidfd, lambda: self._gone(entry))
        if entry.pid <= 0:
            return
        if entry.group is not None:
            self._groups.attach(entry.group, entry.pid, lambda error: self._attached(entry, error))
        else:
            self._attached(entry, None)

    def _attached(self, entry: Entry, error: OSError | None) -> None:
        cell = entry.cell
        if cell.making.pop(entry.number, None) is None:
            return
        if error is not None:
            cell.making[entry.number] = entry
            process.signal_pidfd(entry.pidfd, signal.SIGKILL)
            return
        try:
            entry.control.send(b"go")
        except OSError:
            return
        if cell.waiting:
            self._hand_over(entry, cell.waiting.popleft())
        else:
            cell.ready.append(entry)
        self._refill(cell)

    def _hand_over(self, entry: Entry, request: Request) -> None:
        """Make a blank the host's box: its limits, then its plan and stream."""
        entry.box = request.box
        entry.cell.boxes += 1
        self._boxes[request.box] = entry
        try:
            if entry.group is not None:
                entry.group.set_limits(request.memory, request.processes)
            elif request.watch:
                entry.watch_bytes = request.memory
                self._watched.append(entry)
            entry.control.setblocking(False)
            socket.send_fds(entry.control, [request.plan], [request.stream])
        except OSError as error:
            self._loop.tell_host({"box": request.box, "failed": f"its blank could not be given the plan: {error}"})
            process.signal_pidfd(entry.pidfd, signal.SIGKILL)
        finally:
            os.close(request.stream)
        entry.started = time.monotonic()
        self._loop.watch(entry.control.fileno(), lambda: self._from_blank(entry))
        paths = entry.group.paths if entry.group is not None else None
        self._loop.tell_host({"box": request.box, "opened": entry.pid, "paths": paths})

    def _from_blank(self, entry: Entry) -> None:
        try:
            data = entry.control.recv(4096)
        except OSError:
            data = b""
        self._loop.forget(entry.control.fileno())
        if data:
            self._loop.tell_host({"box": entry.box, "failed": data[:2000].decode("utf-8", "replace")})
            process.signal_pidfd(entry.pidfd, signal.SIGKILL)

    # -- ends --------------------------------------------------------------------------------------------------

    def _gone(self, entry: Entry) -> None:
        """All processes of a blank or box are dead: report it and give back what it had."""
        self._loop.forget(entry.pidfd)
        self._loop.forget(entry.control.fileno())
        final: dict[str, Any] = {}
        if entry.group is not None:
            final = usage_of(entry.group)
        self._discard(entry)
        if entry.box is not None:
            del self._boxes[entry.box]
            entry.cell.boxes -= 1
            if entry in self._watched:
                self._watched.remove(entry)
            self._loop.tell_host({"box": entry.box, "exited": final})
        self._refill(entry.cell)

    def _discard(self, entry: Entry) -> None:
        entry.cell.making.pop(entry.number, None)
        if entry in entry.cell.ready:
            entry.cell.ready.remove(entry)
        entry.control.close()
        if entry.pidfd >= 0:
            os.close(entry.pidfd)
            entry.pidfd = -1
        if entry.group is not None:
            entry.group.remove()
        if entry.pair is not None and entry.cell.ids is not None:
            entry.cell.ids.give_back(entry.pair)
            entry.pair = None

    def tick_seconds(self) -> float | None:
        """Return after how long `tick` wants to be called."""
        return _TICK_SECONDS if self._watched else None

    def tick(self) -> None:
        """Look at the boxes whose memory no control group holds."""

    def close(self) -> None:
        """Kill every cell, wait until all is dead, remove all groups."""
        for cell in self._all_cells:
            if cell.pidfd >= 0:
                process.signal_pidfd(cell.pidfd, signal.SIGKILL)
            cell.control.close()
        self._groups.close()


def usage_of(group: cgroup.Group) -> dict[str, Any]:
    """Return a group's counters as the host gets them."""
    counters = group.usage()
    return {"counters": list(counters), "oom": group.oom_kills(), "pids": group.pids_hits()}
