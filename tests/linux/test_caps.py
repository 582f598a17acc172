"""Capabilities: the five sets are set and read as asked, and what is dropped does not come back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kooi.contract.errors import InvalidRequest
from kooi.linux import caps, libc
from tests.linux.children import errno_of, in_child

NET_RAW, SETUID, KILL = caps.mask(["net_raw"]), caps.mask(["setuid"]), caps.mask(["kill"])
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs capabilities to drop")
OTHER = 61234


def test_the_names_are_the_kernels() -> None:
    header = Path("/usr/include/linux/capability.h")
    if not header.exists():
        pytest.skip("linux-libc-dev is not installed")
    defined = {}
    for line in header.read_text().splitlines():
        parts = line.split()
        if len(parts) >= 3 and parts[0] == "#define" and parts[1].startswith("CAP_") and parts[2].isdigit():
            defined[parts[1][4:].lower()] = int(parts[2])
    assert {name: caps.NAMES.index(name) for name in defined} == defined


def test_names_and_masks_are_inverse() -> None:
    assert caps.names(caps.mask(caps.NAMES)) == caps.NAMES
    assert caps.names(1 << 60) == ["capability 60"]
    with pytest.raises(InvalidRequest):
        caps.mask(["sys_everything"])


def test_the_last_capability_is_what_the_kernel_says() -> None:
    assert caps.last() == int(Path("/proc/sys/kernel/cap_last_cap").read_text())


@as_root
def test_sets_are_set_exactly_and_cannot_grow_back() -> None:
    def dropped() -> list[object]:
        caps.set_caps(permitted=SETUID | KILL, effective=KILL)
        found = caps.read()
        return [found, errno_of(caps.set_caps, SETUID | KILL | NET_RAW, 0)]

    found, refused = in_child(dropped)
    assert (found["permitted"], found["effective"]) == (SETUID | KILL, KILL)
    assert (found["inheritable"], found["ambient"], refused) == (0, 0, errno.EPERM)


@as_root
def test_dropping_all_takes_the_power_away() -> None:
    """The control: root may give a file away; without capabilities the same call is refused."""

    def give_away(drop: bool) -> int:
        if drop:
            caps.set_caps()
        fd = libc.syscall(libc.nr("memfd_create"), b"x\0", 1)
        return errno_of(os.fchown, fd, OTHER, OTHER)

    assert in_child(lambda: give_away(False)) == 0
    assert in_child(lambda: give_away(True)) == errno.EPERM


@as_root
def test_the_bounding_set_is_emptied_but_for_what_is_kept() -> None:
    def dropped() -> list[int]:
        caps.drop_bounding(keep=KILL)
        kept = caps.read()["bounding"]
        caps.drop_bounding()
        return [kept, caps.read()["bounding"]]

    assert in_child(dropped) == [KILL, 0]


@as_root
def test_an_empty_bounding_set_gives_nothing_to_a_program_run_as_root() -> None:
    def run(drop: bool) -> int:
        read_fd, write_fd = os.pipe()
        if drop:
            caps.drop_bounding()
        child = os.fork()
        if child == 0:
            os.dup2(write_fd, 1)
            os.execv("/bin/grep", ["grep", "CapEff", "/proc/self/status"])
        os.waitpid(child, 0)
        return int(os.read(read_fd, 100).split()[1], 16)

    assert in_child(lambda: run(False)) != 0
    assert in_child(lambda: run(True)) == 0


@as_root
def test_keepcaps_decides_what_survives_a_change_of_uid() -> None:
    def change(keep: bool) -> list[int]:
        caps.set_keepcaps(keep)
        os.setresuid(OTHER, OTHER, OTHER)
        found = caps.read()
        return [found["permitted"], found["effective"]]

    before = caps.read()["permitted"]
    assert in_child(lambda: change(True)) == [before, 0]
    assert in_child(lambda: change(False)) == [0, 0]


def test_a_status_text_is_parsed_whole() -> None:
    text = "Name:\tx\nCapInh:\t0000000000000001\nCapPrm:\t2\nCapEff:\t3\nCapBnd:\t4\nCapAmb:\t5\nSeccomp:\t2\n"
    expected = {"inheritable": 1, "permitted": 2, "effective": 3, "bounding": 4, "ambient": 5}
    assert caps.parse(text) == expected
    assert tuple(caps.read()) == caps.SETS
