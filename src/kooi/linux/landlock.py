"""Landlock: an allow list of files, no TCP, and no signals or abstract sockets across the domain's edge.

Theory of operation: a `Ruleset` is built from named clauses. Each clause needs a minimum ABI of the running kernel;
when it is not there the builder refuses and names clause, needed and present ABI, so a ruleset never holds less than
was asked. Whatever a clause handles is denied unless `allow` names a file or folder. `restrict_self` binds the calling
thread and all it starts, for ever; call it in a single-threaded process that has set no_new_privs.

What no ABI up to 7 covers, and what other layers must hold: metadata (stat, chmod, utime, access), watching folders
with inotify, pathname unix sockets, UDP and every socket family other than TCP, descriptors that are already open.
"""

from __future__ import annotations

import os
import stat
import struct
from typing import Iterable, Tuple, Union

from kooi.contract.errors import InvalidRequest, PolicyUnenforceable
from kooi.linux import libc

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

# clause: (first ABI that has it, file rights, TCP rights, scopes)
CLAUSES = {
    "files": (1, _EXECUTE | _WRITE_FILE | _READ_FILE | _READ_DIR | _REMOVE_AND_MAKE, 0, 0),
    "rename": (2, _REFER, 0, 0),
    "truncate": (3, _TRUNCATE, 0, 0),
    "tcp": (4, 0, 3, 0),
    "device_ioctl": (5, _IOCTL_DEV, 0, 0),
    "abstract_unix": (6, 0, 0, 1),
    "signal": (6, 0, 0, 2),
}

# What `allow` grants; rights that the ruleset does not handle are left out, they are open anyway.
ACCESS = {
    "read": _READ_FILE | _READ_DIR,
    "execute": _EXECUTE,
    "write": _WRITE_FILE | _TRUNCATE | _REMOVE_AND_MAKE | _REFER,
    "device": _IOCTL_DEV,
}

_VERSION, _PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38


def abi() -> int:
    """Return the kernel's Landlock ABI; 0 when it has none or it is switched off."""
    found = libc.try_syscall(libc.nr("landlock_create_ruleset"), None, 0, _VERSION)
    return found if found > 0 else 0


def check(clauses: Iterable[str], present: int) -> None:
    """Raise `PolicyUnenforceable` for a clause above the ABI `present`, `InvalidRequest` for an unknown one."""
    for clause in clauses:
        if clause not in CLAUSES:
            raise InvalidRequest(f"no Landlock clause is called {clause!r}; there are {', '.join(CLAUSES)}", key=clause)
        needed = CLAUSES[clause][0]
        if needed > present:
            raise PolicyUnenforceable(
                f"the Landlock clause {clause!r} needs ABI {needed} and this kernel has ABI {present}",
                key="landlock." + clause,
                fix="use a newer kernel, boot with lsm=...,landlock, or leave out the clause",
            )


class Ruleset:
    """A Landlock ruleset under construction. Owns one descriptor; use it as a context manager or call `close`."""

    def __init__(self, clauses: Iterable[str] = tuple(CLAUSES)) -> None:
        """Handle the clauses, default all. Raises `PolicyUnenforceable` when the kernel lacks one of them."""
        self.clauses: Tuple[str, ...] = tuple(clauses)
        check(self.clauses, abi())
        self._files = self._tcp = self._scopes = 0
        for clause in self.clauses:
            _, files, tcp, scopes = CLAUSES[clause]
            self._files |= files
            self._tcp |= tcp
            self._scopes |= scopes
        self._fd = -1
        attributes = struct.pack("=QQQ", self._files, self._tcp, self._scopes)
        # An older kernel takes a longer structure only when what it does not know is zero, and `check` saw to that.
        self._fd = libc.syscall(libc.nr("landlock_create_ruleset"), attributes, len(attributes), 0)

    def allow(self, target: Union[str, bytes, int], *access: str) -> None:
        """Allow `access` ("read", "execute", "write", "device") on a file, or on a folder and all beneath it.

        `target` is a path (symlinks are followed) or an open descriptor, O_PATH will do. Raises `OSError`.
        """
        if isinstance(target, int):
            self._allow_fd(target, access)
            return
        fd = os.open(target, os.O_PATH | os.O_CLOEXEC)
        try:
            self._allow_fd(fd, access)
        finally:
            os.close(fd)

    def _allow_fd(self, fd: int, access: Tuple[str, ...]) -> None:
        rights = 0
        for name in access:
            if name not in ACCESS:
                raise InvalidRequest(f"no Landlock access is called {name!r}; there are {', '.join(ACCESS)}", key=name)
            rights |= ACCESS[name]
        rights &= self._files
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _FILE_RIGHTS
        if rights:  # the kernel refuses an empty rule, and an empty rule allows nothing anyway
            rule = struct.pack("=Qi", rights, fd)
            libc.syscall(libc.nr("landlock_add_rule"), self._fd, _PATH_BENEATH, rule, 0)

    def restrict_self(self) -> None:
        """Bind the calling thread, for ever, and set no_new_privs, which the kernel asks for. Raises `OSError`."""
        libc.syscall(libc.nr("prctl"), _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.syscall(libc.nr("landlock_restrict_self"), self._fd, 0)

    def close(self) -> None:
        """Close the descriptor; a restriction already made stays. Safe twice."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> Ruleset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
