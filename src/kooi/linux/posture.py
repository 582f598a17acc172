"""What a process of a box is, read from outside through /proc, and how it differs from what it should be.

Theory of operation: everything is read below one descriptor of /proc/PID, so a number that is reused meanwhile gives an
error and never somebody else's answer. Nothing the process says about itself is used: no name, no path, no text of its
own making gets into the record. `diff` takes what was expected as an upper bound: less is fine, more is a finding.
"""

from __future__ import annotations

import os
import stat
from typing import Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from kooi.linux import caps

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")

# What must be the same in every thread; a setting made in one thread only is none.
_UNIFORM = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_STATUS_BYTES = 64 * 1024


class ProcessFacts(NamedTuple):
    """One process as seen from outside. Ids are as the reader sees them: real, effective, saved, file system.

    `namespaces` says "own" or "inherited" (the same as the reference process's). `fds` are classes, never names:
    "socket", "pipe", "regular", "regular deleted", "memfd", "directory", "character 1:3", "anon:eventpoll".
    `dumpable` is False where it is proved; a process whose uid is root of its user namespace counts as dumpable.
    """

    role: str
    uids: Tuple[int, ...]
    gids: Tuple[int, ...]
    groups: Tuple[int, ...]
    capabilities: Dict[str, int]
    no_new_privs: bool
    seccomp: int
    namespaces: Dict[str, str]
    fds: Tuple[str, ...]
    dumpable: bool
    threads_uniform: bool


class Expected(NamedTuple):
    """The most a process may be. `fds` maps a class to how many it may hold, None for any number."""

    uid: int
    gid: int
    groups: FrozenSet[int]
    capabilities: Dict[str, int]
    own: FrozenSet[str]
    fds: Mapping[str, Optional[int]]
    dumpable: bool
    seccomp: int


class Mount(NamedTuple):
    """One mount of a process's world; `root` is the folder of its file system that it shows."""

    point: str
    kind: str
    options: FrozenSet[str]
    root: str

    def __str__(self) -> str:
        origin = "" if self.root == "/" else f" showing {self.root}"
        return f"{self.point} {self.kind} {','.join(sorted(self.options))}{origin}"


def collect(pid: int, role: str, reference_pid: int) -> ProcessFacts:
    """Read a process ("agent" or "code"), its namespaces against those of `reference_pid`. Raises `OSError`."""
    process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        reference = os.open(f"/proc/{reference_pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _collect(process, role, reference)
        finally:
            os.close(reference)
    finally:
        os.close(process)


def _collect(process: int, role: str, reference: int) -> ProcessFacts:
    text = _read(process, "status")
    status = _fields(text)
    uids = _numbers(status["Uid"])
    return ProcessFacts(
        role=role,
        uids=uids,
        gids=_numbers(status["Gid"]),
        groups=_numbers(status["Groups"]),
        capabilities=caps.parse(text),
        no_new_privs=status["NoNewPrivs"] == "1",
        seccomp=int(status["Seccomp"]),
        namespaces=_namespaces(process, reference),
        fds=_descriptors(process),
        dumpable=_owner(process, "fd") == uids[1],
        threads_uniform=_uniform(process, status),
    )


def mounts(pid: int) -> Tuple[Mount, ...]:
    """Return the mounts of a process's world, in the order they were made. Raises `OSError`."""
    with open(f"/proc/{pid}/mountinfo", "rb") as file:
        return tuple(_mount(line) for line in file.read().decode("utf-8", "backslashreplace").splitlines())


def expected(
    uid: int,
    gid: int,
    *,
    groups: Iterable[int] = (),
    capabilities: int = 0,
    bounding: Optional[int] = None,
    own: Iterable[str] = NAMESPACES,
    fds: Optional[Mapping[str, Optional[int]]] = None,
    dumpable: bool = False,
    seccomp: int = 2,
) -> Expected:
    """Return the most a process may be. The default is a process with no privilege and no descriptor.

    `capabilities` bounds the permitted and effective sets, `bounding` that set (default: the same).
    """
    sets = dict.fromkeys(caps.SETS, 0)
    sets["permitted"] = sets["effective"] = capabilities
    sets["bounding"] = capabilities if bounding is None else bounding
    return Expected(uid, gid, frozenset(groups), sets, frozenset(own), fds or {}, dumpable, seccomp)


def diff(bound: Expected, found: ProcessFacts) -> List[str]:
    """Return everything in which `found` is more than `bound` allows; empty when it holds."""
    problems = []
    if set(found.uids) != {bound.uid}:
        problems.append(f"uids are {found.uids}, not only {bound.uid}")
    if set(found.gids) != {bound.gid}:
        problems.append(f"gids are {found.gids}, not only {bound.gid}")
    extra = sorted(set(found.groups) - bound.groups)
    if extra:
        problems.append(f"it is in the groups {extra}")
    for name in caps.SETS:
        more = found.capabilities.get(name, -1) & ~bound.capabilities[name]
        if more:
            problems.append(f"its {name} capabilities have {', '.join(caps.names(more & (2**64 - 1)))}")
    if not found.no_new_privs:
        problems.append("no_new_privs is not set")
    if bound.seccomp and found.seccomp != bound.seccomp:
        problems.append(f"seccomp mode is {found.seccomp}, not {bound.seccomp}")
    problems += [f"its {name} namespace is not its own" for name in sorted(bound.own) if _shared(found, name)]
    problems += _more_descriptors(bound.fds, found.fds)
    if found.dumpable and not bound.dumpable:
        problems.append("it is dumpable")
    if not found.threads_uniform:
        problems.append("its threads differ from each other")
    return problems


def diff_mounts(bound: Mapping[str, Iterable[str]], found: Sequence[Mount]) -> List[str]:
    """Return the mounts that `bound` does not name, and options it asks for that are missing.

    `bound` maps each mount point that may be there to the options it must have, such as "ro", "nosuid", "nodev".
    """
    problems = []
    for mount in found:
        if mount.point not in bound:
            problems.append(f"{mount.point} is mounted ({mount.kind})")
            continue
        missing = sorted(set(bound[mount.point]) - mount.options)
        if missing:
            problems.append(f"{mount.point} is mounted without {', '.join(missing)}")
    return problems


def _shared(found: ProcessFacts, name: str) -> bool:
    return found.namespaces.get(name) != "own"


def _more_descriptors(bound: Mapping[str, Optional[int]], found: Sequence[str]) -> List[str]:
    problems = []
    for kind in sorted(set(found)):
        count, most = found.count(kind), bound.get(kind, 0)
        if most is not None and count > most:
            problems.append(f"it holds {count} descriptors of class {kind!r}, not {most}")
    return problems


def _read(directory: int, name: str) -> str:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return os.read(fd, _STATUS_BYTES).decode("utf-8", "replace")
    finally:
        os.close(fd)


def _fields(text: str) -> Dict[str, str]:
    # The process chooses its own name, but the kernel escapes line ends in it: it cannot add a line.
    pairs = (line.split(":", 1) for line in text.split("\n") if ":" in line)
    return {key: value.strip() for key, value in pairs}


def _numbers(text: str) -> Tuple[int, ...]:
    return tuple(int(word) for word in text.split())


def _owner(process: int, name: str) -> int:
    """Return who owns a protected file of the process: itself when it is dumpable, else root of its memory's world."""
    return os.stat(name, dir_fd=process).st_uid


def _namespaces(process: int, reference: int) -> Dict[str, str]:
    found = {}
    for name in NAMESPACES:
        try:
            theirs = os.readlink("ns/" + name, dir_fd=reference)
        except FileNotFoundError:  # a kernel without this kind
            continue
        ours = os.readlink("ns/" + name, dir_fd=process)
        found[name] = "inherited" if ours == theirs else "own"
    return found


def _descriptors(process: int) -> Tuple[str, ...]:
    directory = os.open("fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
    try:
        classes = []
        for name in os.listdir(directory):
            try:
                classes.append(_class(os.readlink(name, dir_fd=directory), os.stat(name, dir_fd=directory)))
            except FileNotFoundError:  # closed meanwhile
                continue
        return tuple(sorted(classes))
    finally:
        os.close(directory)


def _class(target: str, about: os.stat_result) -> str:
    mode = about.st_mode
    if not target.startswith("/") and not stat.S_ISSOCK(mode) and not stat.S_ISFIFO(mode):
        kind, _, rest = target.partition(":")  # "anon_inode:[eventpoll]", "pidfd:[12]", "net:[34]"
        return "anon:" + (rest.strip("[]") if kind == "anon_inode" else kind)
    if stat.S_ISREG(mode):
        if target.startswith("/memfd:"):
            return "memfd"
        return "regular" if about.st_nlink else "regular deleted"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        kind = "character" if stat.S_ISCHR(mode) else "block"
        return f"{kind} {os.major(about.st_rdev)}:{os.minor(about.st_rdev)}"
    names = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "pipe", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    return names.get(stat.S_IFMT(mode), "other")


def _uniform(process: int, status: Mapping[str, str]) -> bool:
    """Say whether all threads have the first one's ids, capabilities, filter and namespaces."""
    threads = _names(process, "task")
    if len(threads) == 1:
        return True
    first = {name: os.readlink("ns/" + name, dir_fd=process) for name in _names(process, "ns") if name in NAMESPACES}
    for thread in threads:
        try:
            fields = _fields(_read(process, f"task/{thread}/status"))
            links = {name: os.readlink(f"task/{thread}/ns/{name}", dir_fd=process) for name in first}
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        if links != first or any(fields.get(name) != status.get(name) for name in _UNIFORM):
            return False
    return True


def _names(process: int, folder: str) -> List[str]:
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
    try:
        return os.listdir(directory)
    finally:
        os.close(directory)


def _mount(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    fields, kind = before.split(" "), after.split(" ")
    return Mount(point=fields[4], kind=kind[0], options=frozenset(fields[5].split(",")), root=fields[3])
