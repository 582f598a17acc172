"""The warden: one small process per host process that owns the containers of a runtime that has no daemon.

Theory of operation. It is a spawner (see `spawn.spawner`: same loop, journal, control groups, and end of everything
when its owner ends) whose boxes are not forked but started by an OCI runtime:

    host ──packets──▶ warden ──fork──▶ berth ──exec──▶ runc or crun ──▶ container (process 1 is our agent)
      ▲                 └── control group, ids, pidfd of every container          │
      └────────── stream of the box: a socket pair, the container's standard input ┘

A berth waits in a control group of its own before anybody asks. When the runtime has started the container it ends, and
the container, an orphan, becomes the warden's child. Only then does it get its limits and the word that it may begin:
what the runtime used is not the box's. It is killed by its control group and its pidfd; no runtime is asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from typing import Any

from kooi.contract.errors import KooiError
from kooi.linux import process
from kooi.oci import berth
from kooi.oci.bundle import RUNTIME_GROUP
from kooi.oci.places import WORDS_BYTES, ContainerGroups, Place, last_words, read, to_keep
from kooi.spawn import messages
from kooi.spawn.groups import Slot
from kooi.spawn.ids import IdPairs
from kooi.spawn.journal import Journal
from kooi.spawn.leases import Lease, Leases
from kooi.spawn.spawner import Spawner
from kooi.spawn.spawner import main as spawner_main

_GONE_SECONDS = 5.0


class Warden:
    """Everything the host can ask for, by the host's numbers."""

    def __init__(self, loop: Spawner, groups: ContainerGroups, journal: Journal, config: dict[str, Any]) -> None:
        self._loop = loop
        self._groups = groups
        self._journal = journal
        self._config = config
        self._ahead: int = config["berths"]
        self._keep = to_keep(config["groups"])
        self._waiting: list[tuple[dict[str, Any], bytes, list[int]]] = []
        self._stock: list[Place] = []
        self._places: set[Place] = set()
        self._boxes: dict[int, Place] = {}
        self._programs: dict[str, int] = {}
        self._lease: Lease | None = None
        self._record = 0
        self._pairs: IdPairs | None = None
        self._take_ids()
        loop.watch(groups.wakeup_fd, groups.deliver)
        self._refill()

    def describe(self) -> dict[str, Any]:
        """Return what the host is told about control groups."""
        return self._groups.describe()

    def seconds(self) -> float | None:
        """Nothing is ever due."""
        return None

    def tick(self) -> None:
        """Nothing is ever due."""

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
            programs, self._programs = self._programs, {}
            messages.close_all(list(programs.values()))

    def close(self) -> None:
        """Kill every container and berth, wait until each is dead, and remove all groups."""
        for place in list(self._places):
            self._strike(place)
        for place in list(self._places):
            process.wait_pidfd(place.pidfd, _GONE_SECONDS)
            process.reap_pidfd(place.pidfd)
        self._groups.close()
        if self._lease is not None:
            self._lease.release()
            self._journal.done(self._record)

    def _open(self, head: dict[str, Any], body: bytes, fds: list[int]) -> None:
        """Note a request: `fds` are its stream and, with the first of its kind, the program of process 1."""
        if len(fds) > 1:
            self._programs[head["program"]] = fds.pop()
        # Opened anew, for a position in the file belongs to all who share an open one.
        fds.append(os.open(f"/proc/self/fd/{self._programs[head['program']]}", os.O_RDONLY | os.O_CLOEXEC))
        self._waiting.append((head, body, fds))
        self._serve()

    def _take_ids(self) -> None:
        config = self._config
        leases = Leases(config["run_dir"], config["uid_base"], config["uid_count"], block=config["uid_block"])
        self._lease = leases.take()
        self._record = self._journal.intend("uid_block", base=self._lease.base, count=self._lease.count)
        self._pairs = IdPairs(self._lease.count)
        leases.close()

    # Berths.

    def _refill(self) -> None:
        making = sum(1 for place in self._places if place.box is None)
        for _ in range(len(self._waiting) + self._ahead - making):
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
        place.attaching = False
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
        if slot is not None:
            # The runtime needs more than the smallest box; its limits come when it is gone.
            slot.limit(None, None)
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
        elif head.get("ready") is True and len(fds) == 1 and not place.ready:
            place.ready, place.folder = True, fds[0]
            self._stock.append(place)
            self._serve()
        else:
            messages.close_all(fds)
            place.said = str(head.get("failed", "it broke the protocol"))[:WORDS_BYTES]

    def _serve(self) -> None:
        while self._waiting and self._stock:
            head, body, fds = self._waiting.pop(0)
            self._start(self._stock.pop(0), head, body, fds)
        self._refill()

    def _refuse_waiting(self, reason: str) -> None:
        for head, _, fds in self._waiting:
            messages.close_all(fds)
            self._loop.tell_host({"box": head["box"], "failed": reason})
        self._waiting.clear()

    # Containers.

    def _start(self, place: Place, head: dict[str, Any], body: bytes, fds: list[int]) -> None:
        box: int = head["box"]
        place.box, place.limits = box, (head["memory"], head["processes"])
        self._boxes[box] = place
        gate, place.gate = os.pipe()
        try:
            place.pair = self._pairs.take() if self._pairs is not None else None
            if place.pair is None or self._lease is None:
                raise KooiError("all ids of the leased block are in use")
            # The pairs count from 1, as the first of a cell's own ids is its root's.
            ids = [self._lease.base + number - 1 for number in place.pair]
            message = {"plan": json.loads(body), "ids": ids, "argv": [*head["argv"], f"kooi-{os.getpid()}-{box}"]}
            messages.send(place.control, message, fds=[*fds, gate])
        except (OSError, KooiError) as error:
            place.said = place.said or f"its berth could not be given the plan: {error}"
            self._strike(place)
        finally:
            os.close(gate)
            messages.close_all(fds)

    def _ended(self, place: Place) -> None:
        """A process that is watched has ended: a berth or runtime, or the container."""
        self._loop.forget(place.pidfd)
        failed = _reap(place.pid)
        os.close(place.pidfd)
        place.pidfd = -1
        if place.box is not None and not place.started and not failed and not place.said:
            self._adopt(place)
        if place.pidfd < 0:
            self._gone(place)
        self._reap_strays()

    def _reap_strays(self) -> None:
        """Reap what a runtime left to us besides its container. Not while one works: its container is no stray."""
        if any(place.box is not None and not place.started for place in self._places):
            return
        known = {place.pid for place in self._places}
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                for pid in {int(word) for word in file.read().split()} - known:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)

    def _adopt(self, place: Place) -> None:
        """The runtime has done its work and is gone: its container is our child, and may begin."""
        place.started = True
        try:
            place.pid = int(read(place.folder, berth.PID))
            place.pidfd = process.open_pidfd(place.pid)
        except (OSError, ValueError) as error:
            place.said = f"the runtime did not say which process it started: {error}"
            return
        self._loop.watch(place.pidfd, lambda: self._ended(place))
        try:
            if place.slot is not None:
                self._groups.limit(place.slot, *place.limits)
                # The runtime's processes and memory are not the box's.
                place.slot.begin()
                place.slot.start_clock()
            os.write(place.gate, b"g")
        except (OSError, KooiError) as error:
            place.said = f"it could not be given its limits: {error}"
            self._strike(place)
            return
        slot = place.slot.describe() if place.slot is not None else None
        self._loop.tell_host({"box": place.box, "opened": place.pid, "slot": slot, "confined": True})

    def _kill(self, box: int) -> None:
        place = self._boxes.get(box)
        if place is not None:
            self._strike(place)
            return
        for request in [each for each in self._waiting if each[0]["box"] == box]:
            self._waiting.remove(request)
            messages.close_all(request[2])
        self._loop.tell_host({"box": box, "exited": {}})

    def _strike(self, place: Place) -> None:
        """Kill everything in its group at one stroke, and its first process by pidfd."""
        if place.slot is not None:
            with contextlib.suppress(OSError, KooiError):
                place.slot.group.kill()
        if place.pidfd >= 0:
            process.signal_pidfd(place.pidfd, signal.SIGKILL)

    def _freeze(self, box: int, frozen: bool) -> None:
        place = self._boxes.get(box)
        if place is not None and place.slot is not None:
            (place.slot.group.freeze if frozen else place.slot.group.thaw)()

    def _gone(self, place: Place) -> None:
        """Nothing watched of it lives: make sure that nothing else does, report it and give back what it had."""
        self._places.discard(place)
        if place in self._stock:
            self._stock.remove(place)
        final: dict[str, Any] = {}
        if place.slot is not None:
            # A runtime that failed half-way can have left a process, which no pidfd of ours means.
            with contextlib.suppress(OSError, KooiError):
                if place.slot.group.populated():
                    place.slot.group.kill()
                    place.slot.group.wait_empty(_GONE_SECONDS)
            final = place.slot.final()
            self._remove_below(place.slot)
        said = place.said or last_words(place)
        if place.box is not None:
            del self._boxes[place.box]
            self._loop.tell_host({"box": place.box, "failed": said} if said else {"box": place.box, "exited": final})
        elif said:
            self._refuse_waiting(f"no berth could be made: {said}")
        self._give_back(place)
        if place.box is not None:
            self._refill()

    def _remove_below(self, slot: Slot) -> None:
        """Remove the groups that a runtime made in a box's own."""
        for name in self._keep:
            if (path := slot.group.paths.get(name or "unified")) is not None:
                with contextlib.suppress(OSError):
                    os.rmdir(f"{path}/{RUNTIME_GROUP}")

    def _give_back(self, place: Place) -> None:
        self._loop.forget(place.control.fileno())
        place.control.close()
        for fd in (place.folder, place.gate):
            if fd >= 0:
                os.close(fd)
        if place.slot is not None:
            self._groups.give_back(place.slot)
        if place.pair is not None and self._pairs is not None:
            self._pairs.give_back(place.pair)


def _reap(pid: int) -> bool:
    """Reap a child that has ended; return whether it failed."""
    try:
        return os.waitpid(pid, 0)[1] != 0
    except ChildProcessError:
        return True


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
