"""The reaper: undoes what spawners left that died. Run at the start of each spawner, before it makes anything.

Safety rules, in this order. One reaper works at a time. A journal is left alone while its spawner (pid and start time)
lives, and while its lock is held, unless it is seen that only orphans of the spawner hold it. It must be ours,
private, whole and of a version we know: else nothing is touched and the file is set aside. Processes are killed only
as members of a control group that is named after the journal, lies below one of the given roots, and belongs to us;
never by pid, never by uid. After another boot nothing is killed. Folders are removed below the run directory only,
without following a link. A journal is deleted last, so a reaper that dies is repeated.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kooi.contract.errors import InvalidRequest, KooiError
from kooi.linux.cgroup import destroy
from kooi.spawn import journal, leases
from kooi.spawn.homes import empty
from kooi.spawn.removal import remove_tree

MAX_JOURNAL_BYTES = 64 << 20
LOCK_SECONDS = 30.0


@dataclass
class Report:
    """What the reaper did. `aside` and `failed` give file and reason.

    `strays`: uids of dead spawners under which processes still live outside every recorded group; they are not killed.
    """

    reaped: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)
    aside: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    dirs: list[str] = field(default_factory=list)
    strays: list[int] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing is left of any dead spawner."""
        return not (self.aside or self.failed or self.strays)


class Damaged(Exception):
    """The journal cannot be trusted; the message says why."""


@dataclass(frozen=True)
class Entries:
    """A journal as read: its boot, its spawner (pid, start time) and their namespace, the records that are not done."""

    boot_id: str
    pid_ns: int
    spawner: tuple[int, int]
    open: tuple[Mapping[str, object], ...]


def reap(run_dir: str, *, uid_range: tuple[int, int], cgroup_roots: Sequence[str]) -> Report:
    """Undo what dead spawners left in `run_dir`.

    `uid_range` is (first, count) of the uids that boxes get; a journal that speaks of others is damaged.
    `cgroup_roots` are the directories that trees may lie below, each in a control group file system.
    Never raises for what a journal holds: see `Report`.
    """
    report = Report()
    roots = [os.path.realpath(root) for root in cgroup_roots]
    dir_fd = journal.open_run_dir(run_dir)
    try:
        _wait_for_lock(dir_fd, run_dir)
        for name in sorted(os.listdir(dir_fd)):
            if name.startswith(journal.PREFIX) and name.endswith(journal.SUFFIX):
                _reap_one(dir_fd, name, uid_range, roots, report)
            elif _is_scratch(name):
                _remove_unlocked(dir_fd, name)
    finally:
        os.close(dir_fd)
    return report


def _wait_for_lock(fd: int, run_dir: str) -> None:
    """Lock the run directory against other reapers; give up after a while."""
    end = time.monotonic() + LOCK_SECONDS
    while not _lock(fd):
        if time.monotonic() >= end:
            raise KooiError(f"another reaper has been at work in {run_dir} for {LOCK_SECONDS:g} s")
        time.sleep(0.01)


def _is_scratch(name: str) -> bool:
    """Whether `name` is a lease's file or a journal that was being rewritten: worth nothing without a holder."""
    lease = name.startswith("uids-") and name.endswith(".lock")
    return lease or (name.startswith(f".{journal.PREFIX}") and name.endswith(f"{journal.SUFFIX}.new"))


def _remove_unlocked(dir_fd: int, name: str) -> None:
    try:
        with _opened(dir_fd, name) as fd:
            if fd is not None and _lock(fd) and _is_still(fd, dir_fd, name):
                os.unlink(name, dir_fd=dir_fd)
    except (Damaged, OSError):
        pass  # not a file of ours; it holds nothing either way


def _reap_one(dir_fd: int, name: str, uids: tuple[int, int], roots: Sequence[str], report: Report) -> None:
    ident = name[len(journal.PREFIX) : -len(journal.SUFFIX)]
    try:
        with _opened(dir_fd, name) as fd:
            if fd is None:
                return
            entries = _dead(fd, ident, uids)
            if entries is None or not _is_still(fd, dir_fd, name):
                report.live.append(ident)
                return
            _undo(dir_fd, ident, entries, roots, report)
            os.unlink(name, dir_fd=dir_fd)
            report.reaped.append(ident)
    except Damaged as damage:
        _set_aside(dir_fd, name, str(damage), report)
    except (KooiError, OSError) as error:
        report.failed.append((name, str(error)))


def _dead(fd: int, ident: str, uids: tuple[int, int]) -> Entries | None:
    """Return the journal of a spawner that is dead; `None` for one that lives or may live."""
    locked = _lock(fd)
    try:
        data = _read(fd)
        if locked and not data:
            return Entries("", 0, (0, 0), ())  # it died before its first record
        entries = parse(data, ident, uids)
    except Damaged:
        if locked:
            raise
        return None
    if entries.boot_id == journal.boot_id():
        if journal.start_time(entries.spawner[0]) == entries.spawner[1]:
            return None  # alive though its lock is free: the file is a copy, or being closed
        if not locked and entries.pid_ns != journal.pid_namespace():
            return None  # we cannot see whether it lives
    elif not locked:
        return None
    return entries


@contextmanager
def _opened(dir_fd: int, name: str) -> Iterator[int | None]:
    """Open the file `name`, never through a link; `None` where it is no longer there."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise Damaged(f"it cannot be opened: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


def _is_still(fd: int, dir_fd: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _read(fd: int) -> bytes:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise Damaged("it is not a regular file")
    if info.st_uid != os.geteuid():
        raise Damaged(f"it belongs to user {info.st_uid}, not to {os.geteuid()}")
    if info.st_mode & 0o077:
        raise Damaged(f"others may use it: mode {info.st_mode & 0o7777:o}")
    if info.st_size > MAX_JOURNAL_BYTES:
        raise Damaged(f"it is {info.st_size} bytes long")
    with open(fd, "rb", closefd=False) as file:
        return file.read(MAX_JOURNAL_BYTES)


def parse(data: bytes, ident: str, uids: tuple[int, int]) -> Entries:
    """Read a journal strictly; raise `Damaged` for anything that `Journal` would not have written."""
    if not data.endswith(b"\n"):
        raise Damaged("it is cut off")
    lines = [line for line in data.split(b"\n")[:-1] if line.strip(b" ")]
    if not lines:
        raise Damaged("it has no header")
    head = _header(_decode(lines[0]), ident)
    records: dict[int, Mapping[str, object]] = {}
    last = -1
    for line in lines[1:]:
        record = _decode(line)
        number = record.get("done", record.get("n"))
        if type(number) is not int:
            raise Damaged(f"a record without a number: {record!r}")
        if record.keys() == {"done"}:
            if records.pop(number, None) is None:
                raise Damaged(f"record {number} is done but was not open")
        elif number <= last:
            raise Damaged(f"record {number} comes after record {last}")
        else:
            records[number], last = _record(record, ident, uids), number
    return Entries(*head, tuple(records.values()))


def _decode(line: bytes) -> dict[str, object]:
    if len(line) < 10 or line[8:9] != b" " or line[:8] != b"%08x" % zlib.crc32(line[9:]):
        raise Damaged(f"a line whose checksum is wrong: {line[:60]!r}")
    try:
        value = json.loads(line[9:])
    except (ValueError, RecursionError) as error:
        raise Damaged(f"a line that is not JSON: {line[:60]!r}") from error
    if not isinstance(value, dict):
        raise Damaged(f"a line that is not an object: {line[:60]!r}")
    return value


def _header(head: Mapping[str, object], ident: str) -> tuple[str, int, tuple[int, int]]:
    version = head.get("kooi_journal")
    if type(version) is not int or version != journal.VERSION:
        raise Damaged(f"its version is {version!r}, not {journal.VERSION}")
    if head.get("id") != ident or head.get("uid") != os.geteuid():
        raise Damaged(f"it is the journal {head.get('id')!r} of user {head.get('uid')!r}")
    boot, namespace, spawner = head.get("boot_id"), head.get("pid_ns"), head.get("spawner")
    if not isinstance(boot, str) or type(namespace) is not int or not isinstance(spawner, list):
        raise Damaged("its header does not say boot, namespace and spawner")
    if [type(value) for value in spawner] != [int, int]:
        raise Damaged("its header does not say boot, namespace and spawner")
    return boot, namespace, (spawner[0], spawner[1])


def _record(record: Mapping[str, object], ident: str, uids: tuple[int, int]) -> Mapping[str, object]:
    data = {key: value for key, value in record.items() if key not in ("n", "do")}
    try:
        journal.check(record.get("do"), data, ident)
    except InvalidRequest as error:
        raise Damaged(error.message) from error
    if record["do"] == "uid_block":
        base, count = data["base"], data["count"]
        assert isinstance(base, int) and isinstance(count, int)
        if base < uids[0] or base + count > uids[0] + uids[1]:
            raise Damaged(f"it speaks of the uids {base} to {base + count - 1}, which are not ours")
    return record


def _undo(dir_fd: int, ident: str, entries: Entries, roots: Sequence[str], report: Report) -> None:
    same_boot = entries.boot_id == journal.boot_id()
    trash = f"{journal.PREFIX}{ident}.trash"
    if same_boot:
        _end_groups(_groups(entries, roots), report)
    for record in entries.open:
        if record["do"] in ("dir", "socket"):
            remove_tree(dir_fd, str(record["path"]), trash)
            report.dirs.append(str(record["path"]))
        elif record["do"] == "homes":
            _remove_homes(str(record["path"]))
            report.dirs.append(str(record["path"]))
    remove_tree(dir_fd, trash, trash)
    for record in entries.open if same_boot else ():
        if record["do"] == "uid_block":
            base, count = record["base"], record["count"]
            assert isinstance(base, int) and isinstance(count, int)
            report.strays += leases.uids_in_use(base, count)


def _remove_homes(path: str) -> None:
    """Remove a spawner's private folders; the name in a place that all may write to may be somebody else's by now."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Damaged(f"{path} cannot be opened: {error.strerror}") from error
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise Damaged(f"{path} belongs to user {os.fstat(fd).st_uid}")
        empty(fd)
        os.rmdir(path)
    finally:
        os.close(fd)


def _groups(entries: Entries, roots: Sequence[str]) -> list[dict[str, str]]:
    """Return the recorded groups that are there; all are checked before the first is touched."""
    found = []
    for record in entries.open:
        if record["do"] == "cgroup":
            paths = record["paths"]
            assert isinstance(paths, dict)
            found.append({key: path for key, path in paths.items() if os.path.lexists(path)})
    for path in [path for paths in found for path in paths.values()]:
        reason = _not_ours(path, roots)
        if reason is not None:
            raise Damaged(f"it names the control group {path}, which {reason}")
    return found


def _end_groups(groups: Sequence[Mapping[str, str]], report: Report) -> None:
    """Kill what is in the groups, wait until they are empty, remove them."""
    for paths in filter(None, groups):
        destroy(paths)
        report.groups += paths.values()


def _not_ours(path: str, roots: Sequence[str]) -> str | None:
    if os.path.realpath(path) != path:
        return "is reached by a link"
    root = next((root for root in roots if path.startswith(root.rstrip("/") + "/")), None)
    if root is None or not os.path.exists(f"{root}/cgroup.procs"):
        return "is not below a directory for control groups of ours"
    info = os.stat(path)
    if info.st_dev != os.stat(root).st_dev or not os.path.exists(f"{path}/cgroup.procs"):
        return "is not a control group"
    if info.st_uid != os.geteuid():
        return f"belongs to user {info.st_uid}"
    return None


def _set_aside(dir_fd: int, name: str, reason: str, report: Report) -> None:
    """Rename a journal that cannot be trusted, so that it is kept for a person to look at and not met again."""
    aside = f"aside-{os.urandom(3).hex()}-{name}"
    try:
        os.rename(name, aside, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except OSError as error:
        reason = f"{reason}; it cannot be set aside: {error.strerror}"
        aside = name
    report.aside.append((aside, reason))
