"""Leases of uids: each spawner has blocks of its own, so no two boxes on the host share one.

A block is leased while its file in the run directory is locked; the kernel ends the lease with its holder. All spawners
that use one range must use one run directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re

from kooi.contract.errors import InvalidRequest, SetupFailed
from kooi.spawn.journal import open_run_dir

GIVEN_AWAY = ("/etc/subuid", "/etc/subgid")
PASSWD = "/etc/passwd"
# 65534 is nobody, 65535 and 2**32 - 1 mean "no uid" to the kernel.
LOWEST, HIGHEST = 65_536, 2**32 - 2


class Lease:
    """A block of uids: `base` to `base + count - 1`, also as gids. Held until `release` or the end of this process."""

    def __init__(self, dir_fd: int, name: str, fd: int, base: int, count: int) -> None:
        self.base = base
        self.count = count
        self._dir_fd, self._name, self._fd = os.dup(dir_fd), name, fd

    def release(self) -> None:
        """Give the block back. Everything that ran under its uids must be gone. Safe twice."""
        if self._fd >= 0:
            # Somebody may have cleared the run directory under us; the lock is what counts.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=self._dir_fd)
            os.close(self._fd)
            os.close(self._dir_fd)
            self._fd = self._dir_fd = -1


class Leases:
    """The blocks of the uid range `base` to `base + count - 1`, coordinated through files in `run_dir`."""

    def __init__(self, run_dir: str, base: int, count: int, block: int = 1024) -> None:
        if block < 1 or count < block:
            raise InvalidRequest(f"{count} uids do not hold a block of {block}", key="count")
        if base < LOWEST or base + count - 1 > HIGHEST:
            raise InvalidRequest(f"the uids {base} to {base + count - 1} are not in {LOWEST} to {HIGHEST}", key="base")
        refuse_overlap(base, count)
        self.base, self.count, self.block = base, count, block
        self._dir_fd = open_run_dir(run_dir)

    def take(self) -> Lease:
        """Lease a free block that no process uses. Raises `SetupFailed` when there is none."""
        for base in range(self.base, self.base + self.count - self.block + 1, self.block):
            lease = self._try(base)
            if lease is None:
                continue
            # A dead holder's boxes may outlive its lease for a moment.
            if not uids_in_use(base, self.block):
                return lease
            lease.release()
        raise SetupFailed(
            f"all {self.count // self.block} blocks of uids from {self.base} are in use",
            fix="configure a larger uid range, or close sandboxes of other processes",
        )

    def close(self) -> None:
        """Close the run directory; leases stay. Safe twice."""
        if self._dir_fd >= 0:
            os.close(self._dir_fd)
            self._dir_fd = -1

    def _try(self, base: int) -> Lease | None:
        name = f"uids-{base}-{self.block}.lock"
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600, dir_fd=self._dir_fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            if os.fstat(fd).st_nlink == 1:
                return Lease(self._dir_fd, name, fd, base, self.block)
            os.close(fd)  # the last holder removed it between our two calls


def uids_in_use(base: int, count: int) -> list[int]:
    """Return the uids from `base` to `base + count - 1` that a process has as real, effective, saved or fs uid.

    A zombie does not count: it can do nothing any more.
    """
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/status", "rb") as file:
                status = file.read()
        except (FileNotFoundError, ProcessLookupError):
            continue
        match = re.search(rb"^Uid:\t(\d+)\t(\d+)\t(\d+)\t(\d+)$", status, re.MULTILINE)
        if match is not None and b"\nState:\tZ" not in status:
            found |= {uid for uid in map(int, match.groups()) if base <= uid < base + count}
    return sorted(found)


def refuse_overlap(base: int, count: int) -> None:
    """Raise `SetupFailed` if a uid of the range is given away by /etc/subuid or /etc/subgid, or is somebody's."""
    for path in GIVEN_AWAY:
        for number, first, length in _ranges(path):
            if first < base + count and base < first + length:
                raise SetupFailed(
                    f"the uids {base} to {base + count - 1} overlap {first} and on in {path} line {number}",
                    fix="configure a uid range that is nobody's",
                )
    for number, fields in _lines(PASSWD):
        if len(fields) >= 3 and fields[2].isdigit() and base <= int(fields[2]) < base + count:
            raise SetupFailed(
                f"uid {fields[2]} of {fields[0]} ({PASSWD} line {number}) is in {base} to {base + count - 1}",
                fix="configure a uid range that is nobody's",
            )


def _ranges(path: str) -> list[tuple[int, int, int]]:
    """Return (line number, first, count) of each line; an unreadable one could hide an overlap, so it is an error."""
    found = []
    for number, fields in _lines(path):
        if len(fields) != 3 or not (fields[1].isdigit() and fields[2].isdigit()):
            raise SetupFailed(f"{path} line {number} is not NAME:FIRST:COUNT", fix="correct or remove the line")
        found.append((number, int(fields[1]), int(fields[2])))
    return found


def _lines(path: str) -> list[tuple[int, list[str]]]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    return [
        (number, line.split(":"))
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
