"""Mounts: detached copies of trees, file systems of our own, and a new root (mount(2), open_tree(2), pivot_root(2))."""

from __future__ import annotations

import ctypes
import os
from typing import Optional

from kooi.linux.libc import nr, syscall

RDONLY, NOSUID, NODEV, NOEXEC = 0x1, 0x2, 0x4, 0x8
REMOUNT, BIND, REC, PRIVATE, NOATIME = 0x20, 0x1000, 0x4000, 0x40000, 0x400
_DETACH = 0x2
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 0x1
_OPEN_TREE_CLOEXEC = 0o2000000
_MOVE_MOUNT_F_EMPTY_PATH = 0x4


class _MountAttr(ctypes.Structure):
    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def mount(source: str, target: str, kind: Optional[str], flags: int = 0, data: str = "") -> None:
    """Mount `source` on `target`, as mount(2)."""
    syscall(
        nr("mount"),
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        flags,
        data.encode() if data else None,
    )


def unmount(target: str) -> None:
    """Detach whatever is mounted on `target`; what is open stays usable."""
    syscall(nr("umount2"), os.fsencode(target), _DETACH)


def make_private() -> None:
    """Cut the whole tree of this mount namespace off from every other one."""
    mount("none", "/", None, REC | PRIVATE)


def clone_tree(path: str, dirfd: int = _AT_FDCWD) -> int:
    """Return a descriptor of a detached copy of the mount tree at `path` (submounts included)."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE | (0 if path else _AT_EMPTY_PATH)
    return syscall(nr("open_tree"), dirfd, os.fsencode(path), flags)


def set_attributes(fd: int, flags: int) -> None:
    """Add mount flags (RDONLY, NOSUID, NODEV, NOEXEC) to every mount of the detached tree `fd`, and make it private."""
    attributes = _MountAttr(attr_set=flags, attr_clr=0, propagation=PRIVATE, userns_fd=0)
    syscall(
        nr("mount_setattr"),
        fd,
        b"",
        _AT_EMPTY_PATH | _AT_RECURSIVE,
        ctypes.addressof(attributes),
        ctypes.sizeof(attributes),
    )


def attach(fd: int, target: str) -> None:
    """Put the detached tree `fd` on `target`."""
    syscall(nr("move_mount"), fd, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def remount_read_only(target: str, extra: int = 0) -> None:
    """Make the mount at `target` read-only; `extra` are the flags it already has and must keep."""
    mount("none", target, None, REMOUNT | BIND | RDONLY | extra)


def pivot(new_root: str) -> None:
    """Make `new_root` (a mount point) the root and detach the old one."""
    os.chdir(new_root)
    syscall(nr("pivot_root"), b".", b".")
    unmount(".")
    os.chdir("/")
