"""The posture collector: a well-made process passes, and every single slackness is a finding."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kooi.linux import caps, libc, posture, seccomp
from tests.linux.children import errno_of, in_child

ROOT = os.geteuid() == 0
UID = 61234 if ROOT else os.geteuid()
GID = 61234 if ROOT else os.getegid()
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWNET, NEWCGROUP = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x40000000, 0x2000000
OWN = ("ipc", "net", "uts") if ROOT else ()


def set_dumpable(value: int) -> None:
    libc.syscall(libc.nr("prctl"), 4, value, 0, 0, 0)


def no_new_privs() -> None:
    libc.syscall(libc.nr("prctl"), 38, 1, 0, 0, 0)


def close_all_but(*kept: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the listing's own
                pass


@contextmanager
def process(setup: Callable[[], list[int] | None]) -> Iterator[int]:
    """Yield the pid of a forked child that has run `setup`, keeps the descriptors it returned, and now waits."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            close_all_but(write_fd)
            kept = setup() or []
            close_all_but(write_fd, *kept)
            os.write(write_fd, b"x")
            os.close(write_fd)
            while True:
                time.sleep(60)
        finally:
            os._exit(1)
    os.close(write_fd)
    try:
        assert os.read(read_fd, 9) == b"x", "the child could not set itself up"
        assert os.read(read_fd, 9) == b""  # it closed its end
        yield pid
    finally:
        os.close(read_fd)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def well_made(skip: str = "", dumpable: int = 0) -> None:
    """Become what `bound` expects, but for the step to skip."""
    if ROOT:
        if skip != "namespaces":
            libc.syscall(libc.nr("unshare"), NEWUTS | NEWIPC | NEWNET)
        os.setgroups([] if skip != "groups" else [0, 61235])
        if skip != "bounding":
            caps.drop_bounding()
        if skip in ("ids", "capabilities"):
            caps.set_keepcaps(True)
        if skip != "ids":
            os.setresgid(GID, GID, GID)
            os.setresuid(UID, UID, UID if skip != "saved id" else 0)
        if skip == "capabilities":
            caps.set_caps(permitted=caps.mask(["kill"]), effective=caps.mask(["kill"]))
        elif skip != "saved id":
            caps.set_caps()
    set_dumpable(dumpable)
    if skip != "no_new_privs":
        no_new_privs()
        if skip != "seccomp":
            seccomp.install(seccomp.program())


BOUND = posture.expected(UID, GID, groups=[] if ROOT else os.getgroups(), own=OWN)
needs_root = pytest.mark.skipif(not ROOT, reason="only root can make such a process")


def findings(setup: Callable[[], None], bound: posture.Expected = BOUND, role: str = "code") -> list[str]:
    with process(setup) as pid:
        return posture.diff(bound, posture.collect(pid, role, os.getpid()))


@needs_root
def test_a_well_made_process_passes_and_is_described_whole() -> None:
    with process(well_made) as pid:
        facts = posture.collect(pid, "code", os.getpid())
    assert posture.diff(BOUND, facts) == []
    assert facts.uids == (UID,) * 4 and facts.gids == (GID,) * 4 and facts.groups == ()
    assert facts.capabilities == dict.fromkeys(caps.SETS, 0)
    assert (facts.no_new_privs, facts.seccomp, facts.dumpable, facts.threads_uniform) == (True, 2, False, True)
    assert {name for name, whose in facts.namespaces.items() if whose == "own"} == {"ipc", "net", "uts"}
    assert facts.namespaces["user"] == "inherited" and facts.fds == ()


@needs_root
@pytest.mark.parametrize(
    ("skipped", "texts"),
    [
        ("namespaces", ["its ipc namespace", "its net namespace", "its uts namespace"]),
        ("groups", ["it is in the groups [0, 61235]"]),
        ("bounding", ["its bounding capabilities have chown"]),
        ("saved id", ["uids are (61234, 61234, 0, 61234)"]),
        ("capabilities", ["permitted capabilities have kill", "effective capabilities have kill"]),
        ("no_new_privs", ["no_new_privs is not set", "seccomp mode is 0, not 2"]),
        ("seccomp", ["seccomp mode is 0, not 2"]),
    ],
)
def test_every_step_left_out_is_a_finding(skipped: str, texts: list[str]) -> None:
    found = findings(lambda: well_made(skipped))
    for text in texts:
        assert any(text in line for line in found), (text, found)
    if skipped != "saved id":  # a saved id of root brings root's permitted capabilities along
        assert len(found) == len(texts), found


def test_a_dumpable_process_is_a_finding_unless_it_may_be() -> None:
    if ROOT:
        assert findings(lambda: well_made(dumpable=1)) == ["it is dumpable"]
        assert findings(lambda: well_made(dumpable=1), BOUND._replace(dumpable=True)) == []
    else:
        with process(lambda: None) as pid:
            assert posture.collect(pid, "code", os.getpid()).dumpable


@needs_root
def test_less_than_allowed_is_no_finding() -> None:
    roomy = posture.expected(UID, GID, groups=[5], capabilities=2**41 - 1, own=["net"], dumpable=True)
    assert findings(well_made, roomy) == []


def open_every_kind() -> list[int]:
    poll = select.epoll()
    return [
        os.dup(poll.fileno()),
        *os.pipe(),
        socket.socket().detach(),
        os.memfd_create("/etc/shadow"),
        os.open("/", os.O_RDONLY),
        os.open("/dev/null", os.O_RDONLY),
        os.open("/etc/passwd", os.O_RDONLY),
        os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600),
        os.pidfd_open(os.getpid()),
        os.open("/proc/self/ns/net", os.O_RDONLY),
    ]


EVERY_KIND = {
    "anon:eventpoll": 1,
    "pipe": 2,
    "socket": 1,
    "memfd": 1,
    "directory": 1,
    "character 1:3": 1,
    "regular": 1,
    "regular deleted": 1,
    "anon:pidfd": 1,
    "anon:net": 1,
}


def test_descriptors_are_told_by_class_and_counted() -> None:
    with process(open_every_kind) as pid:
        facts = posture.collect(pid, "code", os.getpid())
    assert {kind: facts.fds.count(kind) for kind in facts.fds} == EVERY_KIND
    plain = facts._replace(no_new_privs=True, seccomp=2, dumpable=False, capabilities=dict.fromkeys(caps.SETS, 0))
    mine = posture.expected(os.geteuid(), os.getegid(), groups=os.getgroups(), own=(), fds=EVERY_KIND)
    assert posture.diff(mine, plain) == []
    fewer = mine._replace(fds={**EVERY_KIND, "pipe": 1, "memfd": 0, "socket": None})
    assert posture.diff(fewer, plain) == [
        "it holds 1 descriptors of class 'memfd', not 0",
        "it holds 2 descriptors of class 'pipe', not 1",
    ]


def with_a_thread(action: Callable[[], Any]) -> Callable[[], None]:
    def setup() -> None:
        done = threading.Event()

        def other() -> None:
            action()
            done.set()
            time.sleep(60)

        threading.Thread(target=other, daemon=True).start()
        assert done.wait(10)

    return setup


def test_a_setting_made_in_one_thread_only_is_a_finding() -> None:
    for action, uniform in ((lambda: None, True), (no_new_privs, False)):
        with process(with_a_thread(action)) as pid:
            assert len(os.listdir(f"/proc/{pid}/task")) == 2
            facts = posture.collect(pid, "code", os.getpid())
        assert facts.threads_uniform is uniform
        assert ("its threads differ from each other" in posture.diff(BOUND, facts)) is not uniform


@needs_root
def test_a_namespace_or_a_capability_of_one_thread_only_is_a_finding() -> None:
    for action in (lambda: libc.syscall(libc.nr("unshare"), NEWNET), caps.set_caps):
        with process(with_a_thread(action)) as pid:
            assert not posture.collect(pid, "code", os.getpid()).threads_uniform


EXECUTED = "import ctypes, sys, time; ctypes.CDLL(None).prctl(4, 0); print('x', flush=True); time.sleep(60)"


def unshare_user() -> None:
    uid = os.geteuid()
    libc.syscall(libc.nr("unshare"), NEWUSER | NEWNET | NEWNS)
    with open("/proc/self/uid_map", "w", encoding="ascii") as file:
        file.write(f"0 {uid} 1")


def test_who_made_a_user_namespace_can_read_a_non_dumpable_program_started_in_it() -> None:
    if in_child(lambda: errno_of(unshare_user)):
        pytest.skip("no user namespaces here")
    command = [sys.executable, "-I", "-S", "-c", EXECUTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=unshare_user) as program:
        try:
            assert program.stdout is not None and program.stdout.readline() == b"x\n"
            facts = posture.collect(program.pid, "agent", os.getpid())
        finally:
            program.kill()
    own = {name for name, whose in facts.namespaces.items() if whose == "own"}
    assert own == {"user", "net", "mnt"} and facts.role == "agent" and facts.fds.count("pipe") == 1
    assert facts.dumpable  # it is not, but root of its namespace is who it is: nothing to see from outside


@pytest.mark.skipif(ROOT, reason="root can read every process")
def test_one_that_was_not_started_in_it_is_an_error_and_never_a_guess() -> None:
    """Its memory still belongs to the outer namespace: the program must be executed inside."""

    def unshared() -> None:
        unshare_user()
        set_dumpable(0)

    with process(unshared) as pid, pytest.raises(PermissionError):
        posture.collect(pid, "agent", os.getpid())


@needs_root
def test_mounts_are_read_from_outside_and_compared() -> None:
    def mounted() -> None:
        libc.syscall(libc.nr("unshare"), NEWNS)
        libc.syscall(libc.nr("mount"), b"none", b"/", None, 0x44000, None)
        libc.syscall(libc.nr("mount"), b"tmpfs", b"/mnt", b"tmpfs", 0x6, b"size=64k")  # nosuid, nodev

    with process(mounted) as pid:
        found = posture.mounts(pid)
    mine = [mount for mount in found if mount.point == "/mnt" and mount.kind == "tmpfs"]
    assert len(mine) == 1 and {"nosuid", "nodev", "rw"} <= mine[0].options
    assert str(mine[0]).startswith("/mnt tmpfs nodev,nosuid")
    assert posture.diff_mounts({"/mnt": ["nosuid", "nodev"]}, mine) == []
    assert posture.diff_mounts({"/mnt": ["noexec", "ro"]}, mine) == ["/mnt is mounted without noexec, ro"]
    assert posture.diff_mounts({}, mine) == ["/mnt is mounted (tmpfs)"]


def test_a_bind_mount_shows_what_it_shows() -> None:
    line = r"36 35 98:0 /home/x\040y /usr ro,nosuid shared:1 - ext4 /dev/root rw"
    mount = posture._mount(line)
    assert str(mount) == r"/usr ext4 nosuid,ro showing /home/x\040y"


def test_a_process_that_is_gone_is_an_error() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(OSError):
        posture.collect(pid, "code", os.getpid())


def test_a_hostile_process_name_cannot_forge_a_line() -> None:
    def renamed() -> None:
        name = ctypes.create_string_buffer(b"x\nCapEff:\t0")
        libc.syscall(libc.nr("prctl"), 15, name)

    with process(renamed) as pid:
        assert posture.collect(pid, "code", os.getpid()).capabilities == caps.read(pid)
