"""Opening and removing paths that somebody else may be rearranging at this moment.

Theory of operation: the kernel resolves a path in one go and refuses to follow any symlink or magic link, or to leave
the folder it started in (`openat2`, Linux 5.6). Where that call is missing the path is walked one component at a time
by descriptor, with the same refusals. No check is ever made on a name that is then used: what was opened is
what is meant. Removing a tree holds two descriptors at most, whatever its depth, and never crosses into a mount.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from typing import List, NamedTuple, Tuple

from kooi.contract.errors import InvalidPolicy
from kooi.linux import libc

_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
_RETRIES = 64


def open_beneath(dirfd: int, relative: str, flags: int, mode: int = 0) -> int:
    """Open a path below the folder `dirfd`, following no symlink anywhere, and return its descriptor (close-on-exec).

    Raises `OSError`: ELOOP at a symlink, EXDEV when the path is absolute or leads out of the folder.
    """
    if not relative or "\0" in relative:
        raise OSError(errno.EINVAL, "an empty path, or one with a NUL", relative)
    return _open(dirfd, relative, flags, mode, _BENEATH)


def open_absolute_no_symlinks(path: str, flags: int = _LOOK) -> int:
    """Open an absolute path that an operator named, and return its descriptor (default O_PATH, close-on-exec).

    Raises `InvalidPolicy` naming the component that is a symlink, does not exist or may not be entered.
    """
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise InvalidPolicy(f"{path!r} is not an absolute path without '..'", key=path, fix="write the full path")
    root = os.open("/", _FOLDER)
    try:
        return _open(root, path.strip("/") or ".", flags, 0, _BENEATH)
    except OSError as error:
        raise _explained(root, path, error) from error
    finally:
        os.close(root)


def remove_tree(dirfd: int, name: str) -> None:
    """Remove the entry `name` of the folder `dirfd`, and all below it. Nothing happens when it is not there.

    Symlinks are removed and never followed. Raises `OSError`: EXDEV or EBUSY where something is mounted, EAGAIN when
    the tree is being rearranged or filled faster than it can be removed.
    """
    if not name or "/" in name or name in (".", ".."):
        raise OSError(errno.EINVAL, "not the name of one entry", name)
    if not _removed(dirfd, name):
        _Removal(dirfd, name).run()


def _open(dirfd: int, relative: str, flags: int, mode: int, resolve: int) -> int:
    # O_NOFOLLOW would turn a refusal into a descriptor of the symlink itself (with O_PATH).
    flags = (flags | os.O_CLOEXEC) & ~os.O_NOFOLLOW
    how = struct.pack("=QQQ", flags, mode, resolve | _NO_SYMLINKS | _NO_MAGICLINKS)
    encoded = os.fsencode(relative)
    for _ in range(_RETRIES):
        result = _openat2(dirfd, encoded, how)
        if result == -errno.ENOSYS:
            return _walk(dirfd, relative, flags, mode)
        # EAGAIN: something on the way was renamed or mounted meanwhile, so the kernel could not be sure.
        if result != -errno.EAGAIN:
            break
    if result < 0:
        raise OSError(-result, os.strerror(-result), relative)
    return result


def _openat2(dirfd: int, path: bytes, how: bytes) -> int:
    if not hasattr(os, "O_PATH"):
        return -errno.ENOSYS
    return libc.try_syscall(libc.nr("openat2"), dirfd, path, how, len(how))


def _walk(dirfd: int, relative: str, flags: int, mode: int) -> int:
    """Open `relative` one component at a time. Refuses `..` altogether, which openat2 takes when it stays inside."""
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if relative.startswith("/") or ".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), relative)
    here = os.open(".", _LOOK | os.O_DIRECTORY, dir_fd=dirfd)
    try:
        for part in parts[:-1]:
            below = os.open(part, _LOOK | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        last = parts[-1] if parts else "."
        fd = os.open(last, flags | os.O_NOFOLLOW, mode, dir_fd=here)
    finally:
        os.close(here)
    if stat.S_ISLNK(os.fstat(fd).st_mode):  # O_PATH opens the link itself
        os.close(fd)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
    return fd


def _explained(root: int, path: str, error: OSError) -> InvalidPolicy:
    """Return the error that names the first component in the way."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    for end in range(1, len(parts) + 1):
        component = "/" + "/".join(parts[:end])
        try:
            about = os.lstat(component)
        except OSError as problem:
            return InvalidPolicy(f"{path}: {component}: {problem.strerror}", key=path, fix="name an existing path")
        if stat.S_ISLNK(about.st_mode):
            fix = "name the path it leads to: " + os.path.realpath(path)
            return InvalidPolicy(f"{path}: {component} is a symlink, and none is followed", key=path, fix=fix)
        if end < len(parts) and not stat.S_ISDIR(about.st_mode):
            return InvalidPolicy(f"{path}: {component} is not a folder", key=path, fix="name an existing path")
    return InvalidPolicy(f"{path}: {error.strerror}", key=path, fix="see to it that it can be opened")


def _removed(dirfd: int, name: str) -> bool:
    """Remove one file or empty folder; False when it is a folder with something in it."""
    try:
        os.unlink(name, dir_fd=dirfd)
        return True
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):  # EPERM: how some systems say that it is a folder
            raise
    try:
        os.rmdir(name, dir_fd=dirfd)
        return True
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False


class _Frame(NamedTuple):
    name: str
    identity: Tuple[int, int]
    left: List[str]


class _Removal:
    """Removes one full folder, going down and up by descriptor with no recursion."""

    def __init__(self, dirfd: int, name: str) -> None:
        self._here = os.dup(dirfd)
        self._frames = [_Frame("", _identity(self._here), [])]
        self._target = name

    def run(self) -> None:
        """Remove it. Raises `OSError`."""
        try:
            self._down(self._target)
            tries = 0
            while len(self._frames) > 1:
                if self._frames[-1].left:
                    name = self._frames[-1].left.pop()
                    if not _removed(self._here, name):
                        self._down(name)
                elif not self._up():
                    tries += 1  # somebody put more into it
                    if tries > _RETRIES:
                        raise OSError(errno.EAGAIN, "it is being filled while it is removed", self._target)
                    self._frames[-1].left.extend(os.listdir(self._here))
        finally:
            os.close(self._here)

    def _down(self, name: str) -> None:
        below = self._enter(name)
        os.close(self._here)
        self._here = below
        self._frames.append(_Frame(name, _identity(below), os.listdir(below)))

    def _enter(self, name: str) -> int:
        try:
            return _open(self._here, name, _FOLDER, 0, _BENEATH | _NO_XDEV)
        except PermissionError:
            _unlock(self._here, name)
            return _open(self._here, name, _FOLDER, 0, _BENEATH | _NO_XDEV)

    def _up(self) -> bool:
        """Go to the parent and remove the folder just emptied; stay and return False when it is not empty."""
        parent = os.open("..", _FOLDER, dir_fd=self._here)
        try:
            if _identity(parent) != self._frames[-2].identity:
                raise OSError(errno.EAGAIN, "it was moved while it was removed", self._target)
            if not _removed(parent, self._frames[-1].name):
                return False
            self._here, parent = parent, self._here
            self._frames.pop()
            return True
        finally:
            os.close(parent)


def _identity(fd: int) -> Tuple[int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino


def _unlock(dirfd: int, name: str) -> None:
    """Give the owner back the way into his folder, by what is open and not by name."""
    fd = os.open(name, _LOOK | os.O_DIRECTORY, dir_fd=dirfd)
    try:
        os.chmod(f"/proc/self/fd/{fd}" if hasattr(os, "O_PATH") else fd, 0o700)
    finally:
        os.close(fd)
