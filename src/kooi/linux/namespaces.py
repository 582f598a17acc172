"""Namespaces: fork into new ones, leave old ones, and map user ids (user_namespaces(7), clone(2))."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Sequence, Tuple

from kooi.linux.libc import nr, syscall

NEWNS = 0x00020000
NEWCGROUP = 0x02000000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000
_PIDFD = 0x00001000

IdMap = Sequence[Tuple[int, int, int]]


def fork_into(flags: int) -> Tuple[int, int]:
    """Fork into the new namespaces `flags`; return (pid, pidfd) in the parent and (0, -1) in the child.

    Only for a process with one thread that holds no lock: neither the C library's nor Python's fork hooks run. With one
    thread they have nothing to mend, and running them would copy about 200 pages, a third of what a fork costs.
    """
    pidfd = ctypes.c_int(-1)
    pid = syscall(nr("clone"), flags | _PIDFD | signal.SIGCHLD, 0, ctypes.addressof(pidfd), 0, 0)
    return pid, pidfd.value if pid else -1


def unshare(flags: int) -> None:
    """Move the calling process into new namespaces `flags`."""
    syscall(nr("unshare"), flags)


def join(fd: int, kind: int) -> None:
    """Enter the namespace that `fd` means, which must be of `kind` (one of the flags above)."""
    syscall(nr("setns"), fd, kind)


def format_map(entries: IdMap) -> bytes:
    """Return the text of a uid_map or gid_map: inside, outside, count per line."""
    return b"".join(b"%d %d %d\n" % entry for entry in entries)


def write_maps(pid: int, uids: IdMap, gids: IdMap, deny_setgroups: bool = False) -> None:
    """Write the id maps of the user namespace of `pid`; an unprivileged writer must deny setgroups first."""
    proc = "/proc/%d/" % pid
    if deny_setgroups:
        _write(proc + "setgroups", b"deny")
    _write(proc + "uid_map", format_map(uids))
    _write(proc + "gid_map", format_map(gids))


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
