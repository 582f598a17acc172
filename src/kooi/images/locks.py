"""Lock files: flock(2) on a file of its own, which the kernel drops with its holder, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def take(path: Path, *, shared: bool = False, wait: bool = True) -> int | None:
    """Return a descriptor that holds the lock until it is closed; None where it is held and `wait` is off."""
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, how)
            if os.fstat(fd).st_nlink:
                return fd
            # Somebody removed the file between our open and our lock: what we have locks nothing.
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock alone for the length of a block."""
    fd = take(path)
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def holders(path: Path) -> list[int]:
    """Return the processes that hold the lock, as far as this one may know."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        about = os.stat(path)
        wanted = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
        with open("/proc/locks") as file:
            rows = [line.split() for line in file]
        found = [int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == wanted]
    return sorted(set(found))
