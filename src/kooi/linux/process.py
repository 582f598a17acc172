"""What one process can set about itself, and how another is held and ended (prctl(2), pidfd_open(2))."""

from __future__ import annotations

import errno
import os
import select
from typing import Iterable, Set

from kooi.linux.libc import nr, syscall, try_syscall

_JOIN_SESSION_KEYRING = 1
_PDEATHSIG, _DUMPABLE, _NAME, _NO_NEW_PRIVS, _CHILD_SUBREAPER = 1, 4, 15, 38, 36


def die_with_parent(number: int = 9) -> None:
    """Ask for signal `number` when the parent thread ends. A change of ids clears it: set it last."""
    syscall(nr("prctl"), _PDEATHSIG, number, 0, 0, 0)


def set_dumpable(on: bool) -> None:
    """Allow or refuse core dumps and inspection by processes with the same ids."""
    syscall(nr("prctl"), _DUMPABLE, 1 if on else 0, 0, 0, 0)


def no_new_privileges() -> None:
    """Give up set-uid, file capabilities and every other gain by execve, for good."""
    syscall(nr("prctl"), _NO_NEW_PRIVS, 1, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends."""
    syscall(nr("prctl"), _CHILD_SUBREAPER, 1, 0, 0, 0)


def set_name(name: str) -> None:
    """Set the name shown in process lists (15 bytes)."""
    syscall(nr("prctl"), _NAME, name.encode()[:15] + b"\0", 0, 0, 0)


def leave_session_keyring() -> None:
    """Take an empty session keyring in place of the inherited one, whose keys its possessor may read (keyctl(2)).

    No namespace keeps it away. Where the kernel has no keyrings or refuses keyctl, nobody here can use them.
    """
    found = try_syscall(nr("keyctl"), _JOIN_SESSION_KEYRING, None)
    if found < 0 and -found not in (errno.ENOSYS, errno.EPERM):
        raise OSError(-found, os.strerror(-found), "keyctl")


def open_pidfd(pid: int) -> int:
    """Return a descriptor that means exactly this process for as long as it is open."""
    return syscall(nr("pidfd_open"), pid, 0)


def signal_pidfd(pidfd: int, number: int) -> bool:
    """Send a signal by pidfd; False when the process is gone already."""
    try:
        syscall(nr("pidfd_send_signal"), pidfd, number, None, 0)
    except ProcessLookupError:
        return False
    return True


def wait_pidfd(pidfd: int, seconds: float) -> bool:
    """Wait until the process behind a pidfd has ended, at most `seconds`; return whether it has."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def reap_pidfd(pidfd: int) -> None:
    """Take the exit status of a process that has ended, if it is a child of ours, so that no zombie is left.

    For the host: needs Python 3.9 and Linux 5.4.
    """
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except OSError:
        pass  # not ours


def reap_orphans() -> None:
    """Take the exit status of every child that has ended. For a process that waits for none by number."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def children() -> Set[int]:
    """Return the process ids of this process's children, those that have ended and were not waited for too."""
    found: Set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with open("/proc/self/task/%s/children" % task, "rb") as file:
            found.update(map(int, file.read().split()))
    return found


def pid_of(pidfd: int) -> int:
    """Return the process id behind a pidfd as this process sees it; 0 or -1 when it is gone or not visible.

    Raises `OSError` for a descriptor that is none.
    """
    with open("/proc/self/fdinfo/%d" % pidfd, "rb") as info:
        for line in info:
            if line.startswith(b"Pid:"):
                return int(line[4:])
    raise OSError(errno.EBADF, "not a pidfd")


def parent_of(pidfd: int) -> int:
    """Return the process id of the parent of the process behind a pidfd; 0 or -1 when it is gone or not visible."""
    pid = pid_of(pidfd)
    if pid <= 0:
        return pid
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1
    # It lived until now, so the number meant no other process while its file was read.
    return parent if pid_of(pidfd) == pid else -1


def close_all_but(keep: Iterable[int]) -> None:
    """Close every descriptor that is not in `keep`."""
    low = 0
    for fd in sorted(set(keep)):
        if fd > low:
            _close_range(low, fd - 1)
        low = fd + 1
    _close_range(low, 0xFFFFFFFF)


def _close_range(first: int, last: int) -> None:
    try:
        syscall(nr("close_range"), first, last, 0)
    except OSError:
        os.closerange(first, min(last, 1 << 20) + 1)
