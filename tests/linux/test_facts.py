"""The host's facts: true here as root and as an ordinary user, and honest where something is refused."""

from __future__ import annotations

import dataclasses
import errno
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kooi.contract.backend import HostFacts
from kooi.linux import bpf, cgroup, facts, landlock, libc, seccomp, subids
from kooi.linux.seccomp_numbers import numbers
from tests.linux.children import in_child

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="needs root")
NEWNS, NEWUSER = 0x20000, 0x10000000
NAMESPACE_FIELDS = ("user_namespaces", "mount_in_userns", "proc_in_userns")


def everything_works() -> bool:
    """What the system's own tool says about the same three steps."""
    if shutil.which("unshare") is None:
        pytest.skip("the unshare program is not installed")
    command = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def test_the_facts_fill_the_contract_and_agree_with_the_systems_own_tool() -> None:
    found = facts.report()
    host = HostFacts(**facts.gather())
    assert dataclasses.asdict(host) == found["host"]
    assert (host.system, host.euid, host.landlock_abi) == ("Linux", os.geteuid(), landlock.abi())
    assert host.python == sys.executable and host.python_version == sys.version_info[:2]
    assert host.cpus == len(os.sched_getaffinity(0))
    assert all(found["host"][field] for field in NAMESPACE_FIELDS) is everything_works()


def test_whatever_is_missing_has_a_reason_and_nothing_else_has() -> None:
    found = facts.report()
    optional = [*NAMESPACE_FIELDS, "landlock_abi", "cgroup_writable", "subuid_count", "newuidmap"]
    missing = {field for field in optional if not found["host"][field]}
    missing |= {"cgroup"} if found["host"]["cgroup"] == "none" else set()
    assert set(found["reasons"]) == missing
    assert all(len(reason) > 20 for reason in found["reasons"].values())


@pytest.fixture
def user() -> Iterator[Any]:
    """A throwaway user, with the sub-uids that the system gives to a new one."""
    import pwd

    if not ROOT or shutil.which("useradd") is None:
        pytest.skip("needs root and useradd")
    name = f"kooi-t{os.getpid()}"
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/false", name], check=True)
    try:
        yield pwd.getpwnam(name)
    finally:
        subprocess.run(["userdel", name], check=True, stderr=subprocess.DEVNULL)


def test_an_ordinary_user_gets_facts_of_his_own(user: Any) -> None:
    given = [line.split(":") for line in Path("/etc/subuid").read_text().splitlines()]
    expected = sum(int(count) for name, _, count in given if name == user.pw_name)

    def as_user() -> Any:
        os.setgroups([])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
        return [facts.report(), everything_works()]

    found, works = in_child(as_user)
    assert found["host"]["euid"] == user.pw_uid
    assert found["host"]["subuid_count"] == expected
    assert all(found["host"][field] for field in NAMESPACE_FIELDS) is works
    assert not found["host"]["cgroup_writable"] and "delegate" in found["reasons"]["cgroup_writable"].lower()


def refuse(number: int, code: int) -> None:
    """Install a filter that refuses one call: a stand-in for what a container or a security module does."""
    program = [
        (bpf.LOAD_ABSOLUTE, 0, 0, bpf.OFFSET_NUMBER),
        (bpf.JUMP_EQUAL, 0, 1, number),
        (bpf.RETURN, 0, 0, bpf.ERRNO | code),
        (bpf.RETURN, 0, 0, bpf.ALLOW),
    ]
    libc.syscall(libc.nr("prctl"), 38, 1, 0, 0, 0)
    seccomp.install(seccomp.Program(bpf.assemble(program), frozenset(), "x86_64"))


def gather_without(name: str, code: int) -> Any:
    def run() -> Any:
        refuse(numbers(os.uname().machine)[name], code)
        return facts.report()

    return in_child(run)


def test_refused_user_namespaces_are_told_with_the_likely_cause() -> None:
    found = gather_without("unshare", errno.EPERM)
    assert not any(found["host"][field] for field in NAMESPACE_FIELDS)
    for field in NAMESPACE_FIELDS:
        assert "Operation not permitted" in found["reasons"][field] and "seccomp" in found["reasons"][field]


def test_a_user_namespace_in_which_nothing_may_be_mounted_is_not_enough() -> None:
    """As on systems that let an unprivileged user make the namespace and refuse what it is for."""
    if not everything_works():
        pytest.skip("no user namespaces here")
    found = gather_without("mount", errno.EACCES)
    assert [found["host"][field] for field in NAMESPACE_FIELDS] == [True, False, False]
    assert "mounting" in found["reasons"]["mount_in_userns"]


def test_a_kernel_without_landlock_is_told() -> None:
    found = gather_without("landlock_create_ruleset", errno.ENOSYS)
    assert found["host"]["landlock_abi"] == 0 and "Landlock" in found["reasons"]["landlock_abi"]


@needs_root
def test_a_masked_proc_is_found_out() -> None:
    """As in a container, where parts of /proc have something mounted over them."""

    def masked() -> Any:
        libc.syscall(libc.nr("unshare"), NEWNS)
        libc.syscall(libc.nr("mount"), b"none", b"/", None, 0x44000, None)
        libc.syscall(libc.nr("mount"), b"/dev/null", b"/proc/meminfo", None, 0x1000, None)
        return facts.report()

    if not everything_works():
        pytest.skip("no user namespaces here")
    found = in_child(masked)
    assert [found["host"][field] for field in NAMESPACE_FIELDS] == [True, True, False]
    assert "masked" in found["reasons"]["proc_in_userns"]


def test_a_limit_of_no_user_namespaces_is_named() -> None:
    """The setting counts in the user namespace where it is made, so it is made in one of our own."""

    def limited() -> Any:
        uid = os.geteuid()
        libc.syscall(libc.nr("unshare"), NEWUSER)
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        return facts.report()

    if not everything_works():
        pytest.skip("no user namespaces here")
    found = in_child(limited)
    assert not found["host"]["user_namespaces"]
    assert "user.max_user_namespaces" in found["reasons"]["user_namespaces"]


def test_a_probe_that_cannot_run_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    found = facts.report()
    assert not any(found["host"][field] for field in NAMESPACE_FIELDS)
    assert "could not be tried" in found["reasons"]["user_namespaces"]


def test_control_groups_count_as_there_only_where_a_tree_can_be_made() -> None:
    reasons: dict[str, str] = {}
    layout = cgroup.layout(for_child=True)
    assert facts._cgroup(reasons) == {"cgroup": layout.kind, "cgroup_writable": layout.available}
    assert ("cgroup" in reasons) is (layout.kind == "none")
    assert ("cgroup_writable" in reasons) is not layout.available


def test_control_groups_that_cannot_be_looked_at_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: object) -> cgroup.Layout:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(cgroup, "layout", refused)
    reasons: dict[str, str] = {}
    assert facts._cgroup(reasons) == {"cgroup": "none", "cgroup_writable": False}
    assert "Permission denied" in reasons["cgroup_writable"]


def test_sub_uids_are_found_by_name_and_by_number(tmp_path: Path) -> None:
    import pwd

    try:
        me = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        pytest.skip("this user has no name")
    path = tmp_path / "subuid"
    path.write_text(f"{me}:100000:65536\n{os.geteuid()}:300000:10\nother:1:1\n{me}:x:1\nbroken\n{me}:1:2:3\n")
    assert subids.ranges(str(path)) == [(100000, 65536), (300000, 10)]
    assert subids.first(str(path)) == (100000, 65536)
    assert subids.ranges(str(tmp_path / "nothing")) == []
    assert subids.first(str(tmp_path / "nothing")) == (0, 0)


def test_the_detail_is_what_the_kernel_says() -> None:
    detail = facts.report()["detail"]
    for name, value in detail["sysctls"].items():
        assert Path("/proc/sys", *name.split(".")).read_text().strip() == value
    folder = Path("/sys/devices/system/cpu/vulnerabilities")
    assert sorted(detail["cpu_vulnerabilities"]) == sorted(path.name for path in folder.glob("*"))


def test_another_system_has_none_of_it_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    mac = platform.uname()._replace(system="Darwin", release="23.1.0", machine="arm64")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "uname", lambda: mac)
    found = facts.report()
    host = HostFacts(**found["host"])
    assert (host.system, host.landlock_abi, host.cgroup, host.user_namespaces) == ("Darwin", 0, "none", False)
    assert all("Darwin" in reason for reason in found["reasons"].values()) and len(found["reasons"]) == 8
