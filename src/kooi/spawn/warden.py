"""The first process of a box that has no pid namespace: it outlives all others of the box, and its end is their end.

Theory of operation. A warden and all that come from it are inside one Landlock domain that no signal leaves, so
kill(-1, SIGKILL) by the warden reaches exactly its box, in one pass that no fork outruns. The code is in a domain
inside that one, so it cannot signal the warden. Orphans of the box become the warden's children (it is a subreaper), so
when it has none left nothing is left. It waits for its agent's end or the end of its line, which the spawner holds: a
byte on it, or its end by whatever death of the spawner, is the order to end. Where the kernel has no such domain
(`scoped` is false), it kills its children until there are no more, which a fork may outrun for a while.

Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import os
import select
import signal
from typing import NoReturn

from kooi.linux import namespaces, process

_BETWEEN_KILLS_MS = 2


def stay_behind(line_fd: int, scoped: bool) -> None:
    """Become the warden of a new process, which alone returns. Raises `RuntimeError` where the domain does not hold."""
    if scoped:
        _refuse_without_edge()
    process.adopt_orphans()
    pid, pidfd = namespaces.fork_into(0)
    if pid == 0:
        os.close(line_fd)
        os.setsid()
        process.adopt_orphans()
        process.set_dumpable(False)
        return
    try:
        process.close_all_but((line_fd, pidfd))
        _wait(line_fd, pidfd)
        _end_all(scoped)
    finally:
        os._exit(0)


def _refuse_without_edge() -> None:
    """Make sure that signals do not leave the domain, for the last one is sent to everybody."""
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return
    raise RuntimeError("the Landlock domain lets signals out")


def _wait(line_fd: int, pidfd: int) -> None:
    poll = select.poll()
    poll.register(line_fd, select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    while not poll.poll():
        pass


def _end_all(scoped: bool) -> NoReturn:
    """Kill everything of the box, wait until it is dead, and end."""
    while True:
        try:
            if scoped:
                os.kill(-1, signal.SIGKILL)
            else:
                _kill_children()
        except ProcessLookupError:
            pass
        if not _reap(blocking=scoped):
            os._exit(0)
        select.poll().poll(_BETWEEN_KILLS_MS)


def _reap(blocking: bool) -> bool:
    """Reap what is dead, all of it if `blocking`; return whether something is left."""
    while True:
        try:
            if os.waitpid(-1, 0 if blocking else os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False


def _kill_children() -> None:
    with open("/proc/thread-self/children", "rb") as file:
        for pid in map(int, file.read().split()):
            os.kill(pid, signal.SIGKILL)
