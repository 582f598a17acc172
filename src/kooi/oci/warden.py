"""The warden: one small process per host process that owns the containers of a runtime that has no daemon.

Theory of operation. It is a spawner (see `spawn.spawner`: same loop, journal, control groups, and end of everything
when its owner ends) whose boxes are not forked but started by an OCI runtime:

    host ──packets──▶ warden ──fork──▶ berth ──exec──▶ runc or crun ──▶ container (process 1 is our agent)
      ▲                 └── control group, ids, pidfd of every container          │
      └────────── stream of the box: a socket pair, handed down at the gate ◀────┘

A berth waits in a control group of its own before anybody asks. When the runtime has started the container it ends, and
the container, an orphan, becomes the warden's child; it gets warm and waits at its gate. Only there does it get its
limits and its stream: what the runtime used is not the box's. A moment after a request more containers of its kind are
made (same bundle, same program) and left at their gates for the next ones; nothing of anybody's is in them, for code,
files and environment come over the stream. A container serves one box. It is killed by its control group and its pidfd.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections import deque
from typing import Any

from kooi.contract.errors import KooiError
from kooi.linux import process
from kooi.oci import berth
from kooi.oci.places import (
    WORDS_BYTES,
    ContainerGroups,
    Kind,
    Place,
    Request,
    last_words,
    read,
    reap,
    reap_strays,
    remove_below,
    to_keep,
)  # fmt: skip
from kooi.spawn import messages
from kooi.spawn.groups import Slot
from kooi.spawn.ids import IdPairs
from kooi.spawn.journal import Journal
from kooi.spawn.leases import Lease, Leases
from kooi.spawn.spawner import Spawner
from kooi.spawn.spawner import main as spawner_main

_GONE_SECONDS, _REFILL_SECONDS = 5.0, 0.01
_FAILURES = 3
_READYING_BYTES, _READYING_PROCESSES = 1 << 30, 64


class Warden:
    """Everything the host can ask for, by the host's numbers."""

    def __init__(self, loop: Spawner, groups: ContainerGroups, journal: Journal, config: dict[str, Any]) -> None:
        self._loop = loop
        self._groups = groups
        self._journal = journal
        self._ahead: int = config["ahead"]
        self._keep = to_keep(config["groups"])
        self._kinds: dict[str, Kind] = {}
        self._latest: Kind | None = None
        self._waiting: deque[Request] = deque()
        self._berths: list[Place] = []
        self._places: set[Place] = set()
        self._boxes: dict[int, Place] = {}
        self._due: float | None = None
        leases = Leases(config["run_dir"], config["uid_base"], config["uid_count"], block=config["uid_block"])
        self._lease: Lease = leases.take()
        self._record = journal.intend("uid_block", base=self._lease.base, count=self._lease.count)
        self._pairs = IdPairs(self._lease.count)
        leases.close()
        loop.watch(groups.wakeup_fd, groups.deliver)
        self._refill()

    def describe(self) -> dict[str, Any]:
        """Return what the host is told about control groups."""
        return self._groups.describe()

    def seconds(self) -> float | None:
        """Return in how many seconds `tick` wants to be called; None for never."""
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def tick(self) -> None:
        """Make containers ahead when nothing has happened for a moment."""
        if self._due is not None and self._due <= time.monotonic():
            self._due = None
            self._stock_up()
            # Not while a runtime works: its container, not known yet, is no stray. Its end brings us here again.
            if all(each.kind is None or each.started for each in self._places):
                reap_strays({each.pid for each in self._places})

    def handle(self, operation: str, head: dict[str, Any], body: bytes, fds: list[int]) -> None:
        """Do what one packet of the host asks."""
        if operation == "open":
            self._open(head, body, fds)
            return
        messages.close_all(fds)
        if operation == "kill":
            self._kill(head["box"])
        elif operation == "usage":
            self._loop.tell_host({"box": head["box"], "usage": {}})
        elif operation in ("freeze", "thaw"):
            self._freeze(head["box"], operation == "freeze")
        elif operation == "forget":
            self._forget()

    def close(self) -> None:
        """Kill every container and berth, wait until each is dead, and remove all groups."""
        for place in list(self._places):
            self._strike(place)
        for place in list(self._places):
            process.wait_pidfd(place.pidfd, _GONE_SECONDS)
            process.reap_pidfd(place.pidfd)
        self._groups.close()
        self._lease.release()
        self._journal.done(self._record)

    def _open(self, head: dict[str, Any], body: bytes, fds: list[int]) -> None:
        """Take a request; with the first of its kind come the bundle, and the program of process 1."""
        if len(fds) > 1:
            self._kinds[head["kind"]] = Kind(json.loads(body), head["argv"], fds.pop())
        kind = self._latest = self._kinds[head["kind"]]
        request = Request(head["box"], kind, (head["memory"], head["processes"]), fds[0])
        if kind.blanks:
            self._hand_over(kind.blanks.pop(0), request)
        elif on_the_way := [each for each in self._places if each.kind is kind and each.request is None]:
            self._assign(on_the_way[0], request)
        else:
            self._waiting.append(request)
        self._serve()
        self._due = time.monotonic() + _REFILL_SECONDS

    def _forget(self) -> None:
        """Let go of every kind, and of what was made ahead of it; what is in use stays."""
        for kind in self._kinds.values():
            self._clear(kind)
            os.close(kind.program)
        self._kinds.clear()
        self._latest = None

    def _clear(self, kind: Kind) -> None:
        for place in kind.blanks:
            self._strike(place)
        kind.blanks.clear()

    # Berths.

    def _refill(self) -> None:
        wanted = len(self._waiting) + max(self._ahead, 1) - sum(place.kind is None for place in self._places)
        for _ in range(wanted):
            try:
                self._make()
            except OSError as error:
                self._refuse_waiting(f"no process could be made: {error}")
                return

    def _make(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            process.close_all_but((0, 1, 2, theirs.fileno()))
            berth.main(theirs, self._keep)
        theirs.close()
        place = Place(ours, pid)
        self._places.add(place)
        self._loop.watch(place.pidfd, lambda: self._ended(place))
        self._loop.watch(ours.fileno(), lambda: self._hear(place))
        if self._groups.present:
            self._groups.attach(pid, lambda slot, error: self._attached(place, slot, error))
        else:
            self._attached(place, None, None)

    def _attached(self, place: Place, slot: Slot | None, error: Exception | None) -> None:
        place.slot = slot
        if place not in self._places:
            # It died meanwhile; only its slot is left.
            if slot is not None:
                self._groups.give_back(slot)
            return
        if error is not None:
            place.said = f"it could not be put into a control group: {error}"
            self._strike(place)
            return
        with contextlib.suppress(OSError):
            place.control.send(berth.GO)

    def _hear(self, place: Place) -> None:
        """Take a berth's word. Its end is not looked at: the process's own end says more."""
        try:
            head, _, fds = messages.receive(place.control)
        except (OSError, ValueError):
            head, fds = None, []
        if head is None:
            self._loop.forget(place.control.fileno())
        elif head.get("ready") is True and len(fds) == 1 and place.folder < 0:
            place.folder = fds[0]
            self._berths.append(place)
            self._serve()
        else:
            messages.close_all(fds)
            place.said = str(head.get("failed", "it broke the protocol"))[:WORDS_BYTES]

    def _serve(self) -> None:
        """Start a container for each request that waits, as far as there are berths."""
        while self._waiting and self._berths:
            request = self._waiting.popleft()
            place = self._berths.pop(0)
            self._assign(place, request)
            self._launch(place, request.kind)
        self._refill()

    def _stock_up(self) -> None:
        """Start containers of the kind that was asked for last, and leave them at their gates."""
        kind = self._latest
        if kind is None or self._waiting:
            return
        for other in self._kinds.values():
            if other is not kind:
                self._clear(other)
        if kind.failures >= _FAILURES:
            return
        there = len(kind.blanks) + sum(1 for each in self._places if each.kind is kind and not each.started)
        while self._berths and there < self._ahead:
            self._launch(self._berths.pop(0), kind)
            there += 1
        self._refill()

    def _refuse_waiting(self, reason: str) -> None:
        for request in self._waiting:
            os.close(request.stream)
            self._loop.tell_host({"box": request.box, "failed": reason})
        self._waiting.clear()

    # Containers.

    def _assign(self, place: Place, request: Request) -> None:
        place.request = request
        self._boxes[request.box] = place

    def _launch(self, place: Place, kind: Kind) -> None:
        """Have a berth become the runtime."""
        place.kind = kind
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        place.gate = ours
        try:
            if place.slot is not None:
                # The runtime needs more than the smallest box, and what the image imports must not have all there is.
                place.slot.limit(_READYING_BYTES, _READYING_PROCESSES)
            place.pair = self._pairs.take()
            if place.pair is None:
                raise KooiError("all ids of the leased block are in use")
            # The pairs count from 1, as the first of a cell's own ids is its root's.
            ids = [self._lease.base + number - 1 for number in place.pair]
            message = {"plan": kind.plan, "ids": ids, "argv": [*kind.argv, f"kooi-{os.getpid()}-{place.pid}"]}
            # Opened anew, for a position in the file belongs to all who share an open one.
            program = os.open(f"/proc/self/fd/{kind.program}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                messages.send(place.control, message, fds=[program, theirs.fileno()])
            finally:
                os.close(program)
        except (OSError, KooiError) as error:
            place.said = place.said or f"its berth could not be given the plan: {error}"
            self._strike(place)
        finally:
            theirs.close()

    def _ended(self, place: Place) -> None:
        """A process that is watched has ended: a berth or runtime, or the container."""
        self._loop.forget(place.pidfd)
        failed = reap(place.pid)
        os.close(place.pidfd)
        place.pidfd = -1
        if place.kind is not None and not place.started and not failed and not place.said:
            self._adopt(place)
        if place.pidfd < 0:
            self._gone(place)
        self._due = time.monotonic() + _REFILL_SECONDS

    def _adopt(self, place: Place) -> None:
        """The runtime has done its work and is gone: its container is our child, and waits at its gate."""
        assert place.kind is not None
        place.started = True
        try:
            place.pid = int(read(place.folder, berth.PID))
            place.pidfd = process.open_pidfd(place.pid)
        except (OSError, ValueError) as error:
            place.said = f"the runtime did not say which process it started: {error}"
            return
        self._loop.watch(place.pidfd, lambda: self._ended(place))
        if place.request is not None:
            self._hand_over(place, place.request)
        elif place.kind is not self._latest:
            self._strike(place)
        else:
            place.kind.blanks.append(place)

    def _hand_over(self, place: Place, request: Request) -> None:
        """Make a container the host's box: its limits, then its stream."""
        self._assign(place, request)
        try:
            if place.slot is not None:
                self._groups.limit(place.slot, *request.limits)
                # What it used to get ready is not the box's.
                place.slot.begin()
                place.slot.start_clock()
            assert place.gate is not None
            socket.send_fds(place.gate, [b"g"], [request.stream])
        except (OSError, KooiError) as error:
            place.said = last_words(place) or f"it could not be given its limits: {error}"
            self._strike(place)
            return
        finally:
            request.close()
        slot = None if place.slot is None else place.slot.describe()
        self._loop.tell_host({"box": request.box, "opened": place.pid, "slot": slot, "confined": True})

    def _kill(self, box: int) -> None:
        place = self._boxes.get(box)
        if place is not None:
            self._strike(place)
            return
        for request in [each for each in self._waiting if each.box == box]:
            self._waiting.remove(request)
            request.close()
        self._loop.tell_host({"box": box, "exited": {}})

    def _strike(self, place: Place) -> None:
        """Kill everything in its group at one stroke, and its first process by pidfd."""
        if place.slot is not None:
            with contextlib.suppress(OSError, KooiError):
                place.slot.group.kill()
        if place.pidfd >= 0:
            process.signal_pidfd(place.pidfd, signal.SIGKILL)

    def _freeze(self, box: int, frozen: bool) -> None:
        if (place := self._boxes.get(box)) is not None and place.slot is not None:
            (place.slot.group.freeze if frozen else place.slot.group.thaw)()

    def _gone(self, place: Place) -> None:
        """Nothing watched of it lives: make sure that nothing else does, report it and give back what it had."""
        self._places.discard(place)
        final: dict[str, Any] = {}
        if place.slot is not None:
            # A runtime that failed half-way can have left a process, which no pidfd of ours means.
            with contextlib.suppress(OSError, KooiError):
                if place.slot.group.populated():
                    place.slot.group.kill()
                    place.slot.group.wait_empty(_GONE_SECONDS)
            final = place.slot.final()
            remove_below(place.slot, self._keep)
        said, request = place.said or last_words(place), place.request
        if request is not None:
            request.close()
            del self._boxes[request.box]
            self._loop.tell_host(
                {"box": request.box, "failed": said} if said else {"box": request.box, "exited": final}
            )
        elif place.kind is not None and (not place.started or place in place.kind.blanks):
            # It ended by itself, and not because no more of its kind are wanted.
            place.kind.failures += 1
            if place in place.kind.blanks:
                place.kind.blanks.remove(place)
        elif said:
            self._refuse_waiting(f"no berth could be made: {said}")
        if place in self._berths:
            self._berths.remove(place)
        self._give_back(place)

    def _give_back(self, place: Place) -> None:
        self._loop.forget(place.control.fileno())
        place.control.close()
        if place.folder >= 0:
            os.close(place.folder)
        if place.gate is not None:
            place.gate.close()
        if place.slot is not None:
            self._groups.give_back(place.slot)
        if place.pair is not None:
            self._pairs.give_back(place.pair)


def _warden(loop: Spawner, journal: Journal, config: dict[str, Any]) -> Warden:
    groups = ContainerGroups(journal, tuple(config["groups"]))
    try:
        return Warden(loop, groups, journal, config)
    except BaseException:
        groups.close()
        raise


def main(host_fd: int, owner_pidfd: int) -> None:
    """Run the warden on two inherited descriptors."""
    spawner_main(host_fd, owner_pidfd, _warden)
