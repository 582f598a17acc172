"""When blanks are made: in quiet moments while there are some, and in any case when they become few."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from kooi.spawn import shop
from kooi.spawn.entries import Cell, Entry
from kooi.spawn.groups import Groups
from kooi.spawn.journal import Journal

AHEAD = 4


class FakeLoop:
    """Remembers what the host was told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        pass

    def forget(self, fd: int) -> None:
        pass

    def tell_host(self, head: dict[str, Any]) -> None:
        self.told.append(head)


class NoGroups:
    """A host without control groups."""

    present = False
    wakeup_fd = -1

    def deliver(self) -> None:
        pass


class Store:
    """A shop with one cell whose blanks are all ready, and a clock that only `after` moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.loop = FakeLoop()
        config = {"rotate_after": 1000, "ids": "single", "blanks_ready": AHEAD}
        self.shop = shop.Shop(self.loop, cast(Groups, NoGroups()), cast(Journal, None), config)
        ours, self.zygote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.cell = Cell("key", {"zygote": {"guest": {"home": "/"}, "code": ()}}, ours)
        self.cell.live = True
        self.shop._cells.serving["key"] = self.cell
        self.ends = [self.zygote]
        for number in range(AHEAD):
            control, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.ends.append(end)
            entry = Entry(-number, self.cell, control)
            entry.pid, entry.pidfd = os.getpid(), -1
            self.cell.ready.append(entry)
        monkeypatch.setattr(shop.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(shop.process, "signal_pidfd", lambda pidfd, number: True)

    def open(self, box: int, fresh: bool = False) -> None:
        limits = dict.fromkeys(("memory", "processes", "disk", "files"))
        head = {"box": box, "cell": "key", "fresh": fresh, **limits}
        self.shop.handle("open", head, b"{}", [os.open("/dev/null", os.O_RDONLY)])

    def kill(self, box: int) -> None:
        self.shop.handle("kill", {"box": box}, b"", [])

    def close(self) -> None:
        """Close what the shop would."""
        blanks = [*self.cell.ready, *self.cell.boxes, *self.cell.making.values()]
        for each in (self.cell.control, *self.ends, *(blank.control for blank in blanks)):
            each.close()

    def after(self, seconds: float) -> int:
        """Let time go by; return how many blanks are being made."""
        self.now += seconds
        self.shop.tick()
        return len(self.cell.making)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store(monkeypatch)
    yield made
    made.close()


def test_blanks_are_made_when_it_has_been_quiet(store: Store) -> None:
    store.open(1)
    assert store.after(0.003) == 0
    assert store.after(0.002) == 1


def test_the_end_of_a_box_puts_it_off(store: Store) -> None:
    store.open(1)
    store.after(0.003)
    store.kill(1)
    assert store.after(0.003) == 0
    assert store.after(0.002) == 1


def test_whoever_asks_without_a_pause_does_not_run_dry(store: Store) -> None:
    for box in (1, 2):
        store.open(box)
        assert store.after(0.003) == 0
    store.open(3)
    store.kill(1)
    assert store.after(0.002) == AHEAD - 1


def test_it_is_quiet_for_longer_while_a_forked_blank_makes_a_fresh_box(store: Store) -> None:
    store.open(1, fresh=True)
    assert store.after(0.011) == 0
    assert store.after(0.002) == 1 + shop.FRESH_AHEAD


def test_whoever_asks_for_fresh_ones_without_a_pause_does_not_run_dry(store: Store) -> None:
    for box in range(1, AHEAD + 1):
        store.open(box, fresh=True)
        assert store.after(0.003) == 0
    assert store.after(0.004) == AHEAD + shop.FRESH_AHEAD
