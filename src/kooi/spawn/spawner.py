"""The spawner: one small process per host process that owns control groups, uid leases and cells.

Theory of operation. The host library starts it with one packet socket and a pidfd of itself. It outlives a killed
host just long enough to kill every cell and remove every group: it waits on the owner's pidfd and on the end of the
socket, and does not rely on parent-death signals. It is single-threaded but for one helper thread that makes control
groups, attaches blanks to them and takes them back, because a first attach after a quiet moment waits 11-15 ms.

    host ──packets──▶ spawner ──packets──▶ zygote (one a cell) ──fork──▶ blank ──plan──▶ box
      ▲                  └── control group, ids, pidfd of every box
      └────────── stream of the box (a socket pair made by the host, its other end handed down) ──────────┘

A blank is put into its group before it hears anything else, and gets itself ready then. `open` hands a ready blank the
plan and the stream, so no step on the way of a request waits for the kernel's slow paths, and the next blank is made a
moment later. Everything heard from a zygote or blank is untrusted: at worst it ends its own cell.
"""

from __future__ import annotations

import os
import resource
import select
import socket
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from kooi.linux import process
from kooi.linux.cgroup_layout import hierarchies
from kooi.spawn import messages
from kooi.spawn.groups import Groups
from kooi.spawn.journal import Journal
from kooi.spawn.reaper import reap
from kooi.spawn.shop import Shop

Handler = Callable[[], None]
# What makes boxes on the host's behalf: called with the loop, the journal and the host's configuration.
MakeShop = Callable[["Spawner", Journal, "dict[str, Any]"], "Keeper"]
_CRASH_CHARACTERS = 4000


class Keeper(Protocol):
    """Who makes boxes and owns all that they need."""

    def handle(self, operation: str, head: dict[str, Any], body: bytes, fds: list[int]) -> None:
        """Do what one packet of the host asks."""

    def seconds(self) -> float | None:
        """Return in how many seconds `tick` wants to be called; None for never."""

    def tick(self) -> None:
        """Do what is due."""

    def close(self) -> None:
        """Kill and remove everything."""

    def describe(self) -> dict[str, Any]:
        """Return what the host is told about its control groups."""


class Spawner:
    """The event loop and the host's side of it."""

    def __init__(self, host: socket.socket, owner_pidfd: int, make: MakeShop) -> None:
        host.setblocking(False)
        self._host = host
        self._outbox = messages.Outbox(host, self._want_write)
        self._poll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._make = make
        self._shop: Keeper | None = None
        self._journal: Journal | None = None
        self._closing = False
        self.watch(host.fileno(), self._from_host)
        self.watch(owner_pidfd, self._owner_gone)

    def watch(self, fd: int, handler: Handler) -> None:
        """Call `handler` whenever `fd` is readable."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.EPOLLIN)

    def forget(self, fd: int) -> None:
        """Stop watching `fd`; call before it is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def tell_host(self, head: dict[str, Any]) -> None:
        """Send the host an event; a host that is gone is noticed elsewhere."""
        if not self._closing:
            try:
                self._outbox.send(head)
            except OSError:
                self._owner_gone()

    def _want_write(self, wanted: bool) -> None:
        self._poll.modify(self._host.fileno(), select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def run(self) -> None:
        """Serve until the owner goes away; then kill and clean up everything."""
        try:
            while True:
                self._turn()
        except _OwnerGone:
            pass
        except BaseException:
            self.tell_host({"crashed": traceback.format_exc()[-_CRASH_CHARACTERS:]})
            raise
        finally:
            self._closing = True
            if self._shop:
                self._shop.close()
            if self._journal:
                self._journal.close()

    def _turn(self) -> None:
        timeout = self._shop.seconds() if self._shop else None
        ready = [(fd, events, self._handlers.get(fd)) for fd, events in self._poll.poll(timeout)]
        for fd, events, handler in ready:
            if events & select.EPOLLOUT:
                self._outbox.flush()
            # A handler before this one may have closed the descriptor, and its number may mean something else by now.
            if events & ~select.EPOLLOUT and handler is not None and self._handlers.get(fd) is handler:
                handler()
        if self._shop:
            self._shop.tick()

    def _owner_gone(self) -> None:
        raise _OwnerGone

    def _from_host(self) -> None:
        try:
            head, body, fds = messages.receive(self._host)
        except BlockingIOError:
            return
        except ConnectionError:
            raise _OwnerGone from None
        if head is None:
            raise _OwnerGone
        operation = head.pop("op")
        if operation == "start":
            self._start(head)
        elif self._shop is not None:
            self._shop.handle(operation, head, body, fds)

    def _start(self, config: dict[str, Any]) -> None:
        roots = [found.mount for found in hierarchies()]
        report = reap(config["run_dir"], uid_range=(config["uid_base"], config["uid_count"]), cgroup_roots=roots)
        self._journal = Journal.create(config["run_dir"], owner=config["owner"])
        self._shop = self._make(self, self._journal, config)
        left = [f"{name}: {reason}" for name, reason in (*report.aside, *report.failed)]
        self.tell_host({"started": {**self._shop.describe(), "reaped": report.reaped, "not_reaped": left}})


class _OwnerGone(Exception):
    pass


def _shop(loop: Spawner, journal: Journal, config: dict[str, Any]) -> Keeper:
    return Shop(loop, Groups(journal), journal, config)


def main(host_fd: int, owner_pidfd: int, make: MakeShop = _shop) -> None:
    """Run the spawner on two inherited descriptors."""
    os.setsid()
    os.umask(0o077)
    process.set_name("kooi-spawner")
    process.adopt_orphans()
    process.close_all_but((0, 1, 2, host_fd, owner_pidfd))
    # Every box takes about ten descriptors here; what it gets itself is the plan's to say.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Spawner(socket.socket(fileno=host_fd), owner_pidfd, make).run()
