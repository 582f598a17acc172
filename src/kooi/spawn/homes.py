"""Private folders of boxes that can have no mount of their own: made, measured and removed by the spawner.

Theory of operation. All are in one folder in /tmp that the journal knows before it exists; its name is bound to the
journal's, and each box's own cannot be guessed. What the code has built in there is hostile: it is read and removed
relative to descriptors, and no link is followed. A large tree is removed in a helper thread, because the event loop
must not wait; the box is not gone before its folder is. How full a folder is can only be looked at now and then: often
while it is small, and never so often that looking takes more than a tenth of a CPU.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kooi.contract.errors import KooiError
from kooi.linux import paths
from kooi.spawn.journal import HOMES_PARENT, Journal
from kooi.spawn.removal import remove_tree

TICK_SECONDS = 0.02
_SHARE = 10
#: the places in a box's folder; the code writes to the first two
PLACES = ("home", "tmp", "data")
_TRASH = ".trash"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512
_ENDLESS = 1 << 62


class Content(NamedTuple):
    """What is in a folder: bytes on the disk, and how many files and folders."""

    bytes: int
    files: int


class Homes:
    """All private folders of this spawner."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._path = ""
        self._fd = -1
        self._record = 0
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.wakeup_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @property
    def path(self) -> str:
        """Return the folder of all, which is made if it is not there yet."""
        if self._fd < 0:
            self._path = f"{HOMES_PARENT}/{self._journal.name}.homes"
            self._record = self._journal.intend("homes", path=self._path)
            os.mkdir(self._path, 0o711)
            os.chmod(self._path, 0o711)
            self._fd = os.open(self._path, _FOLDER)
            self._thread = threading.Thread(target=self._work, name="homes", daemon=True)
            self._thread.start()
        return self._path

    def make(self, uid: int | None, datasets: list[list[str]]) -> str:
        """Make a box's folder; its places belong to `uid`, if given. Return its name."""
        assert self.path
        name = secrets.token_hex(16)
        os.mkdir(name, 0o711, dir_fd=self._fd)
        os.chmod(name, 0o711, dir_fd=self._fd)
        folder = os.open(name, _FOLDER, dir_fd=self._fd)
        try:
            for place in PLACES[:2]:
                os.mkdir(place, 0o700, dir_fd=folder)
                if uid is not None:
                    os.chown(place, uid, uid, dir_fd=folder, follow_symlinks=False)
            if datasets:
                os.mkdir("data", 0o711, dir_fd=folder)
                os.chmod("data", 0o711, dir_fd=folder)
            for dataset, source in datasets:
                os.symlink(source, f"data/{dataset}", dir_fd=folder)
        finally:
            os.close(folder)
        return name

    def remove(self, name: str, then: Callable[[], None]) -> None:
        """Remove a box's folder and call `then`: at once when there is nothing in it, else later, by `deliver`."""
        with contextlib.suppress(OSError):
            for place in (*PLACES[:2], ""):
                os.rmdir(f"{name}/{place}", dir_fd=self._fd)
            then()
            return
        self._jobs.put(lambda: self._remove(name, then))

    def _remove(self, name: str, then: Callable[[], None]) -> None:
        # What cannot be removed now is tried again when all goes, and by the reaper.
        with contextlib.suppress(OSError, KooiError):
            remove_tree(self._fd, name, _TRASH)
        self._done.put(then)
        os.eventfd_write(self.wakeup_fd, 1)

    def deliver(self) -> None:
        """Call what waits for a removal. In the event loop, when `wakeup_fd` is readable."""
        os.eventfd_read(self.wakeup_fd)
        while not self._done.empty():
            self._done.get()()

    def measure(self, name: str, most_bytes: int | None, most_files: int | None) -> Content:
        """Return what is in a box's folder; of one that is over a limit only as much as shows it."""
        found = Content(0, 0)
        for place in PLACES[:2]:
            try:
                top = os.open(f"{name}/{place}", _FOLDER, dir_fd=self._fd)
            except OSError:
                continue
            try:
                found = _measure(top, found, most_bytes, most_files)
            finally:
                os.close(top)
        return found

    def close(self) -> None:
        """Remove what is left. Everything that could still write there must be dead. Safe twice."""
        if self._fd < 0:
            return
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OSError, KooiError):
            empty(self._fd)
            os.rmdir(self._path)
            self._journal.done(self._record)
        os.close(self._fd)
        self._fd = -1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def empty(fd: int) -> None:
    """Remove everything in an open folder of private folders."""
    for name in os.listdir(fd):
        if name != _TRASH:
            remove_tree(fd, name, _TRASH)
    remove_tree(fd, _TRASH, _TRASH)


def _measure(top: int, found: Content, most_bytes: int | None, most_files: int | None) -> Content:
    size, files = found
    ahead, seen = deque(["."]), set()
    while ahead:
        folder = ahead.popleft()
        try:
            fd = _open_folder(top, folder)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                # So deep that no path leads there: nothing but a place to hide something.
                return Content(_ENDLESS, _ENDLESS)
            continue
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                files += 1
                if info.st_nlink == 1 or stat.S_ISDIR(info.st_mode) or info.st_ino not in seen:
                    size += info.st_blocks * _BLOCK
                    seen.add(info.st_ino)
                if stat.S_ISDIR(info.st_mode):
                    ahead.append(f"{folder}/{entry.name}")
        os.close(fd)
        if (most_files is not None and files > most_files) or (most_bytes is not None and size > most_bytes):
            break
    return Content(size, files)


def _open_folder(top: int, folder: str) -> int:
    """Open a folder to list it; one that the code closed, even to itself, is opened to its owner again."""
    try:
        return paths.open_beneath(top, folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        fd = paths.open_beneath(top, folder, os.O_PATH | os.O_DIRECTORY)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
        finally:
            os.close(fd)
        return paths.open_beneath(top, folder, os.O_RDONLY | os.O_DIRECTORY)


class Gauge:
    """Watches how full the folders of boxes are; calls `exceeded` once for each that is over a limit."""

    def __init__(self, homes: Homes, exceeded: Callable[[int], None]) -> None:
        self._homes = homes
        self._exceeded = exceeded
        self._boxes: dict[int, tuple[str, int | None, int | None]] = {}
        self._due: dict[int, float] = {}
        #: what each box had in its folder at the last look
        self.bytes: dict[int, int] = {}

    def add(self, number: int, name: str, most_bytes: int | None, most_files: int | None) -> None:
        """Begin to watch a box; without limits too, for what it has there may be memory."""
        self._boxes[number] = (name, most_bytes, most_files)
        self._due[number] = time.monotonic() + TICK_SECONDS

    def remove(self, number: int) -> None:
        """Stop watching a box."""
        for table in (self._boxes, self._due, self.bytes):
            table.pop(number, None)

    def seconds(self) -> float | None:
        """Return in how many seconds `tick` wants to be called; None when nothing is watched."""
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None

    def tick(self) -> None:
        """Look at every box that is due."""
        for number, due in list(self._due.items()):
            began = time.monotonic()
            if due > began:
                continue
            name, most_bytes, most_files = self._boxes[number]
            found = self._homes.measure(name, most_bytes, most_files)
            self.bytes[number] = found.bytes
            now = time.monotonic()
            self._due[number] = now + max(TICK_SECONDS, _SHARE * (now - began))
            over_bytes = most_bytes is not None and found.bytes > most_bytes
            if over_bytes or (most_files is not None and found.files > most_files):
                del self._due[number]
                self._exceeded(number)
