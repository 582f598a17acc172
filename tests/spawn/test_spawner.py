"""The spawner's own promises: boxes end, slots and ids come back, cells are replaced, nothing is left."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kooi.contract.errors import InvalidPolicy, SetupFailed, Unsupported
from kooi.contract.limits import Limits
from kooi.contract.policy import Dataset, Policy
from kooi.contract.spec import Spec
from kooi.spawn import datasets
from kooi.spawn.handle import SpawnedBox
from tests.spawn.conftest import Workshop, end, output
from tests.spawn.test_zygote_security import zygotes

InWorkshop = Callable[..., Any]


def groups(workshop: Workshop) -> list[Path]:
    """Return the control groups of the workshop's tree."""
    started = workshop.handle._started.result()
    paths = started["paths"].values() if started["cgroups"] else ()
    return [group for path in paths for group in Path(path).glob("box-*")]


def test_kill_ends_what_ignores_signals_and_daemonises(in_workshop: InWorkshop) -> None:
    code = """
import os, signal, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
print("ready")
"""

    async def work(workshop: Workshop) -> None:
        box = await workshop.box()
        assert "ready" in await output(box, code)
        pidfds = [os.pidfd_open(box.pid)]
        before = time.monotonic()
        await box.kill()
        assert time.monotonic() - before < 5
        await box.kill()
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(pidfds[0], 0)
        os.close(pidfds[0])
        box.stream.close()

    in_workshop(work)


def test_slots_and_ids_are_used_again(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> None:
        for _ in range(5):
            await workshop.run("print(1)")
        first = len(groups(workshop))
        for _ in range(40):
            await workshop.run("print(1)")
        assert len(groups(workshop)) <= first + 6, "slots pile up"

    in_workshop(work)


def test_a_cell_is_replaced_while_it_serves(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> None:
        await workshop.run("print(1)")
        old = zygotes(workshop)
        keeper = await workshop.box()
        for _ in range(12):
            assert await workshop.run("print(1)") == "1\n"
        for _ in range(100):
            if len(zygotes(workshop)) > 1 and await workshop.run("print(2)") == "2\n":
                break
            await asyncio.sleep(0.05)
        assert set(zygotes(workshop)) - set(old), "no new zygote took over"
        assert await output(keeper, "print(3)") == "3\n", "a box of the old cell must go on"
        await end(keeper)

    in_workshop(work, rotate_after=5)


def test_a_preload_that_fails_says_why(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> None:
        with pytest.raises(SetupFailed, match="no_such_module"):
            await workshop.box(workshop.plan(Spec(preload=("no_such_module",))))
        assert await workshop.run("print(1)") == "1\n"

    in_workshop(work)


def test_a_cell_that_no_packet_holds_is_refused(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> None:
        plan = workshop.plan()
        view = dataclasses.replace(plan.cell.view, texts=(("/etc/large", "x" * 500_000),))
        cell = dataclasses.replace(plan.cell, view=view)
        for _ in range(2):
            with pytest.raises(SetupFailed, match="Message too long"):
                await workshop.handle.cell(cell.key, cell)
        assert await workshop.run("print(1)") == "1\n"

    in_workshop(work)


def test_a_view_that_cannot_be_built_says_why(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> None:
        plan = workshop.plan()
        view = dataclasses.replace(plan.cell.view, binds=(*plan.cell.view.binds, ("/no/such/folder", "/x")))
        with pytest.raises(SetupFailed, match="cell: FileNotFoundError"):
            await workshop.box(dataclasses.replace(plan, cell=dataclasses.replace(plan.cell, view=view)))
        assert await workshop.run("print(1)") == "1\n"

    in_workshop(work)


@pytest.mark.parametrize("step", ["quota", "rlimits", "capabilities"])
def test_a_step_that_fails_starts_nothing(in_workshop: InWorkshop, step: str) -> None:
    async def work(workshop: Workshop) -> str:
        plan = workshop.plan()
        steps = tuple((name, {"no_such": 1} if name == step else args) for name, args in plan.box.steps)
        box = await workshop.box(dataclasses.replace(plan, box=dataclasses.replace(plan.box, steps=steps)))
        events = [event async for event in box.events()]
        box.stream.close()
        assert await workshop.run("print(1)") == "1\n", "the next box must not suffer"
        assert [event.kind for event in events] == ["failed"]
        return events[0].detail

    assert step in in_workshop(work)


def test_blanks_that_die_do_not_spin(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> None:
        plan = workshop.plan()
        broken = dataclasses.replace(plan.cell, prepare=(("no such verb", {}),))
        key = broken.key
        await workshop.handle.cell(key, broken)
        box = workshop.handle.open(key, plan.box, plan.box.encode())
        events = [event async for event in box.events()]
        box.stream.close()
        assert events[-1].kind == "failed" and "no such verb" in events[-1].detail

    in_workshop(work)


HOSTILE = r"""
import array, json, os, re, socket, sys
control = socket.socket(fileno=int(re.search(r"main\((\d+)\)", open("/proc/self/cmdline").read())[1]))
def answer(head, *fds):
    control.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
control.send(b'{"ready": true}')
while True:
    number = json.loads(control.recv(10000))["blank"]
    WAY(b'{"blank": %d}' % number)
"""
WAYS = {
    "deep JSON": "lambda head: control.send(b'[' * 100_000)",
    "a file for a pidfd": "lambda head: answer(head, os.open('/etc/passwd', 0))",
    "a socket for a pidfd": "lambda head: answer(head, socket.socket().fileno())",
    "two pidfds": "lambda head: answer(head, os.pidfd_open(os.getpid()), os.pidfd_open(os.getpid()))",
    "none": "answer",
    "its own pidfd": "lambda head: answer(head, os.pidfd_open(os.getpid()))",
    "an end": "lambda head: os._exit(0)",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_hostile_zygote_harms_its_own_cell_alone(in_workshop: InWorkshop, tmp_path: Path, way: str) -> None:
    folder = tmp_path / "packages"
    folder.mkdir(mode=0o755)
    (folder / "hostile.py").write_text(HOSTILE.replace("WAY", f"({WAYS[way]})"))
    open_to_all(folder)

    async def work(workshop: Workshop) -> None:
        keeper = await workshop.box()
        assert await output(keeper, "print(1)") == "1\n"
        plan = workshop.plan()
        warm = (*plan.cell.view.warm, "hostile")
        view = dataclasses.replace(plan.cell.view, warm=warm, sys_path=(*plan.cell.view.sys_path, "/data/packages"))
        cell = dataclasses.replace(plan.cell, view=view, datasets=(("packages", str(folder)),))
        await workshop.handle.cell(cell.key, cell)
        box = workshop.handle.open(cell.key, plan.box, plan.box.encode())
        event = await asyncio.wait_for(box.events().__anext__(), 10)
        assert event.kind in ("failed", "exited")
        box.stream.close()
        assert await output(keeper, "print(2)") == "2\n"
        assert await workshop.run("print(3)") == "3\n"
        await end(keeper)

    in_workshop(work)


def test_cells_that_ended_leave_no_zombie(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> None:
        box = await workshop.box()
        assert await output(box, "print(1)") == "1\n"
        for pid in zygotes(workshop):
            os.kill(pid, signal.SIGKILL)
        await box.kill()
        box.stream.close()
        for _ in range(100):
            if not zygotes(workshop):
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the spawner did not reap its cell")

    in_workshop(work)


def test_a_spawner_that_is_killed_is_let_go_of(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> None:
        handle = workshop.handle
        plan = workshop.plan()
        box = await workshop.box(plan)
        assert await output(box, "print(1)") == "1\n"
        freed = [handle._socket.fileno(), *(handle.reader._fds.values() if handle.reader else ())]
        os.kill(handle._process.pid, signal.SIGKILL)
        late = handle.open(plan.cell.key, plan.box, plan.box.encode())
        for each in (box, late):
            event = await asyncio.wait_for(each.events().__anext__(), 10)
            assert event.kind == "failed" and "the spawner ended" in event.detail
            await each.kill()
            await end(each)
        assert not handle.alive and all(_closed(fd) for fd in freed)
        with pytest.raises(SetupFailed, match="the spawner ended"):
            handle.open(plan.cell.key, plan.box, plan.box.encode())

    with pytest.raises(AssertionError, match="left its journal behind"):
        in_workshop(work)

    async def next_start(workshop: Workshop) -> list[str]:
        assert await workshop.run("print(2)") == "2\n"
        reaped: list[str] = (await workshop.handle.started())["reaped"]
        return reaped

    # The next spawner with the same run directory takes away what this one left.
    (reaped,) = in_workshop(next_start)
    assert not [found for found in Path("/sys/fs/cgroup").glob("*/**/kooi-*") if reaped in found.name]


def _closed(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


def test_a_box_without_a_control_group_cannot_be_frozen(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> None:
        box = await workshop.box()
        await output(box, "print(1)")
        if box._group is not None:
            await box.freeze()
            await box.thaw()
            box._group.close()
            box._group = None
        with pytest.raises(Unsupported, match="control group"):
            await box.freeze()
        await end(box)
        await box.freeze()

    in_workshop(work)


def test_an_earlier_boxs_memory_peak_is_not_reported(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> None:
        box = await workshop.box()
        await output(box, "print(1)")
        slot = {"name": "box-1", "base": [0, 0, 0, 0], "peak_base": 4096}
        if box._group is not None:
            other = SpawnedBox(workshop.handle, 10_000, box.stream, box.home)  # type: ignore[arg-type]
            other.told({"opened": 1, "slot": slot})
            assert other._group is not None and other._group.peak_base == 4096
            other._group.close()
        await end(box)

    in_workshop(work)


def open_to_all(folder: Path) -> None:
    """Let the ids of boxes read what a test wrote."""
    for parent in [folder, *folder.parents]:
        if os.stat(parent).st_uid == os.geteuid() and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)


def test_datasets_are_there_and_read_only(in_workshop: InWorkshop, tmp_path: Path) -> None:
    source = tmp_path / "sales"
    source.mkdir(mode=0o755)
    open_to_all(source)
    (source / "a.csv").write_text("x\n1\n")
    (source / "a.csv").chmod(0o644)
    spec = Spec(policy=Policy(datasets=(Dataset("sales", str(source)),)))

    async def work(workshop: Workshop) -> str:
        plan = workshop.plan(spec)
        assert await workshop.run("print(open('/data/sales/a.csv').read())", plan) == "x\n1\n\n"
        return await workshop.run("open('/data/sales/b','w')", plan)

    refused = in_workshop(work)
    assert "Read-only file system" in refused or "Permission denied" in refused
    assert not (source / "b").exists()


@pytest.mark.parametrize("kind", ["missing", "symlink", "fifo"])
def test_a_dataset_that_is_no_data_is_refused(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "thing"
    if kind == "symlink":
        source.symlink_to("/etc")
    elif kind == "fifo":
        os.mkfifo(source)
    with pytest.raises(InvalidPolicy, match="thing"):
        datasets.check((Dataset("thing", str(source)),), own_ids=False)


def test_limits_are_read_back_from_the_group(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> None:
        if not (await workshop.handle.started())["cgroups"]:
            pytest.skip("this host gives this user no control groups")
        box = await workshop.box(workshop.plan(Spec(limits=Limits(memory_bytes=64 << 20, processes=7))))
        await output(box, "pass")
        assert box._group is not None
        paths = box._group.paths
        if "memory" in paths:
            assert Path(paths["memory"], "memory.limit_in_bytes").read_text().strip() == str(64 << 20)
            assert Path(paths["pids"], "pids.max").read_text().strip() == "9"
        else:
            assert Path(paths["unified"], "memory.max").read_text().strip() == str(64 << 20)
        await end(box)

    in_workshop(work)
