"""A malicious package of the preload list owns its cell, and reaches neither host nor spawner nor other cells."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from kooi.contract.errors import SetupFailed
from kooi.contract.spec import Spec
from kooi.linux import bpf, libc
from kooi.linux.seccomp_numbers import numbers
from kooi.spawn.host import host_facts
from kooi.spawn.plan import Plan
from tests.spawn.conftest import Workshop, end, output

InWorkshop = Callable[..., Any]

TAKEOVER = """
import array, json, os, re, socket, time
fd = int(re.search(r"main.([0-9]+)", open("/proc/self/cmdline").read()).group(1))
control = socket.socket(fileno=os.dup(fd))
def ready():
    control.send(b'{"ready": true}')
def asked():
    data, passed, _, _ = control.recvmsg(1 << 18, 4096)
    return json.loads(data)["blank"], array.array("i", passed[0][2])[0]
def answer(number, fd):
    rights = array.array("i", [fd])
    head = json.dumps({"blank": number}).encode()
    control.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
def peer(connection):
    return connection.getsockopt(socket.SOL_SOCKET, 77)
"""

# Each is the end of its own cell only. What it did before it was refused stands beside it.
ATTACKS = {
    # the spawner died of a RecursionError
    "nested": "control.send(b'[' * 100_000); time.sleep(60)",
    # the spawner died of what epoll says to a regular file
    "file": "ready(); number, _ = asked(); answer(number, os.open('/usr/bin/env', os.O_RDONLY)); time.sleep(60)",
    # the spawner put itself into the box's control group and killed itself
    "spawner": "ready(); number, _ = asked(); answer(number, peer(control)); time.sleep(60)",
    # the spawner killed the process that uses kooi
    "host": """
ready()
number, theirs = asked()
if (decoy := os.fork()) == 0:
    time.sleep(60)
answer(number, os.pidfd_open(decoy))
blank = socket.socket(fileno=theirs)
blank.recv(100)
stream = array.array("i", blank.recvmsg(1 << 18, 4096)[1][0][2])[0]
host = peer(socket.socket(fileno=stream))
while True:
    answer(asked()[0], host)
""",
    # the spawner was kept busy for as long as it liked
    "flood": """
ready()
for _ in range(20):
    control.send(b'{"blank": 987654}')
time.sleep(60)
""",
}


def plan_with(workshop: Workshop, source: str) -> Plan:
    """Return a plain plan whose zygote imports `source`."""
    plan = workshop.plan(Spec())
    view = plan.cell.view
    evil = dataclasses.replace(
        view,
        texts=(*view.texts, ("/opt/evil/evil.py", source)),
        sys_path=(*view.sys_path, "/opt/evil"),
        warm=(*view.warm, "evil"),
    )
    return dataclasses.replace(plan, cell=dataclasses.replace(plan.cell, view=evil))


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_what_a_zygote_says_ends_its_own_cell_only(in_workshop: InWorkshop, name: str) -> None:
    async def work(workshop: Workshop) -> None:
        good = await workshop.box()
        assert "1" in await output(good, "print(1)")
        plan = plan_with(workshop, TAKEOVER + ATTACKS[name])
        for _ in range(2):
            try:
                evil = await workshop.box(plan)
                await asyncio.wait_for(evil._over, 3)
            except SetupFailed:
                continue
            await end(evil)
        assert workshop.handle.alive, workshop.handle._crash
        assert "2" in await output(good, "print(2)")
        await end(good)

    in_workshop(work)


KEYS = """
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
found = ctypes.create_string_buffer(4096)
size = libc.syscall(NUMBER, 11, -3, found, 4096, 0)
names = []
for at in range(0, max(size, 0), 4):
    text = ctypes.create_string_buffer(4096)
    libc.syscall(NUMBER, 6, int.from_bytes(found.raw[at:at + 4], "little"), text, 4096, 0)
    names.append(text.value.decode())
"""


def test_a_zygote_has_no_session_keyring_of_the_host(in_workshop: InWorkshop) -> None:
    if libc.try_syscall(libc.nr("keyctl"), 1, None) < 0:
        pytest.skip("no keyrings here")
    added = libc.try_syscall(libc.nr("add_key"), b"user\0", b"kooi-canary\0", b"secret", 6, -3)
    assert added > 0
    source = KEYS.replace("NUMBER", str(libc.nr("keyctl")))
    here: dict[str, Any] = {}
    exec(source, here)
    assert any("kooi-canary" in name for name in here["names"]), "the control: the host itself finds it"

    async def work(workshop: Workshop) -> str:
        return await workshop.run("import evil\nprint(evil.names)", plan_with(workshop, source))

    assert "canary" not in in_workshop(work)


REACH = """
import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
reached = []
for number in NUMBERS:
    ctypes.set_errno(0)
    libc.syscall(number, -1, -1, -1, -1, -1, -1)
    if ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        reached.append(number)
for family in (16, 17, 38, 40):
    for kind in (1, 2, 3, 5):
        try:
            socket.socket(family, kind, 0 if family != 16 else 9).close()
            reached.append((family, kind))
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT):
                reached.append((family, kind))
"""


def test_a_zygote_reaches_no_keys_rings_programs_nor_other_networks(in_workshop: InWorkshop) -> None:
    wanted = "keyctl add_key bpf perf_event_open io_uring_setup userfaultfd ptrace pidfd_getfd setns inotify_add_watch"
    known = numbers("x86_64" if os.uname().machine == "x86_64" else "aarch64")
    plain = [known[name] for name in wanted.split()]
    x32 = [number | bpf.X32_BIT for number in plain] if os.uname().machine == "x86_64" else []
    source = REACH.replace("NUMBERS", repr(plain + x32))
    here: dict[str, Any] = {}
    exec(source, here)
    assert len(here["reached"]) > 5, "the control: without a filter the kernel looks at the arguments"

    async def work(workshop: Workshop) -> str:
        return await workshop.run("import evil\nprint('reached', evil.reached)", plan_with(workshop, source))

    assert "reached []" in in_workshop(work)


FORKS = """
import os, time
forked = []
try:
    for _ in range(200):
        if (pid := os.fork()) == 0:
            time.sleep(60)
        forked.append(pid)
except OSError:
    pass
for pid in forked:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""


def test_a_zygote_forks_only_so_often(in_workshop: InWorkshop) -> None:
    if not host_facts().cgroup_writable:
        pytest.skip("nothing bounds a zygote where no control group can be had")

    async def work(workshop: Workshop) -> str:
        return await workshop.run("import evil\nprint('forked', len(evil.forked))", plan_with(workshop, FORKS))

    found = re.search(r"forked (\d+)", in_workshop(work))
    assert found is not None and 0 < int(found.group(1)) < 64
