"""The spawner's control groups: one tree, and slots in it that boxes use one after the other.

Theory of operation. Making, filling and removing a group takes locks that another attachment may hold for 11-15 ms
(a grace period of the kernel), so all three happen in one helper thread, never in the event loop. A slot whose box is
dead goes back as it is, for the next blank; counters are differences, and a slot that still holds memory is not used
again. The group itself can only be in one of three places: free, attached to one living box, or removed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from kooi.contract.errors import KooiError
from kooi.linux import cgroup
from kooi.spawn.journal import Journal

# A slot whose last box left more than this charged (page cache, kernel memory) is removed instead of used again.
_LEFTOVER_BYTES = 4 * 1024 * 1024
# What a blank needs to get ready, and more.
_READYING_BYTES = 64 * 1024 * 1024
_READYING = 8
# A zygote and its blanks of the moment. They have their memory at first from it, and a fork's page tables for good.
_ZYGOTE_PROCESSES = 64
_ZYGOTE_SHARE = 2


class Slot:
    """A control group, and where its counters stood when the present box got it."""

    __slots__ = ("_limits", "cpu_ns", "group", "oom", "pids", "pids_peak")

    def __init__(self, group: cgroup.Group) -> None:
        self.group = group
        self.cpu_ns = self.oom = self.pids = self.pids_peak = 0
        self._limits: tuple[int | None, int | None] | None = None

    def limit(self, memory_bytes: int | None, processes: int | None) -> None:
        """Set the limits of the box that gets it. On the way of a request: what is so already is not written again."""
        if self._limits != (memory_bytes, processes):
            self._limits = None
            self.group.set_limits(memory_bytes, processes)
            self._limits = (memory_bytes, processes)

    def begin(self) -> None:
        """Start the counters of its next box, while nothing runs in it."""
        counters = self.group.usage()
        self.cpu_ns, self.pids_peak = counters.cpu_ns, counters.pids_peak or 0
        self.oom, self.pids = self.group.oom_kills(), self.group.pids_hits()

    def start_clock(self) -> None:
        """Count CPU time and memory from now on: what a blank used to get ready is not its box's."""
        self.cpu_ns = self.group.cpu_ns()
        self.group.reset_peaks()

    def describe(self) -> dict[str, Any]:
        """Return where the group is and where its counters began, for a reader elsewhere."""
        base = [self.cpu_ns, self.pids_peak, self.oom, self.pids]
        return {"name": self.group.name, "base": base, "peak_base": self.group.peak_base}

    def final(self) -> dict[str, Any]:
        """Return what the box used in all."""
        counters = self.group.usage()
        return {
            "cpu_ns": counters.cpu_ns - self.cpu_ns,
            "memory_peak": counters.memory_peak,
            "pids_peak": counters.pids_peak if (counters.pids_peak or 0) > self.pids_peak else None,
            "oom": self.group.oom_kills() - self.oom,
            "pids": self.group.pids_hits() - self.pids,
        }


Attached = Callable[["Slot | None", "Exception | None"], None]
_Job = Callable[[], None]


class Groups:
    """The tree of this spawner, or the reason why there is none."""

    def __init__(self, journal: Journal) -> None:
        self._tree: cgroup.Tree | None = None
        self._count = 0
        self._free: deque[Slot] = deque()
        self._usual: tuple[int | None, int | None] = (None, None)
        self._reason = ""
        self._layout: cgroup.Layout | None = None
        self._journal = journal
        self._record = 0
        self._open(journal)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self.wakeup_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._work, name="groups", daemon=True)
        self._thread.start()

    def where(self) -> cgroup.Layout:
        """Return where a tree can be made."""
        return cgroup.layout(delegate=True)

    def _open(self, journal: Journal) -> None:
        try:
            self._layout = self.where()
            if self._layout.available:
                self._record = journal.intend("cgroup", paths=cgroup.planned(self._layout, journal.name))
            self._tree = cgroup.Tree.create(self._layout, journal.name)
        except KooiError as error:
            self._reason = str(error)

    @property
    def present(self) -> bool:
        """Whether boxes get control groups."""
        return self._tree is not None

    def describe(self) -> dict[str, Any]:
        """Return what the host is told: whether groups are there, of which kind and where, or why not."""
        if self._tree is None or self._layout is None:
            return {"cgroups": False, "reason": self._reason}
        features = sorted(self._tree.features)
        return {"cgroups": True, "kind": self._layout.kind, "paths": self._tree.paths, "features": features}

    def attach(self, pid: int, then: Attached) -> None:
        """Put `pid` into a slot in the helper thread; `then` gets the slot or the error, called by `deliver`."""
        self._jobs.put(lambda: self._attach(pid, then))

    def hold(self, pid: int, then: Attached) -> None:
        """Put a zygote into a bounded group of its own, as `attach` does: all that it forks begins in there."""
        self._jobs.put(lambda: self._hold(pid, then))

    def drop(self, slot: Slot) -> None:
        """Remove the group of a zygote that is dead."""
        self._jobs.put(lambda: self._remove(slot))

    def limit(self, slot: Slot, memory_bytes: int | None, processes: int | None) -> None:
        """Give a slot the limits of its box. Raises `OSError` or `KooiError`: too little for an empty box, for one."""
        self._usual = (memory_bytes, processes)
        slot.limit(memory_bytes, processes)

    def give_back(self, slot: Slot) -> None:
        """Return the slot of a box that is dead."""
        self._jobs.put(lambda: self._recycle(slot))

    def deliver(self) -> None:
        """Call what waits for finished attachments. In the event loop, when `wakeup_fd` is readable."""
        os.eventfd_read(self.wakeup_fd)
        while not self._done.empty():
            self._done.get()()

    def close(self) -> None:
        """Kill whatever is left in the tree and remove it."""
        self._jobs.put(None)
        self._thread.join(timeout=5)
        if self._tree is not None:
            self._tree.remove()
            self._journal.done(self._record)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _attach(self, pid: int, then: Attached) -> None:
        slot: Slot | None = None
        failure: Exception | None = None
        try:
            slot = self._free.popleft() if self._free else self._make()
            # Most boxes are alike: what the last one wanted is most often what the next one will, and then a request
            # has nothing to write. But a blank must be able to get ready under it.
            slot.limit(*(self._usual if _roomy(*self._usual) else (None, None)))
            slot.begin()
            slot.group.attach(pid)
        except (OSError, KooiError) as error:
            failure = error
        self._done.put(lambda: then(slot, failure))
        os.eventfd_write(self.wakeup_fd, 1)

    def _hold(self, pid: int, then: Attached) -> None:
        slot: Slot | None = None
        failure: Exception | None = None
        try:
            slot = self._make("cell")
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            slot.limit(memory // _ZYGOTE_SHARE, _ZYGOTE_PROCESSES)
            slot.group.attach(pid)
        except (OSError, KooiError) as error:
            failure = error
        self._done.put(lambda: then(slot, failure))
        os.eventfd_write(self.wakeup_fd, 1)

    def _make(self, kind: str = "box") -> Slot:
        assert self._tree is not None
        self._count += 1
        return Slot(self._tree.group(f"{kind}-{self._count}"))

    def _remove(self, slot: Slot) -> None:
        # What fails here is tried again by the tree's removal at the end, and the journal knows the tree.
        with contextlib.suppress(OSError, KooiError):
            slot.group.remove()

    def _recycle(self, slot: Slot) -> None:
        try:
            slot.group.thaw()
            if not slot.group.populated() and slot.group.memory_now() <= _LEFTOVER_BYTES:
                self._free.append(slot)
                return
            slot.group.remove()
        except (OSError, KooiError):
            # The tree's removal at the end tries again, and the journal knows the tree.
            return


def _roomy(memory_bytes: int | None, processes: int | None) -> bool:
    return (memory_bytes is None or memory_bytes >= _READYING_BYTES) and (processes is None or processes >= _READYING)
