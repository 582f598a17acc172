"""The spawner's blanks and boxes: kept ready, handed over, frozen, killed, and cleared away when they are dead."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any

from kooi.contract.errors import KooiError
from kooi.linux import process
from kooi.spawn import messages
from kooi.spawn.cells import Cells, Loop
from kooi.spawn.entries import WORDS_BYTES, Cell, Entry, Request
from kooi.spawn.groups import Groups, Slot
from kooi.spawn.journal import Journal
from kooi.spawn.wards import Wards
from kooi.spawn.watchdog import Watchdog

# At most so many blanks with an executed interpreter: it shares no memory with any other, and few boxes are fresh.
FRESH_AHEAD = 2
# A zygote's queue holds about ten packets; it never gets more than it can take at once.
_MAKING = 8
_FAILURES = 3
_REFILL_SECONDS = 0.004
# The same for a box that has yet to execute its interpreter.
_EXECUTING_SECONDS = 0.012
# It is put off only while more than such a part of the stock is left: who asks without a pause must not run dry.
_PATIENCE = 4
_RETRY_SECONDS = 0.05
_END_SECONDS = 5.0


class Shop:
    """Everything the host can ask for, by the host's numbers."""

    def __init__(self, loop: Loop, groups: Groups, journal: Journal, config: dict[str, Any]) -> None:
        self._loop = loop
        self._groups = groups
        self._cells = Cells(loop, self, journal, config)
        self._ahead: int = config["blanks_ready"]
        self._boxes: dict[int, Entry] = {}
        self._numbers = 0
        self._later: dict[Cell, float] = {}
        self._wards = Wards(loop, journal, lambda box: self._struck(self._boxes[box], "disk_limit"), self._cells.family)
        self.watchdog = Watchdog(self._out_of_memory, self._struck, self._wards.gauge.bytes)
        loop.watch(groups.wakeup_fd, groups.deliver)

    def handle(self, operation: str, head: dict[str, Any], body: bytes, fds: list[int]) -> None:
        """Do what one packet of the host asks."""
        if operation == "open":
            self._open(Request(head, body, fds[0]), head["cell"])
        elif operation == "cell":
            self._start_cell(head["cell"], json.loads(body))
        elif operation == "kill":
            self._kill(head["box"])
        elif operation == "usage":
            self._usage(head["box"])
        elif operation in ("freeze", "thaw"):
            self._freeze(head["box"], operation == "freeze")
        else:
            messages.close_all(fds)

    def seconds(self) -> float | None:
        """Return in how many seconds `tick` wants to be called; None for never."""
        due = [max(0.0, when - time.monotonic()) for when in self._later.values()]
        watched = (self.watchdog.seconds(), self._wards.gauge.seconds())
        return min(due + [when for when in watched if when is not None], default=None)

    def tick(self) -> None:
        """Do what is due."""
        self.watchdog.tick()
        self._wards.gauge.tick()
        for cell, when in list(self._later.items()):
            if when <= time.monotonic():
                del self._later[cell]
                self._refill(cell)

    def close(self) -> None:
        """Kill every cell and remove all groups and folders."""
        entries = [entry for cell in self._cells.living() for entry in cell.entries()]
        self._cells.close()
        for entry in (each for each in entries if each.pidfd >= 0):
            # A cell's end is that of its boxes only where they are in namespaces of it.
            process.wait_pidfd(entry.pidfd, _END_SECONDS)
        self._groups.close()
        self._wards.close()

    def _start_cell(self, key: str, plan: dict[str, Any]) -> None:
        try:
            self._wards.furnish(plan)
        except (OSError, KooiError) as error:
            self._loop.tell_host({"cell": key, "failed": f"no private folders can be made: {error}"})
        else:
            self._cells.start(key, plan)

    # What becomes of cells.

    def cell_forked(self, cell: Cell) -> None:
        """Bound its zygote before that runs anything of the image."""
        if self._groups.present:
            self._groups.hold(process.pid_of(cell.pidfd), lambda slot, error: self._held(cell, slot, error))
        else:
            self._cells.begin(cell)

    def _held(self, cell: Cell, slot: Slot | None, error: Exception | None) -> None:
        cell.slot = slot
        if cell.pidfd < 0:
            self.cell_dead(cell)
        elif error is not None:
            self._cells.end(cell, f"its zygote could not be put into a control group: {error}")
        elif not cell.ended:
            self._cells.begin(cell)

    def cell_dead(self, cell: Cell) -> None:
        """Give back its zygote's control group."""
        if cell.slot is not None:
            self._groups.drop(cell.slot)
            cell.slot = None

    def cell_ready(self, cell: Cell) -> None:
        """Fill its stock of blanks."""
        self._refill(cell)

    def cell_ended(self, cell: Cell, reason: str) -> None:
        """Let go of its blanks, and tell the host about boxes that never came. Its boxes report their own end."""
        for entry in cell.entries():
            if entry.pidfd < 0:
                self._discard(entry)
            else:
                # Where the zygote is not the first process of a pid namespace, its end is not theirs.
                entry.strike()
        self._refuse_waiting(cell, reason)
        if reason != "replaced":
            self._loop.tell_host({"cell": cell.key, "failed": reason})

    def blank_made(self, cell: Cell, head: dict[str, Any], fds: list[int]) -> None:
        """Put a new blank into a control group; it waits until that is done."""
        entry = cell.making.get(head["blank"])
        if entry is not None and entry.pidfd < 0 and not fds and "failed" in head:
            # The kernel refused a fork. It may not the next time, but whoever waits must not wait for ever.
            self._discard(entry)
            self._refuse_waiting(cell, f"no process could be made: {str(head['failed'])[:WORDS_BYTES]}")
            self._later.setdefault(cell, time.monotonic() + _RETRY_SECONDS)
            return
        if entry is None or entry.pidfd >= 0 or len(fds) != 1 or not cell.made(fds[0]):
            messages.close_all(fds)
            self._cells.end(cell, "its zygote broke the protocol")
            return
        entry.pidfd = fds[0]
        entry.pid = process.pid_of(entry.pidfd)
        self._loop.watch(entry.pidfd, lambda: self._gone(entry))
        if entry.pid <= 0:
            return
        if self._groups.present:
            self._groups.attach(entry.pid, lambda slot, error: self._attached(entry, slot, error))
        else:
            self._attached(entry, None, None)

    def _refuse_waiting(self, cell: Cell, reason: str) -> None:
        for request in cell.waiting:
            os.close(request.stream)
            self._loop.tell_host({"box": request.box, "failed": reason})
        cell.waiting.clear()

    # Blanks.

    def _refill(self, cell: Cell) -> None:
        """Have as many blanks on the way as requests wait, and some more; each is told its kind once it is made."""
        if not cell.live or cell.ended:
            return
        wanted = len(cell.waiting) - len(cell.making)
        if self._cells.serving.get(cell.key) is cell:
            wanted += max(0, self._ahead - len(cell.ready)) + max(0, self._fresh_ahead(cell) - len(cell.fresh))
        for _ in range(min(wanted, _MAKING - len(cell.making))):
            if not self._make_blank(cell):
                # Ids for another may come only when a box ends: one of the other kind must do, and can.
                while cell.fresh and len(cell.waiting) > len(cell.making):
                    self._hand_over(cell.fresh.popleft(), cell.waiting.popleft())
                return

    def _fresh_ahead(self, cell: Cell) -> int:
        # None for a cell that nobody wants them of.
        return min(FRESH_AHEAD, self._ahead) if cell.fresh_asked else 0

    def _refill_soon(self, cell: Cell, seconds: float = _REFILL_SECONDS) -> None:
        """Refill in a moment: making a blank takes a CPU from the box that is just starting or ending."""
        if cell.waiting:
            self._refill(cell)
        elif not cell.ended and (cell not in self._later or _PATIENCE * len(cell.ready) > self._ahead):
            # While there is stock for more it waits until nothing has happened for that long.
            self._later[cell] = time.monotonic() + seconds

    def _make_blank(self, cell: Cell) -> bool:
        pair = cell.ids.take() if cell.ids is not None else None
        if cell.ids is not None and pair is None:
            return False
        self._numbers += 1
        theirs: list[socket.socket] = []
        try:
            ours, *theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            entry = Entry(self._numbers, cell, ours)
            entry.pair = pair
            told, lines = self._wards.give(cell, entry)
            theirs += lines
        except OSError:
            if cell.ids is not None and pair is not None:
                cell.ids.give_back(pair)
            self._later.setdefault(cell, time.monotonic() + _RETRY_SECONDS)
            messages.close_all([each.detach() for each in theirs])
            return False
        ours.setblocking(False)
        cell.making[entry.number] = entry
        ids = {} if pair is None else {"agent": pair[0], "code": pair[1]}
        try:
            messages.send(cell.control, {"blank": entry.number, **ids, **told}, fds=[each.fileno() for each in theirs])
        except OSError:
            # A zygote that does not read is broken or hostile.
            self._cells.end(cell, "its zygote does not answer")
            return False
        finally:
            messages.close_all([each.detach() for each in theirs])
        return True

    def _attached(self, entry: Entry, slot: Slot | None, error: Exception | None) -> None:
        cell = entry.cell
        entry.slot = slot
        if entry.pidfd < 0:
            # It died meanwhile; only its slot is left.
            if slot is not None:
                self._groups.give_back(slot)
            return
        if error is not None or cell.ended:
            entry.strike()
            return
        del cell.making[entry.number]
        fresh = cell.to_be_fresh(self._fresh_ahead(cell))
        entry.begun = True
        try:
            entry.control.send(messages.GO_FRESH if fresh else messages.GO_NOW if cell.waiting else messages.GO)
        except OSError:
            entry.strike()
            return
        if cell.waiting:
            self._hand_over(entry, cell.waiting.popleft())
        else:
            (cell.fresh if fresh else cell.ready).append(entry)
        self._refill(cell)

    # Boxes.

    def _open(self, request: Request, key: str) -> None:
        cell = self._cells.serving.get(key)
        if cell is None:
            os.close(request.stream)
            self._loop.tell_host({"box": request.box, "failed": "its cell is gone"})
            return
        cell.served += 1
        cell.fresh_asked |= request.fresh
        # A forked blank makes a fresh box too, by executing; the other way round would lack what is preloaded.
        stock = cell.fresh if request.fresh and cell.fresh else cell.ready
        if stock:
            self._hand_over(stock.popleft(), request)
            self._refill_soon(cell, _EXECUTING_SECONDS if request.fresh and stock is cell.ready else _REFILL_SECONDS)
        else:
            cell.waiting.append(request)
            self._refill(cell)
        self._cells.rotate(cell)

    def _hand_over(self, entry: Entry, request: Request) -> None:
        """Make a blank the host's box: its limits, then its plan and stream."""
        cell = entry.cell
        entry.box = request.box
        cell.failures = 0
        cell.boxes.add(entry)
        self._boxes[request.box] = entry
        try:
            if entry.slot is not None:
                self._groups.limit(entry.slot, request.memory, request.processes)
            else:
                self.watchdog.add(entry, request.memory, request.processes if cell.warded else None)
            self._wards.begin(entry, request)
            socket.send_fds(entry.control, [request.plan], [request.stream])
            if entry.slot is not None:
                entry.slot.start_clock()
        except (OSError, KooiError) as error:
            said = entry.last_words() or f"its blank could not be given the plan: {error}"
            self._loop.tell_host({"box": request.box, "failed": said})
            entry.strike()
        finally:
            os.close(request.stream)
        self._loop.watch(entry.control.fileno(), lambda: self._hear(entry))

    def _hear(self, entry: Entry) -> None:
        """A blank says only why it could not become a box; that it could is the end of its control socket."""
        said = entry.last_words()
        self._loop.forget(entry.control.fileno())
        if said:
            self._loop.tell_host({"box": entry.box, "failed": said})
            entry.strike()
        else:
            # Not said before: the host would be woken to hear it while the box is on its way.
            slot = entry.slot.describe() if entry.slot is not None else None
            self._loop.tell_host({"box": entry.box, "opened": entry.pid, "slot": slot})

    def _kill(self, box: int) -> None:
        entry = self._boxes.get(box)
        if entry is not None:
            if entry.slot is not None and not entry.cell.warded:
                # The first process's end is the end of all, but only after its own teardown: this takes them at once.
                with contextlib.suppress(OSError, KooiError):
                    entry.slot.group.strike()
            entry.strike()
            self._refill_soon(entry.cell)
            return
        for cell in self._cells.living():
            for request in list(cell.waiting):
                if request.box == box:
                    cell.waiting.remove(request)
                    os.close(request.stream)
                    self._cells.retire(cell)
        # Not there, or not any more: either way nothing of it is left.
        self._loop.tell_host({"box": box, "exited": {}})

    def _freeze(self, box: int, frozen: bool) -> None:
        entry = self._boxes.get(box)
        if entry is not None and entry.slot is not None:
            if frozen:
                entry.slot.group.freeze()
            else:
                entry.slot.group.thaw()

    def _usage(self, box: int) -> None:
        entry = self._boxes.get(box)
        used = self.watchdog.usage(entry) if entry is not None else {}
        self._loop.tell_host({"box": box, "usage": used})

    def _out_of_memory(self, entry: Entry) -> None:
        self._loop.tell_host({"box": entry.box, "oom": 1})
        entry.strike()

    def _struck(self, entry: Entry, status: str) -> None:
        self._loop.tell_host({"box": entry.box, "struck": status})
        entry.strike()

    # Ends.

    def _gone(self, entry: Entry) -> None:
        """All processes of a blank or box are dead: it is over once nothing is left of its folder either."""
        self._loop.forget(entry.pidfd)
        self._wards.end(entry, lambda: self._over(entry))

    def _over(self, entry: Entry) -> None:
        """Report a blank's or box's end and give back what it had."""
        cell, said = entry.cell, entry.last_words()
        if entry.box is None:
            self._discard(entry)
            if not cell.ended:
                self._blank_failed(cell, said)
        else:
            final = entry.slot.final() if entry.slot is not None else self.watchdog.remove(entry)
            # First of all: what is given back now is only ours, and no request finds it before this is done.
            self._loop.tell_host({"box": entry.box, "failed": said} if said else {"box": entry.box, "exited": final})
            self._discard(entry)
            del self._boxes[entry.box]
            cell.boxes.discard(entry)
        self._refill_soon(cell)
        self._cells.retire(cell)

    def _blank_failed(self, cell: Cell, said: str) -> None:
        """Give a cell up whose blanks die one after the other."""
        cell.failures += 1
        if cell.failures >= _FAILURES:
            self._cells.end(cell, f"its blanks die before use: {said or 'no reason given'}")

    def _discard(self, entry: Entry) -> None:
        cell = entry.cell
        cell.making.pop(entry.number, None)
        for stock in (cell.ready, cell.fresh):
            if entry in stock:
                stock.remove(entry)
        self._loop.forget(entry.control.fileno())
        entry.control.close()
        if entry.line is not None:
            entry.line.close()
        if entry.pidfd >= 0:
            self._loop.forget(entry.pidfd)
            if cell.ended:
                # It may have become ours when its zygote died.
                process.reap_pidfd(entry.pidfd)
            os.close(entry.pidfd)
            entry.pidfd = -1
        if entry.slot is not None:
            self._groups.give_back(entry.slot)
            entry.slot = None
        if entry.pair is not None and cell.ids is not None:
            cell.ids.give_back(entry.pair)
            entry.pair = None
