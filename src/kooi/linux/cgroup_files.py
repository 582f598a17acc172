"""Control group files: strict parsing of what the kernel says, and single writes whose failures name the file.

A value that does not look exactly as the kernel writes it is an error, never a guess: limits and verdicts hang on it.
"""

from __future__ import annotations

import errno
import os
import re
from typing import NamedTuple

from kooi.contract.errors import InvalidRequest, KooiError, SetupFailed

PREFIX = "kooi-"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_NUMBER = re.compile(rb"(0|[1-9][0-9]{0,19})\n")
_READ_BYTES = 4096


class Counters(NamedTuple):
    """What a group used. Nanoseconds, bytes and tasks; a peak is `None` where the kernel keeps none."""

    cpu_ns: int
    memory_peak: int | None
    pids_now: int
    pids_peak: int | None


def check_name(name: str) -> str:
    """Return `name` if it is a valid group name (`[a-z0-9-]+`, at most 63, no leading dash); else `InvalidRequest`."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} is not a control group name: only a-z, 0-9 and '-' are allowed", key="name")
    return name


def check_limit(key: str, value: int | None) -> int | None:
    """Return `value` if it is a positive integer below 2**63 or `None`; else raise `InvalidRequest`."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**63:
        raise InvalidRequest(f"{key} must be a positive integer or None, not {value!r}", key=key)
    return value


def number(data: bytes, what: str) -> int:
    """Parse one decimal number with its newline."""
    match = _NUMBER.fullmatch(data)
    if match is None:
        raise KooiError(f"the kernel's {what} is not a number: {data[:80]!r}")
    return int(match.group(1))


def field(data: bytes, key: str, what: str) -> int:
    """Return the number on the one line of `key` in `key value` lines."""
    prefix = key.encode("ascii") + b" "
    if data.startswith(prefix) and b"\n" + prefix not in data:
        return number(data[len(prefix) : data.find(b"\n") + 1], f"{what} {key}")
    found = [line[len(prefix) :] for line in data.splitlines() if line.startswith(prefix)]
    if len(found) != 1:
        raise KooiError(f"the kernel's {what} has {len(found)} lines of {key!r}: {data[:200]!r}")
    return number(found[0] + b"\n", f"{what} {key}")


def pids(data: bytes, what: str) -> list[int]:
    """Parse one pid a line. 0 stands for a process that this pid namespace cannot see."""
    return [number(line + b"\n", what) for line in data.splitlines()]


def read_fd(fd: int) -> bytes:
    """Read a short control file from its start."""
    return os.pread(fd, _READ_BYTES, 0)


def read_all(path: str) -> bytes:
    """Read a whole control file."""
    with open(path, "rb", buffering=0) as file:
        return file.readall() or b""


def read_pids(path: str) -> list[int]:
    """Return the pids in the group directory `path`; an absent group has none."""
    try:
        return pids(read_all(path + "/cgroup.procs"), "cgroup.procs")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return []
        raise


def write(path: str, value: bytes, dir_fd: int | None = None) -> None:
    """Write `value` in one write; raise `SetupFailed` naming the file and the value."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            os.write(fd, value)
        finally:
            os.close(fd)
    except OSError as error:
        raise SetupFailed(f"cannot write {value!r} to {path}: {error.strerror}") from error


def names(path: str) -> frozenset[str]:
    """Return the names of the control files in the group directory `path`."""
    return frozenset(entry.name for entry in os.scandir(path) if not entry.is_dir(follow_symlinks=False))


def subgroups(path: str) -> list[str]:
    """Return `path` and every group below it, deepest first; an absent group has none."""
    try:
        children = sorted(entry.path for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []
    return [found for child in children for found in subgroups(child)] + [path]
