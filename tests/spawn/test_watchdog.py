"""The watchdog's counting, on this process in the place of a box."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kooi.spawn.entries import Cell, Entry
from kooi.spawn.watchdog import Watchdog


@pytest.fixture
def entry(tmp_path: Path) -> Iterator[Entry]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        entry = Entry(1, Cell("key", {"zygote": {"guest": {"home": str(tmp_path)}, "code": ()}}, ours), theirs)
        entry.pid = os.getpid()
        yield entry


def test_what_is_stored_is_looked_for_in_the_boxs_own_home(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def statvfs(path: str) -> os.statvfs_result:
        asked.append(path)
        return os.statvfs_result((4096, 4096, 1 << 20, 0, 0, 0, 0, 0, 0, 255))

    monkeypatch.setattr(os, "statvfs", statvfs)
    exceeded: list[Entry] = []
    watchdog = Watchdog(exceeded.append, lambda entry, status: None, {})
    # More than this process may grow by meanwhile, less than what is stored.
    watchdog.add(entry, 1 << 31)
    used = watchdog.usage(entry)
    assert (asked, exceeded, used["oom"]) == ([], [], 0), "nothing of its own is mounted there yet"
    assert entry.watch is not None
    entry.watch.outside = -1
    used = watchdog.usage(entry)
    assert set(asked) == {f"/proc/{os.getpid()}/root{entry.cell.home}"}
    assert used["memory_peak"] >= 1 << 32 and exceeded == [entry]
