"""Opening paths that somebody else may be rearranging at this moment.

Theory of operation: the kernel resolves a path in one go and refuses to follow any symlink or magic link, or to leave
the folder it started in (`openat2`, Linux 5.6). Where that call is missing the path is walked one component at a time
by descriptor, with the same refusals. No check is ever made on a name that is then used: what was opened is
what is meant.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from kooi.contract.errors import InvalidPolicy
from kooi.linux import libc

_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
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
    root = os.open("/", _LOOK | os.O_DIRECTORY)
    try:
        return _open(root, path.strip("/") or ".", flags, 0, _BENEATH)
    except OSError as error:
        raise _explained(root, path, error) from error
    finally:
        os.close(root)


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


def _missing(path: str, component: str, problem: OSError) -> str:
    return f"{path}: {problem.strerror}" if component == path else f"{path}: {component}: {problem.strerror}"


def _explained(root: int, path: str, error: OSError) -> InvalidPolicy:
    """Return the error that names the first component in the way."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    for end in range(1, len(parts) + 1):
        component = "/" + "/".join(parts[:end])
        try:
            about = os.lstat(component)
        except OSError as problem:
            return InvalidPolicy(_missing(path, component, problem), key=path, fix="name an existing path")
        if stat.S_ISLNK(about.st_mode):
            fix = "name the path it leads to: " + os.path.realpath(path)
            return InvalidPolicy(f"{path}: {component} is a symlink, and none is followed", key=path, fix=fix)
        if end < len(parts) and not stat.S_ISDIR(about.st_mode):
            return InvalidPolicy(f"{path}: {component} is not a folder", key=path, fix="name an existing path")
    return InvalidPolicy(f"{path}: {error.strerror}", key=path, fix="see to it that it can be opened")
