"""The crash journal: what a spawner is about to make, written down before it makes it.

Theory of operation. Each spawner has one file in the run directory, locked (flock) for as long as it lives; the kernel
drops the lock at its death, however that comes (a child forked from it may hold on to the lock: the header says who
the spawner was). Before a control group, folder, socket or uid block comes to be, a
record says so (`intend`); when it is gone again, another says that (`done`). `reaper.reap`, run by the next spawner,
takes each journal whose lock is free and undoes what is not done. Names are tied to the journal: a control group in
it must be called `kooi-ID`, so no journal, however damaged, can speak of another's groups.

Nothing is synced to disk: a record only has to survive this process, and the page cache does. When the machine dies,
processes and groups die with it, and the boot id tells. A record never crosses a page of the file, because the kernel
heeds a SIGKILL between two pages of one write: so a record is there whole or not at all, and anything else is damage.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import zlib
from collections.abc import Mapping
from typing import Literal

from kooi.contract.errors import InvalidRequest, SetupFailed

VERSION = 1
PREFIX, SUFFIX = "kooi-", ".journal"
PAGE = 4096
RECORD_BYTES = 2048
REWRITE_BYTES = 1 << 20
# Where boxes without a mount of their own have their folders: a box's user must be able to get there.
HOMES_PARENT = "/tmp"
Kind = Literal["cgroup", "dir", "homes", "socket", "uid_block"]


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def pid_namespace() -> int:
    """Return the number of the pid namespace that this process's pids belong to."""
    return os.stat("/proc/self/ns/pid").st_ino


def start_time(pid: int) -> int | None:
    """Return when process `pid` started, in clock ticks since boot; `None` if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def encode(value: Mapping[str, object]) -> bytes:
    """Return one line: the CRC-32 of the JSON, and the JSON."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(text), text)


def open_run_dir(path: str) -> int:
    """Open the run directory (made with mode 0700 if missing); refuse one that is not ours or others can write to."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    info = os.fstat(fd)
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        os.close(fd)
        raise SetupFailed(
            f"the run directory {path} belongs to user {info.st_uid} with mode {info.st_mode & 0o7777:o}",
            fix=f"it must belong to user {os.geteuid()} and be writable for nobody else",
        )
    return fd


class Journal:
    """One spawner's journal. Made by `Journal.create`; not thread-safe."""

    def __init__(self, run_dir: str, dir_fd: int, ident: str, fd: int, header: bytes) -> None:
        self.id = ident
        self.name = f"{PREFIX}{ident}"
        self._run_dir = os.path.abspath(run_dir)
        self._dir_fd = dir_fd
        self._fd = fd
        self._header = header
        self._size = 0
        self._next = 0
        self._open: dict[int, bytes] = {}

    @classmethod
    def create(cls, run_dir: str, *, owner: int | None = None) -> Journal:
        """Make and lock a new journal in `run_dir`. `owner`: the pid this spawner works for (default: its parent)."""
        dir_fd = open_run_dir(run_dir)
        try:
            while True:
                ident = os.urandom(6).hex()
                fd = _create_locked(dir_fd, PREFIX + ident + SUFFIX)
                if fd is not None:
                    break
            journal = cls(run_dir, dir_fd, ident, fd, _header(ident, os.getppid() if owner is None else owner))
        except BaseException:
            os.close(dir_fd)
            raise
        journal._append(journal._header)
        return journal

    @property
    def file(self) -> str:
        """The name of the journal's file in the run directory."""
        return self.name + SUFFIX

    def intend(self, kind: Kind, **data: object) -> int:
        """Record that a thing is about to be made; return the record's number for `done`.

        `cgroup`: `paths`, from `linux.cgroup.planned`, all called `kooi-ID` or `kooi-ID-self`. `dir` and `socket`:
        `path`, below the run directory. `homes`: `path`, which is /tmp/kooi-ID.homes. `uid_block`: `base` and `count`.
        Raises `SetupFailed` if it cannot be written; then do not make the thing.
        """
        number = self._next
        line = encode({"n": number, "do": kind, **check(kind, self._relative(kind, data), self.id)})
        if len(line) > RECORD_BYTES:
            raise InvalidRequest(
                f"a journal record of {len(line)} bytes is too long (at most {RECORD_BYTES})", key=kind
            )
        self._append(line)
        self._next = number + 1
        self._open[number] = line
        return number

    def done(self, number: int) -> None:
        """Record that the thing of record `number` is gone."""
        if number not in self._open:
            raise InvalidRequest(f"journal record {number} is not open", key="number")
        self._append(encode({"done": number}))
        del self._open[number]
        if self._size > REWRITE_BYTES and self._size > 2 * sum(map(len, self._open.values())) + PAGE:
            self._rewrite()

    def close(self) -> bool:
        """Unlock the journal, and delete it if everything in it is done; return whether that was so. Safe twice."""
        if self._fd < 0:
            return not self._open
        if not self._open:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.file, dir_fd=self._dir_fd)
        os.close(self._fd)
        os.close(self._dir_fd)
        self._fd = self._dir_fd = -1
        return not self._open

    def _relative(self, kind: str, data: Mapping[str, object]) -> Mapping[str, object]:
        path = data.get("path")
        if kind not in ("dir", "socket") or not isinstance(path, str) or not path.startswith("/"):
            return data
        return {**data, "path": os.path.relpath(path, self._run_dir)}

    def _append(self, line: bytes) -> None:
        room = -self._size % PAGE
        if room and len(line) > room:
            self._write(b" " * (room - 1) + b"\n")
        self._write(line)

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
            reason = f"only {written} of {len(data)} bytes fit"
        except OSError as error:
            written, reason = -1, str(error.strerror)
        if written != len(data):
            os.ftruncate(self._fd, self._size)
            raise SetupFailed(
                f"cannot write the crash journal {self.file}: {reason}", fix="free space in the run directory"
            )
        self._size += written

    def _rewrite(self) -> None:
        """Put a file with only the open records in place of this one; both are locked meanwhile."""
        temporary = f".{self.file}.new"
        old, old_size = self._fd, self._size
        try:
            fd = _create_locked(self._dir_fd, temporary)
        except OSError:
            fd = None
        if fd is None:
            return  # it only saves space; the next `done` tries again
        self._fd, self._size = fd, 0
        try:
            for line in (self._header, *self._open.values()):
                self._append(line)
            os.rename(temporary, self.file, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)
        except (OSError, SetupFailed):
            os.unlink(temporary, dir_fd=self._dir_fd)
            self._fd, self._size, old = old, old_size, fd
        os.close(old)


def _header(ident: str, owner: int) -> bytes:
    return encode(
        {
            "kooi_journal": VERSION,
            "id": ident,
            "boot_id": boot_id(),
            "uid": os.geteuid(),
            "owner": [owner, start_time(owner)],
            "spawner": [os.getpid(), start_time(os.getpid())],
            "pid_ns": pid_namespace(),
        }
    )


def _create_locked(dir_fd: int, name: str) -> int | None:
    """Create the file `name` and lock it; `None` if the name is taken or a reaper was faster."""
    try:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(name, flags, 0o600, dir_fd=dir_fd)
    except FileExistsError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink == 1:
            return fd
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            os.close(fd)
            raise
    # A reaper saw the empty file before it was locked, and removes it: nothing was in it.
    os.close(fd)
    return None


def check(kind: object, data: Mapping[str, object], ident: str) -> Mapping[str, object]:
    """Return `data` if it is a valid record of `kind` in the journal `ident`; else raise `InvalidRequest`."""
    if kind == "cgroup":
        good = data.keys() == {"paths"} and _good_groups(data["paths"], ident)
    elif kind == "homes":
        good = data == {"path": f"{HOMES_PARENT}/{PREFIX}{ident}.homes"}
    elif kind in ("dir", "socket"):
        good = data.keys() == {"path"} and _good_path(data["path"])
    elif kind == "uid_block":
        good = data.keys() == {"base", "count"} and all(type(value) is int and value > 0 for value in data.values())
    else:
        good = False
    if not good:
        raise InvalidRequest(f"not a journal record of {kind!r}: {dict(data)!r}", key=str(kind))
    return data


def _good_groups(paths: object, ident: str) -> bool:
    if not isinstance(paths, dict) or not paths:
        return False
    names = (f"{PREFIX}{ident}", f"{PREFIX}{ident}-self")
    return all(
        isinstance(key, str)
        and isinstance(path, str)
        and path.startswith("/")
        and os.path.normpath(path) == path
        and os.path.basename(path) in names
        for key, path in paths.items()
    )


def _good_path(path: object) -> bool:
    """Whether `path` is relative, plain and not one of the run directory's own files."""
    if not isinstance(path, str) or not path or "\0" in path:
        return False
    parts = path.split("/")
    if any(part in ("", ".", "..") or len(os.fsencode(part)) > 255 for part in parts):
        return False
    return not parts[0].endswith((SUFFIX, ".lock", ".trash"))
