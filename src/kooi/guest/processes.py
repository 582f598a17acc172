"""The processes below the agent: reap them all, count what the code left, kill one tree of them.

Theory of operation: the agent is process 1 of its namespace (or a subreaper), so whoever loses his parent becomes a
child of the agent. `/proc/thread-self/children` lists those children whatever uid they have, so a tree is killed from
its top: kill the leader and its process group, and what it leaves behind turns up as a new child of the agent, to be
killed in turn, until nothing new turns up. Where that file does not exist, the walk of /proc by parent pid does the
same.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Callable, Dict, List, Optional, Set

Reaped = Callable[[int], None]

_SWEEP_SECONDS = 2.0
_BETWEEN_KILLS = 0.002
_FEW, _PAGE = 512, 4096


class _Sweep:
    """A tree that is being killed."""

    def __init__(self, leader: int, spared: Set[int], done: Callable[[], None]) -> None:
        self.leader = leader
        self.spared = spared
        self.done = done
        self.deadline = time.monotonic() + _SWEEP_SECONDS


class Family:
    """Every child of the agent, known by the callback that wants its wait status, or stray."""

    def __init__(self, hidden: bool = False) -> None:
        # Processes of another uid are hidden from an agent without capabilities by its own /proc.
        self._hidden = hidden
        self._known: Dict[int, Reaped] = {}
        #: the trees that are being killed; while there are some `reap` must be called again soon, without a signal
        self.sweeps: List[_Sweep] = []
        self._children = _open("/proc/thread-self/children")
        self._inner: Dict[int, int] = {}
        # What the file said the last time that all in it were known.
        self._calm: Optional[bytes] = None

    def adopt(self, pid: int, reaped: Reaped) -> None:
        """Know `pid`, a new child; `reaped(status)` is called when it has ended."""
        self._known[pid] = reaped
        self._calm = None

    def expect(self, pid: int) -> None:
        """Do ahead what `left` needs to look below a known child."""
        if not self._hidden and pid > 0:
            self._inner[pid] = _open(f"/proc/{pid}/task/{pid}/children")

    def disown(self, pid: int) -> None:
        """Know `pid` no more."""
        self._calm = None
        self._known.pop(pid, None)

    def reap(self) -> None:
        """Reap every child that has ended, strays too, and carry on with the trees that are being killed."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._forget(pid)
            reaped = self._known.pop(pid, None)
            if reaped is not None:
                reaped(status)
        for sweep in list(self.sweeps):
            self._carry_on(sweep)

    def _forget(self, pid: int) -> None:
        self._calm = None
        fd = self._inner.pop(pid, -1)
        if fd >= 0:
            os.close(fd)

    def _carry_on(self, sweep: _Sweep) -> None:
        if sweep.leader in self._known:
            return
        fresh = self._strays() - sweep.spared
        for pid in fresh:
            send(pid, signal.SIGKILL, group=True)
        if not fresh or time.monotonic() > sweep.deadline:
            self.sweeps.remove(sweep)
            sweep.done()

    def kill(self, leader: int, done: Callable[[], None]) -> None:
        """Kill a known child that leads a session, and all that descends from it.

        `done()` is called once none of it is left, after the leader's own callback, or 2 s later.
        """
        spared = {pid for pid in self._strays() if _session(pid) != leader}
        self.sweeps.append(_Sweep(leader, spared, done))
        send(leader, signal.SIGKILL, group=True)

    def kill_all(self) -> None:
        """Kill every process that can be found, until none is left or 2 s are over; for the end."""
        if os.getpid() == 1:
            try:
                os.kill(-1, signal.SIGKILL)
            except OSError:
                pass
            return
        deadline = time.monotonic() + _SWEEP_SECONDS
        while time.monotonic() < deadline:
            for pid in [*self._known, *self._strays()]:
                send(pid, signal.SIGKILL, group=True)
            try:
                pid = os.waitpid(-1, os.WNOHANG)[0]
                while pid:
                    self._forget(pid)
                    self._known.pop(pid, None)  # its number may be somebody else's from now on
                    pid = os.waitpid(-1, os.WNOHANG)[0]
            except ChildProcessError:
                return
            time.sleep(_BETWEEN_KILLS)

    def left(self, leader: int = 0) -> Optional[int]:
        """Count the living strays and what is below `leader`, if it is alive; `None` when they cannot be seen."""
        count = len(self._strays())
        if leader not in self._known:
            return count
        if self._hidden:
            return count or None
        below = self._below(leader)
        return None if below is None else count + below

    def _strays(self) -> Set[int]:
        listed = _listed(self._children)
        if listed is not None and listed == self._calm:
            return set()
        if listed is None:
            me = os.getpid()
            children = [pid for pid, parent in _parents().items() if parent == me]
        else:
            children = list(map(int, listed.split()))
        strays = {pid for pid in children if pid not in self._known}
        self._calm = None if strays else listed
        return strays

    def _below(self, pid: int) -> Optional[int]:
        """Count the descendants of a known child. One with neither children nor a second thread costs 4 us."""
        fd = self._inner.get(pid, -1)
        if fd < 0:
            fd = self._inner[pid] = _open(f"/proc/{pid}/task/{pid}/children")
        children = _listed(fd)
        try:
            threads = os.stat(f"/proc/{pid}/task").st_nlink - 2
        except OSError:
            return None
        return 0 if children == b"" and threads == 1 else len(_descendants(pid))


def _listed(fd: int) -> Optional[bytes]:
    """Return what a `children` file says; None when it does not."""
    if fd < 0:
        return None
    try:
        # It is hardly ever longer than this, and room for more costs more than to read it.
        listed = os.pread(fd, _FEW, 0)
        if len(listed) == _FEW:
            # The kernel gives a page at most, whatever is asked for.
            while part := os.pread(fd, _PAGE, len(listed)):
                listed += part
        return listed
    except OSError:
        return None


def send(pid: int, number: int, group: bool) -> None:
    """Signal a process, and its process group if it leads one and `group` is true. Never raises."""
    try:
        if group and os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except OSError:
        pass


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _parents() -> Dict[int, int]:
    """Return pid -> parent of every living process that /proc shows."""
    parents = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        names = []
    for name in names:
        if name.isdigit():
            fd = _open(f"/proc/{name}/stat")
            if fd >= 0:
                try:
                    state, parent = os.read(fd, 1024).rpartition(b")")[2].split()[:2]
                    if state not in (b"Z", b"X"):
                        parents[int(name)] = int(parent)
                except (OSError, ValueError):
                    pass
                finally:
                    os.close(fd)
    return parents


def _descendants(top: int) -> Set[int]:
    parents = _parents()
    found = {top}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        if not more:
            return found - {top}
        found |= more
