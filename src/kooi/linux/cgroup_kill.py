"""Ending control groups: kill what is in them, wait until they are empty, remove them. Works on paths alone.

The spawner uses it for its own groups, the reaper for those of a spawner that died. A process is only ever killed
as a member of a group: by `cgroup.kill`, or by a pidfd opened between two looks at the member list, so that a pid
that was reused in between is not hit.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Iterable, Mapping

from kooi.contract.errors import KooiError
from kooi.linux.cgroup_files import read_all, read_pids, subgroups
from kooi.linux.process import open_pidfd, signal_pidfd

_PAUSE = 0.0005
_FREEZE_SECONDS = 0.05


def members(paths: Iterable[str]) -> set[int]:
    """Return the pids in the groups at `paths` and below them."""
    return {pid for path in paths for group in subgroups(path) for pid in read_pids(group)}


def kill_members(paths: Mapping[str, str], seconds: float = 5.0) -> bool:
    """Kill every process in the groups at `paths` (controller to path) and below; return whether all are gone.

    The calling process itself is spared: a spawner may sit in its own tree.
    """
    end = time.monotonic() + seconds
    while True:
        _kill_once(paths)
        if not _others(paths):
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(_PAUSE)


def remove_groups(paths: Iterable[str], seconds: float = 1.0) -> None:
    """Remove the groups at `paths` and below, deepest first; absent ones are fine. Busy ones are retried briefly."""
    end = time.monotonic() + seconds
    for path in paths:
        for group in subgroups(path):
            remove_group(group, end)


def remove_group(path: str, end: float) -> None:
    """Remove one empty group; a busy one is retried until the monotonic time `end`."""
    while True:
        try:
            os.rmdir(path)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            # A group stays busy for a moment after its last process is gone from the member list.
            if error.errno != errno.EBUSY or time.monotonic() >= end:
                raise KooiError(f"cannot remove the control group {path}: {error.strerror}") from error
        time.sleep(_PAUSE)


def _others(paths: Mapping[str, str]) -> set[int]:
    return members(set(paths.values())) - {os.getpid()}


def _kill_once(paths: Mapping[str, str]) -> None:
    if os.getpid() not in members(set(paths.values())):
        _try_write(paths.get("unified"), "cgroup.kill", b"1")
    if not _others(paths):
        return
    freezer = paths.get("freezer")
    if freezer is not None:
        _try_write(freezer, "freezer.state", b"FROZEN")
        _wait_frozen(freezer)
    try:
        _signal_members(paths)
    finally:
        _try_write(freezer, "freezer.state", b"THAWED")


def _try_write(path: str | None, name: str, value: bytes) -> None:
    if path is None:
        return
    try:
        fd = os.open(f"{path}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.write(fd, value)
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.ENOENT):
            raise
    finally:
        os.close(fd)


def _wait_frozen(path: str) -> None:
    end = time.monotonic() + _FREEZE_SECONDS
    while time.monotonic() < end:
        try:
            if read_all(path + "/freezer.state") == b"FROZEN\n":
                return
        except FileNotFoundError:
            return
        time.sleep(_PAUSE)


def _signal_members(paths: Mapping[str, str]) -> None:
    """Send SIGKILL to every member that is still one after its pidfd was opened."""
    opened = {}
    try:
        for pid in sorted(_others(paths) - {0}):
            try:
                opened[pid] = open_pidfd(pid)
            except ProcessLookupError:
                continue
        for pid in sorted(_others(paths) & set(opened)):
            signal_pidfd(opened[pid], signal.SIGKILL)
    finally:
        _close_all(list(opened.values()))


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
