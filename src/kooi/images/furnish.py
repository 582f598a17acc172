"""Makes a root file system one that every level can start from: its mount points, and the few files that must be right.

Done to what was built and to what was unpacked, so a tree that is exported and imported again is the same tree. Links
are never followed: each folder is opened from the one above it. Works inside the helper that unpacks.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

from kooi.images.host import ETC_TEXTS, GUEST_ROOT, HOME

# What is in them belongs to a running system, and is covered at every level.
_EMPTIED = ("proc", "sys", "dev", "run", "tmp", "data", "root", HOME[1:], "var/tmp")
_FOLDERS = (*_EMPTIED, "dev/pts", "dev/shm", "etc", "usr", "var", "opt", GUEST_ROOT[1:])
_REPLACED = ("hosts", "resolv.conf", "hostname")
_ACCOUNTS = ("passwd", "group")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_BYTES = 1 << 20


def furnish(root: int) -> None:
    """Furnish the tree whose root is the open folder `root`. Doing it twice changes nothing more."""
    for path in _EMPTIED:
        remove(root, path.split("/"))
    for path in _FOLDERS:
        os.close(make_folder(root, path.split("/")))
    etc = os.open("etc", _FOLDER, dir_fd=root)
    try:
        for path, text in ETC_TEXTS.items():
            _text(etc, path.rpartition("/")[2], text)
        remove(etc, ["mtab"])
        os.symlink("/proc/self/mounts", "mtab", dir_fd=etc)
    finally:
        os.close(etc)


def _text(etc: int, name: str, text: str) -> None:
    """Write one file of /etc; of the accounts only the lines whose names are not there yet."""
    found = None if name in _REPLACED else _read(etc, name)
    if found is not None and name in _ACCOUNTS:
        known = {line.partition(b":")[0] for line in found.splitlines()}
        lines = [line for line in text.encode().splitlines() if line.partition(b":")[0] not in known]
        if not lines:
            return
        data = b"".join(line + b"\n" for line in [*found.splitlines(), *lines])
    elif found is not None:
        return
    else:
        data = text.encode()
    remove(etc, [name])
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=etc)
    with open(fd, "wb") as file:
        file.write(data)


def _read(folder: int, name: str) -> bytes | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return file.read(_MOST_BYTES)


def make_folder(root: int, parts: Sequence[str], *, replace: bool = True) -> int:
    """Return a descriptor of a folder below `root`, made with those above it where they are missing.

    Whatever else is in the way is removed, or with `replace` off raises `OSError`: a link is never followed.
    """
    here = os.dup(root)
    try:
        for part in parts:
            try:
                below = os.open(part, _FOLDER, dir_fd=here)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=here)
                below = os.open(part, _FOLDER, dir_fd=here)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP) or not replace:
                    raise
                os.unlink(part, dir_fd=here)
                os.mkdir(part, 0o755, dir_fd=here)
                below = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        return here
    except BaseException:
        os.close(here)
        raise


def remove(root: int, parts: Sequence[str]) -> None:
    """Remove what is at a path below `root` and all in it; nothing is fine too."""
    here = os.dup(root)
    try:
        for part in parts[:-1]:
            below = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        _remove(here, parts[-1])
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
    finally:
        os.close(here)


def _remove(folder: int, name: str) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    fd = os.open(name, _FOLDER, dir_fd=folder)
    try:
        for each in os.listdir(fd):
            _remove(fd, each)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=folder)
