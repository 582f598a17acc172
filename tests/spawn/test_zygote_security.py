"""Nothing flows between boxes through what they share: the zygote, the spawner, ids, groups, kernel objects."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
from collections.abc import Callable
from typing import Any

import pytest

from kooi.images.host import host_view
from kooi.spawn.watchdog import tree
from tests.spawn.conftest import Workshop, end, output

InWorkshop = Callable[..., Any]

FACTS = """
import json, os, random, secrets, ssl, sys, tempfile, uuid
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "fds": sorted(os.listdir("/proc/self/fd")), "environ": dict(os.environ), "argv": sys.argv, "pid": os.getpid(),
    "random": random.random(), "uuid": str(uuid.uuid4()), "uuid1": str(uuid.uuid1()),
    "name": next(tempfile._get_candidate_names()),
    "ssl": ssl.RAND_bytes(8).hex(), "secret": secrets.token_hex(8), "session": os.getsid(0), "group": os.getpgrp(),
    "groups": os.getgroups(), "cap": [status[k].strip() for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "nnp": status["NoNewPrivs"].strip(), "seccomp": status["Seccomp"].strip(), "threads": status["Threads"].strip(),
    "proc": [name for name in os.listdir("/proc") if name.isdigit()], "main": sorted(vars(sys.modules["__main__"])),
    "path": sys.path, "modules": [name for name in sys.modules if "kooi" in name],
}))
"""


def zygotes(workshop: Workshop) -> list[int]:
    """Return the pids of the zygotes below the workshop's spawner."""
    spawner = workshop.handle._process.pid
    with open(f"/proc/{spawner}/task/{spawner}/children") as children:
        return [int(pid) for pid in children.read().split()]


def holds(pid: int, needle: bytes) -> bool:
    """Return whether a process has `needle` anywhere in its writable memory."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if not found or "[v" in line:
                continue
            start, end = (int(part, 16) for part in found.groups())
            memory.seek(start)
            try:
                if needle in memory.read(end - start):
                    return True
            except OSError:
                continue
    return False


def test_each_box_starts_clean_and_unlike_the_others(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> list[dict[str, Any]]:
        return [json.loads(await workshop.run(FACTS)) for _ in range(12)]

    found = in_workshop(work)
    view = dict(host_view().env)
    for one in found:
        assert one["environ"] == {**view, "HOME": "/home/user", "KOOI_DATA": "/data", "LANG": "C.UTF-8", "USER": "user",
                                  "PATH": "/usr/local/bin:/usr/bin:/bin"}  # fmt: skip
        assert one["groups"] == [] or os.geteuid() != 0
        assert set(one["cap"]) == {"0000000000000000"} and (one["nnp"], one["seccomp"]) == ("1", "2")
        assert one["proc"] == [str(one["pid"])] and one["session"] == one["group"] == one["pid"]
        # Standard streams, their spares, the control socket, and the listing itself.
        assert set(one["fds"]) <= {"0", "1", "2", "3", "61", "62", "63"}, one["fds"]
        assert one["threads"] == "1"
    for generator in ("random", "uuid", "uuid1", "name", "ssl", "secret"):
        assert len({one[generator] for one in found}) == len(found), generator


def test_zygote_and_spawner_never_hold_code_or_output(in_workshop: InWorkshop) -> None:
    if os.geteuid() != 0:
        pytest.skip("reading the memory of processes with other ids is root's")
    # The needle is put together inside and here, so that neither this file's text nor the source in transit is it.
    parts = [secrets.token_hex(8) for _ in range(2)]
    needle = "-".join(parts).encode()

    async def work(workshop: Workshop) -> None:
        box = await workshop.box()
        said = await output(box, f"x = '-'.join({parts!r})\nprint(x)")
        assert needle.decode() in said
        code = tree(box.pid)[1]
        assert holds(code, needle), "the control: the interpreter itself does hold it"
        for pid in [*zygotes(workshop), workshop.handle._process.pid]:
            for part in (needle, *(part.encode() for part in parts)):
                assert not holds(pid, part), f"process {pid} holds what only the box should"
        await end(box)

    in_workshop(work)


def test_zygote_has_one_thread_and_no_descriptor_but_its_socket(in_workshop: InWorkshop) -> None:
    if os.geteuid() != 0:
        pytest.skip("listing the descriptors of processes with other ids is root's")

    async def work(workshop: Workshop) -> None:
        await workshop.run("print(1)")
        for pid in zygotes(workshop):
            assert len(os.listdir(f"/proc/{pid}/task")) == 1
            open_files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            assert sorted(name.split(":")[0] for name in open_files) == ["/dev/null"] * 3 + ["socket"]
            with open(f"/proc/{pid}/status") as file:
                status = dict(line.split(":", 1) for line in file)
            # CAP_SETGID and CAP_SETUID over the leased ids, nothing else, and no way to more.
            assert {status[key].strip() for key in ("CapPrm", "CapEff", "CapBnd")} == {f"{0b11 << 6:016x}"}
            assert status["NoNewPrivs"].strip() == "1"
            assert int(status["Uid"].split()[0]) >= 1_879_048_192
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = file.read()
            assert b"KOOI" not in environ and b"API_KEY" not in environ

    in_workshop(work)


# What keeps a kernel object alive after the run: a child that holds it.
STAY = "\nimport os, time\nif os.fork() == 0:\n    time.sleep(20)"
LOCK = "import fcntl\nf = open('/usr/bin/env', 'rb')\n"
CHANNELS = {
    "file in /tmp": ("open('/tmp/c','w').write('T')", "print(open('/tmp/c').read())"),
    "file in home": ("open('c','w').write('T')", "print(open('c').read())"),
    "shared memory": ("open('/dev/shm/c','w').write('T')", "print(open('/dev/shm/c').read())"),
    "abstract socket": (
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0kooi-c')\ns.listen()" + STAY,
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0kooi-c')\nprint('T')",
    ),
    "loopback port": (
        "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 9911))\ns.listen()" + STAY,
        "import socket\ns = socket.create_connection(('127.0.0.1', 9911), 1)\nprint('T')",
    ),
    "lock on a shared file": (
        LOCK + "fcntl.flock(f, fcntl.LOCK_SH)" + STAY,
        LOCK + "try:\n    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept OSError:\n    print('T')",
    ),
    "module state": ("import json; json.T='T'", "import json; print(json.T)"),
    "environment": ("import os; os.environ['C']='T'", "import os; print(os.environ['C'])"),
}
# Both boxes see the same inode of the host's read-only files, and locks belong to inodes: stated, not closed.
STATED = {"lock on a shared file"}


@pytest.mark.parametrize("channel", CHANNELS)
def test_no_channel_between_two_boxes(in_workshop: InWorkshop, channel: str) -> None:
    write, read = CHANNELS[channel]

    async def work(workshop: Workshop) -> tuple[str, str]:
        writer = await workshop.box()
        await output(writer, write)
        across = await workshop.run(read)
        await end(writer)
        # The control: within one box the channel works.
        inside = await workshop.run(write + "\n" + read)
        return across, inside

    across, inside = in_workshop(work)
    assert "T\n" in inside, inside
    if channel in STATED:
        assert across == "T\n"
    else:
        assert "T\n" not in across or "Error" in across, across


def test_every_living_box_has_ids_of_its_own(in_workshop: InWorkshop) -> None:
    if os.geteuid() != 0:
        pytest.skip("ids of their own are seen from outside by root")

    async def work(workshop: Workshop) -> list[int]:
        boxes = await asyncio.gather(*(workshop.box() for _ in range(10)))
        for box in boxes:
            await output(box, "pass")
        uids = []
        for box in boxes:
            for pid in tree(box.pid):
                uids.append(os.stat(f"/proc/{pid}").st_uid)
        for box in boxes:
            await end(box)
        return [int(uid) for uid in uids if uid]

    uids = in_workshop(work)
    assert len(uids) == len(set(uids)), "two boxes share an id"
