"""Finding hierarchies and places from what /proc says, on written files; and strictness of the value parsers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kooi.contract.errors import InvalidRequest, KooiError, SetupFailed
from kooi.linux import cgroup_files, cgroup_v2
from kooi.linux.cgroup_files import check_name, field, number, pids
from kooi.linux.cgroup_layout import Hierarchy, hierarchies, v1_layout


def proc(folder: Path, groups: str, mounts: list[tuple[str, str, str, str]]) -> str:
    """Write /proc/self files: `mounts` are (root, mount point, type, options of the superblock)."""
    lines = [
        f"{index} 1 0:{index} {root} {point} rw,relatime shared:1 - {kind} none {options}"
        for index, (root, point, kind, options) in enumerate(mounts, 30)
    ]
    (folder / "cgroup").write_text(groups)
    (folder / "mountinfo").write_text("\n".join(["29 1 8:1 / / rw - ext4 /dev/sda rw", *lines]) + "\n")
    return str(folder)


def made(folder: Path, *names: str) -> list[str]:
    for name in names:
        (folder / name).mkdir(parents=True)
    return [str(folder / name) for name in names]


def test_a_hybrid_host_with_controllers_mounted_together(tmp_path: Path) -> None:
    memory, cpu, systemd, unified = made(tmp_path, "memory/user/me", "cpu,cpuacct", "systemd", "unified/user/me")
    groups = "4:cpu,cpuacct:/\n3:memory:/user/me\n2:name=systemd:/\n0::/user/me\n"
    mounts = [
        ("/", f"{tmp_path}/memory", "cgroup", "rw,memory"),
        ("/", cpu, "cgroup", "rw,cpu,cpuacct"),
        ("/", systemd, "cgroup", "rw,xattr,name=systemd"),
        ("/", f"{tmp_path}/unified", "cgroup2", "rw,nsdelegate"),
    ]
    assert hierarchies(proc(tmp_path, groups, mounts)) == (
        Hierarchy(1, ("memory",), f"{tmp_path}/memory", memory),
        Hierarchy(1, ("cpu", "cpuacct"), cpu, cpu),
        Hierarchy(1, ("name=systemd",), systemd, systemd),
        Hierarchy(2, (), f"{tmp_path}/unified", unified),
    )


def test_a_container_sees_its_own_group_as_the_mount(tmp_path: Path) -> None:
    (mount,) = made(tmp_path, "m")
    found = hierarchies(proc(tmp_path, "3:memory:/docker/abc\n", [("/docker/abc", mount, "cgroup", "ro,memory")]))
    assert found == (Hierarchy(1, ("memory",), mount, mount),)
    found = hierarchies(proc(tmp_path, "3:memory:/docker/abc/x\n", [("/docker/abc", mount, "cgroup", "ro,memory")]))
    assert found == (), "its group is not there to be seen"


@pytest.mark.parametrize("own, root", [("/../other", "/"), ("/docker/abcd", "/docker/abc"), ("/a", "/a/b")])
def test_a_group_outside_the_mount_is_not_found(tmp_path: Path, own: str, root: str) -> None:
    (mount,) = made(tmp_path, "m")
    made(tmp_path, "m/other", "m/a")
    assert hierarchies(proc(tmp_path, f"0::{own}\n", [(root, mount, "cgroup2", "rw")])) == ()


def test_odd_mount_points_and_later_mounts(tmp_path: Path) -> None:
    one, two = made(tmp_path, "with space", "second")
    escaped = one.replace(" ", "\\040")
    found = hierarchies(proc(tmp_path, "0::/\n", [("/", escaped, "cgroup2", "rw")]))
    assert found == (Hierarchy(2, (), one, one),)
    found = hierarchies(proc(tmp_path, "0::/\n", [("/", escaped, "cgroup2", "rw"), ("/", two, "cgroup2", "rw")]))
    assert found == (Hierarchy(2, (), two, two),)


def test_nothing_mounted_is_said_with_a_fix(tmp_path: Path) -> None:
    found = cgroup_v2.v2_layout(hierarchies(proc(tmp_path, "0::/\n", [])))
    assert (found.kind, found.available) == ("none", False)
    assert "mounted" in str(found.reason) and "mount -t cgroup2" in str(found.fix)


def test_plain_v1_without_a_freezer_is_said(tmp_path: Path) -> None:
    memory, tasks = made(tmp_path, "memory", "pids")
    found = v1_layout((Hierarchy(1, ("memory",), memory, memory), Hierarchy(1, ("pids",), tasks, tasks)))
    assert not found.available
    assert found.reason == "no cpuacct and no freezer controller is mounted"
    assert "mount -t cgroup -o cpuacct" in str(found.fix)


def v2_group(path: Path, controllers: str, enabled: str, procs: str = "") -> None:
    path.mkdir(exist_ok=True)
    for name, text in (
        ("controllers", controllers),
        ("subtree_control", enabled),
        ("procs", procs),
        ("type", "domain"),
    ):
        (path / f"cgroup.{name}").write_text(text)


@pytest.mark.parametrize(
    "controllers, enabled, procs, reason, steps",
    [
        ("cpu memory pids", "memory pids", "", None, False),
        ("cpu memory pids", "memory pids", "1\n2\n", None, False),
        ("cpu memory pids", "cpu", "", None, False),
        ("cpu memory pids", "", f"{os.getpid()}\n", None, True),
        ("cpu memory pids", "memory", f"{os.getpid()}\n1\n", "1 other processes", False),
        ("cpu memory pids", "", "0\n", "1 other processes", False),
        ("cpu pids", "", "", "controllers memory are not available", False),
        ("", "", "", "controllers memory, pids are not available", False),
    ],
)
def test_what_a_v2_group_can_give(
    tmp_path: Path, controllers: str, enabled: str, procs: str, reason: str | None, steps: bool
) -> None:
    v2_group(tmp_path / "own", controllers, enabled, procs)
    obstacle, step = cgroup_v2._obstacle(str(tmp_path / "own"))
    assert step is steps
    assert obstacle is None if reason is None else reason in str(obstacle)


def test_to_a_child_its_parent_is_in_the_way(tmp_path: Path) -> None:
    v2_group(tmp_path / "own", "cpu memory pids", "", f"{os.getpid()}\n")
    assert cgroup_v2._obstacle(str(tmp_path / "own")) == (None, True)
    obstacle, step = cgroup_v2._obstacle(str(tmp_path / "own"), for_child=True)
    assert "1 other processes" in str(obstacle) and step is False


def test_numbers_are_parsed_strictly() -> None:
    assert number(b"0\n", "x") == 0
    assert number(b"18446744073709551615\n", "x") == 2**64 - 1
    for bad in (
        b"",
        b"\n",
        b"1",
        b"-1\n",
        b"+1\n",
        b"01\n",
        b"1 \n",
        b"1\n2\n",
        b"max\n",
        b"1_0\n",
        "١\n".encode(),
        b"9" * 21 + b"\n",
    ):
        with pytest.raises(KooiError, match="not a number"):
            number(bad, "x")


def test_one_line_of_a_table_is_parsed_strictly() -> None:
    table = b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
    assert field(table, "oom_kill", "x") == 3
    for bad in (b"", b"oom_kill\n", b"oom_kill -1\n", b"oom_kill 1\noom_kill 2\n", b" oom_kill 1\n", b"oom_kill  1\n"):
        with pytest.raises(KooiError):
            field(bad, "oom_kill", "x")


def test_pid_lists_are_parsed_strictly() -> None:
    assert pids(b"", "x") == []
    assert pids(b"1\n0\n22\n", "x") == [1, 0, 22]
    for bad in (b"1\n\n2\n", b"-1\n", b"1 2\n", b"x\n"):
        with pytest.raises(KooiError):
            pids(bad, "x")


def test_names_and_failed_writes_name_the_file(tmp_path: Path) -> None:
    assert check_name("kooi-0-a") == "kooi-0-a"
    for bad in ("", ".", "..", "a/b", "a\0", "-x", "A", "a" * 64, "kooi_1"):
        with pytest.raises(InvalidRequest):
            check_name(bad)
    with pytest.raises(SetupFailed, match=r"cannot write b'1' to .*/memory\.max: No such file"):
        cgroup_files.write(str(tmp_path / "memory.max"), b"1")


def test_an_absent_group_has_no_members(tmp_path: Path) -> None:
    assert cgroup_files.read_pids(str(tmp_path / "gone")) == []
    assert cgroup_files.subgroups(str(tmp_path / "gone")) == []
