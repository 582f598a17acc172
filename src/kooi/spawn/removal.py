"""Removing a tree of files that may have been built to make that hard.

Everything is done relative to open directories, no symbolic link is followed and no other file system is entered. A
folder that is not empty is first moved into a flat trash folder, so depth costs neither stack nor descriptors nor long
paths. Nobody may be working in the tree any more: its processes are dead when this runs.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat

from kooi.contract.errors import KooiError

_BATCH = 1000


def remove_tree(dir_fd: int, path: str, trash: str) -> None:
    """Remove `path` (relative to `dir_fd`, whatever it is), by way of the folder `trash` there. Absent is fine."""
    parent, name = _open_parent(dir_fd, path)
    if parent is None:
        return
    try:
        try:
            info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(info.st_mode):
            os.unlink(name, dir_fd=parent)
            return
        _refuse_mount(info, os.fstat(parent), path)
        if path == trash:
            _empty_trash(dir_fd, trash)
            return
        if not _rmdir(parent, name):
            _move_to_trash(parent, name, dir_fd, trash, "0")
            _empty_trash(dir_fd, trash)
    finally:
        os.close(parent)


def _open_parent(dir_fd: int, path: str) -> tuple[int | None, str]:
    """Open the folder that holds `path`, one component at a time, none of them a link."""
    *folders, name = path.split("/")
    fd = os.dup(dir_fd)
    for folder in folders:
        try:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        except FileNotFoundError:
            return None, name
        except OSError as error:
            raise KooiError(f"cannot remove {path}: {folder}: {error.strerror}") from error
        finally:
            os.close(fd)
        fd = below
    return fd, name


def _rmdir(dir_fd: int, name: str) -> bool:
    """Remove the folder if it is empty; return whether it was."""
    try:
        os.rmdir(name, dir_fd=dir_fd)
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False


def _refuse_mount(info: os.stat_result, parent: os.stat_result, path: str) -> None:
    if info.st_dev != parent.st_dev:
        raise KooiError(f"cannot remove {path}: a file system is mounted there")


def _move_to_trash(parent: int, name: str, dir_fd: int, trash: str, new: str) -> None:
    try:
        os.mkdir(trash, 0o700, dir_fd=dir_fd)
    except FileExistsError:
        pass
    _make_usable(parent, name)
    fd = os.open(trash, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.rename(name, f"{new}-{os.urandom(8).hex()}", src_dir_fd=parent, dst_dir_fd=fd)
    finally:
        os.close(fd)


def _empty_trash(dir_fd: int, trash: str) -> None:
    """Empty and remove the trash: each folder in it gives up its files, and moves its folders up beside itself."""
    fd = os.open(trash, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        while names := _some(fd):
            for name in names:
                _flatten(fd, name)
    finally:
        os.close(fd)
    os.rmdir(trash, dir_fd=dir_fd)


def _flatten(trash: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=trash, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=trash)
        return
    _make_usable(trash, name)
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=trash)
    try:
        while names := _some(fd):
            for below in names:
                info = os.stat(below, dir_fd=fd, follow_symlinks=False)
                _refuse_mount(info, os.fstat(fd), below)
                if not stat.S_ISDIR(info.st_mode):
                    os.unlink(below, dir_fd=fd)
                elif not _rmdir(fd, below):
                    _make_usable(fd, below)
                    os.rename(below, os.urandom(8).hex(), src_dir_fd=fd, dst_dir_fd=trash)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=trash)


def _make_usable(dir_fd: int, name: str) -> None:
    """Give ourselves all rights to a folder: to list it, empty it, and move it (that rewrites its "..")."""
    if os.geteuid() == 0:
        return
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def _some(fd: int) -> list[str]:
    with os.scandir(fd) as entries:
        return [entry.name for entry in itertools.islice(entries, _BATCH)]
