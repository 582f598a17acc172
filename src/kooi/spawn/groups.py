"""The spawner's control groups: one tree, one group a blank, attached by a helper thread, off everybody's way."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from kooi.contract.errors import KooiError
from kooi.linux import cgroup

Attached = Callable[[OSError | None], None]
_Job = tuple[cgroup.Group, int, Attached]


class Groups:
    """The tree of this spawner, or the reason why there is none."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._tree: cgroup.Tree | None = None
        self._count = 0
        self._reason = "control groups were not asked for"
        if config.get("cgroups", True):
            self._open(config["name"])
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Attached, OSError | None]] = queue.SimpleQueue()
        self.wakeup_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        threading.Thread(target=self._attach_loop, name="attach", daemon=True).start()

    def _open(self, name: str) -> None:
        try:
            layout = cgroup.layout(delegate=True)
            self._tree = cgroup.Tree.create(layout, name)
        except KooiError as error:
            self._reason = str(error)

    def describe(self) -> dict[str, Any]:
        """Return what the host is told: whether groups are there, where, or why not."""
        if self._tree is None:
            return {"cgroups": False, "reason": self._reason}
        return {"cgroups": True, "paths": self._tree.paths}

    def new(self) -> cgroup.Group | None:
        """Make the next group; None where there are no groups."""
        if self._tree is None:
            return None
        self._count += 1
        return self._tree.group(f"box-{self._count}")

    def attach(self, group: cgroup.Group, pid: int, then: Attached) -> None:
        """Put `pid` into `group` in the helper thread; `then` is called by `deliver`, with the error if it failed."""
        self._jobs.put((group, pid, then))

    def deliver(self) -> None:
        """Call what waits for finished attachments. In the event loop, when `wakeup_fd` is readable."""
        os.eventfd_read(self.wakeup_fd)
        while not self._done.empty():
            then, error = self._done.get()
            then(error)

    def close(self) -> None:
        """Kill whatever is left in the tree and remove it."""
        self._jobs.put(None)
        if self._tree is not None:
            self._tree.remove()

    def _attach_loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            group, pid, then = job
            error: OSError | None = None
            try:
                group.attach(pid)
            except OSError as caught:
                error = caught
            self._done.put((then, error))
            os.eventfd_write(self.wakeup_fd, 1)
