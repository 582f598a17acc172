"""Boxes whose interpreter is executed: from stock, by a forked one in its own place, and with nothing ready at all."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kooi.blocking import Sandbox
from kooi.contract.limits import Limits
from kooi.contract.spec import Spec
from kooi.engine.client import Client
from kooi.images.host import native_view
from kooi.spawn.handle import SpawnedBox
from kooi.spawn.host import host_facts
from kooi.spawn.plan import Plan, plan_process
from kooi.spawn.watchdog import tree
from tests.guest.harness import alive
from tests.levels import need
from tests.spawn.conftest import Workshop, end, output
from tests.spawn.test_zygote_security import zygotes

InWorkshop = Callable[..., Any]
Planned = Callable[..., Plan]
STOCK = 2
#: what two forks of one zygote have in common, and no two executed interpreters
SEED = """
def seed():
    (libc,) = [line for line in open('/proc/self/maps') if '/libc' in line and ' r-xp ' in line][:1]
    return f"{hash('kooi')} {libc.split('-')[0]} {'boot' if 'marshal' in open('/proc/self/cmdline').read() else 'fork'}"
print(seed())
"""
FACTS = """
import json, os, resource, signal
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    **{key: status[key].strip() for key in ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb",
       "NoNewPrivs", "Seccomp", "Seccomp_filters", "Threads", "SigBlk", "SigIgn", "SigCgt", "Umask") if key in status},
    "fds": sorted(os.listdir("/proc/self/fd")), "environ": dict(os.environ), "cwd": os.getcwd(),
    "leads": os.getsid(0) == os.getpgrp() == os.getpid(), "oom": open("/proc/self/oom_score_adj").read(),
    "limits": [resource.getrlimit(number) for number in range(16)], "priority": os.getpriority(os.PRIO_PROCESS, 0),
    "standard": [os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).split(":")[0] for fd in range(3)],
}))
"""


@pytest.fixture(params=["jail", "process"])
def planned(request: pytest.FixtureRequest, tmp_path: Path) -> Planned:
    """Return a function that plans boxes of a level; what they have in common is one cell."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)

    def plan(workshop: Workshop, fresh: bool = True, **limits: Any) -> Plan:
        spec = Spec(request.param, fresh=fresh, limits=Limits(**limits))
        if request.param == "jail":
            return workshop.plan(spec)
        facts = host_facts()
        if not (facts.user_namespaces and facts.mount_in_userns and facts.proc_in_userns):
            pytest.skip("boxes of this level are plain children here")
        return plan_process(spec, facts, native_view(), home=str(home))

    plan.config = {} if request.param == "jail" else {"ids": "none"}  # type: ignore[attr-defined]
    return plan


def executed(workshop: Workshop) -> set[int]:
    """Return the interpreters that were executed: for nobody yet, when there are no boxes."""
    return {pid for zygote in zygotes(workshop) for pid in tree(zygote) if _is_executed(pid)}


def _is_executed(pid: int) -> bool:
    try:
        return b"import sys,marshal" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def stocked(workshop: Workshop, count: int = STOCK) -> set[int]:
    """Wait until so many are in stock, and no box is left; return them."""
    for _ in range(1000):
        found = executed(workshop)
        if len(found) == count:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(f"{len(found)} interpreters were executed ahead")


def children(pid: int) -> list[int]:
    """Return the children of a process that has one thread."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def interpreter(box: SpawnedBox) -> int:
    """Return the process that runs the code of a box that has run some."""
    await asyncio.shield(box._opened)
    return tree(box.pid)[1]


def test_only_a_cell_that_was_asked_for_fresh_boxes_keeps_some(in_workshop: InWorkshop, planned: Planned) -> None:
    async def work(workshop: Workshop) -> None:
        for _ in range(3):
            assert await workshop.run("print(1)", planned(workshop, fresh=False)) == "1\n"
        await asyncio.sleep(0.2)
        assert executed(workshop) == set()
        assert await workshop.run("print(1)", planned(workshop)) == "1\n"
        await stocked(workshop)
        await asyncio.sleep(0.2)
        assert len(executed(workshop)) == STOCK

    in_workshop(work, **planned.config)  # type: ignore[attr-defined]


def test_no_two_share_layout_or_seed_and_each_of_the_stock_is_used_once(
    in_workshop: InWorkshop, planned: Planned
) -> None:
    async def work(workshop: Workshop) -> None:
        forked = {await workshop.run(SEED, planned(workshop, fresh=False)) for _ in range(3)}
        assert len(forked) == 1 and "fork" in forked.pop(), "the control: forks of one zygote do share them"
        seeds, pids = [await workshop.run(SEED, planned(workshop))], []
        for _ in range(6):
            stock = await stocked(workshop)
            box = await workshop.box(planned(workshop))
            seeds.append(await output(box, SEED))
            pids.append(await interpreter(box))
            assert pids[-1] in stock, "it came from the stock"
            await end(box)
        assert len(set(pids)) == len(pids)
        hashes, layouts, kinds = zip(*(seed.split() for seed in seeds), strict=True)
        assert set(kinds) == {"boot"} and len(set(hashes)) == len(set(layouts)) == 7, seeds

    in_workshop(work, **planned.config)  # type: ignore[attr-defined]


@pytest.mark.parametrize("ready", [0, 1, 4])
def test_more_at_once_than_are_in_stock_are_all_fresh(in_workshop: InWorkshop, planned: Planned, ready: int) -> None:
    async def work(workshop: Workshop) -> None:
        for _ in range(2):
            seeds = await asyncio.gather(*(workshop.run(SEED, planned(workshop)) for _ in range(7)))
            assert len({seed.split()[0] for seed in seeds}) == 7 and {seed.split()[2] for seed in seeds} == {"boot"}
            await stocked(workshop, min(ready, STOCK))
            await asyncio.sleep(0.2)
            assert len(executed(workshop)) <= min(ready, STOCK), "and no more"
        assert await workshop.run(SEED, planned(workshop, fresh=False)) not in seeds

    in_workshop(work, blanks_ready=ready, **planned.config)  # type: ignore[attr-defined]


@pytest.mark.parametrize("asked", [True, False])
def test_a_blank_of_the_wrong_kind_serves_what_was_planned(
    in_workshop: InWorkshop, planned: Planned, asked: bool
) -> None:
    """The spawner is told the wrong kind: the plan, which the blank gets, is what holds."""

    async def work(workshop: Workshop) -> None:
        plan = planned(workshop, fresh=not asked)
        await workshop.run("print(1)", planned(workshop))
        stock = await stocked(workshop)
        box = workshop.handle.open(plan.cell.key, dataclasses.replace(plan.box, fresh=asked), plan.box.encode())
        for _ in range(2):
            assert (await output(box, SEED)).split()[2] == ("fork" if asked else "boot")
            assert await interpreter(box) not in stock
            assert len(tree(box.pid)) == 2, "the one of the wrong kind is gone"
            await output(box, "import os; os._exit(3)")
        await end(box)

    in_workshop(work, **planned.config)  # type: ignore[attr-defined]


def test_an_interpreter_that_cannot_be_executed_is_not_replaced_by_a_fork(
    in_workshop: InWorkshop, planned: Planned
) -> None:
    async def work(workshop: Workshop) -> None:
        plan, plain = planned(workshop), planned(workshop, fresh=False)
        cell = dataclasses.replace(plan.cell, guest={**plan.cell.guest, "python_argv": ("/no/such/python",)})
        for _ in range(4):
            box = await workshop.box(dataclasses.replace(plan, cell=cell))
            assert await output(box, "print(1)") == "" == await output(box, "print(1)")
            await end(box)
            assert await workshop.run("print(1)", dataclasses.replace(plain, cell=cell)) == "1\n"

    in_workshop(work, **planned.config)  # type: ignore[attr-defined]


@pytest.mark.parametrize("fresh", [False, True])
def test_one_that_was_killed_in_stock_costs_nobody_a_run(
    in_workshop: InWorkshop, planned: Planned, fresh: bool
) -> None:
    """The kernel's OOM killer is offered interpreters first, those that wait in stock too."""

    def stock(workshop: Workshop) -> list[int]:
        return [pid for zygote in zygotes(workshop) for blank in children(zygote) for pid in children(blank)]

    async def work(workshop: Workshop) -> None:
        plan = planned(workshop, fresh=fresh)
        await workshop.run("print(1)", plan)
        for _ in range(1000):
            if len(found := stock(workshop)) == STOCK * (1 + fresh):
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        while any(alive(pid) for pid in found):
            await asyncio.sleep(0.01)
        for number in range(STOCK):
            assert await workshop.run(f"print({number})", plan) == f"{number}\n"

    in_workshop(work, **planned.config)  # type: ignore[attr-defined]


def test_what_starts_later_in_a_fresh_box_is_executed_too(in_workshop: InWorkshop, planned: Planned) -> None:
    async def work(workshop: Workshop) -> None:
        for stock in (False, True):
            if stock:
                await stocked(workshop)
            box = await workshop.box(planned(workshop))
            seeds = []
            for _ in range(3):
                seeds.append(await output(box, SEED))
                assert (await output(box, "seed()\nimport os; os.kill(os.getpid(), 9)")) == ""
                assert "NameError" in await output(box, "seed()")
            assert len({seed.split()[0] for seed in seeds}) == 3 and {seed.split()[2] for seed in seeds} == {"boot"}
            await end(box)

    in_workshop(work, **planned.config)  # type: ignore[attr-defined]


def test_environment_and_directory_reach_one_that_was_there_before(in_workshop: InWorkshop, planned: Planned) -> None:
    async def work(workshop: Workshop) -> None:
        code = "import os\nprint(os.environ['ASKED'], os.environ['LANG'], os.getcwd(), os.getenv('HOME'))"
        for stock in (False, True):
            if stock:
                await stocked(workshop)
            box = await workshop.box(planned(workshop))
            client = box.client = Client(box.stream)  # type: ignore[attr-defined]
            client.configure({"ASKED": "for", "LANG": "eo.UTF-8"}, "/tmp")
            for _ in range(2):
                assert await output(box, code) == f"for eo.UTF-8 /tmp {box.home}\n"
                await output(box, "import os; os._exit(1)")
            await end(box)

    in_workshop(work, **planned.config)  # type: ignore[attr-defined]


def test_limits_are_set_on_one_that_was_there_before(in_workshop: InWorkshop, planned: Planned) -> None:
    code = """
import resource
print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CPU))
file = open('big', 'wb')
try:
    for _ in range(64):
        file.write(bytes(1 << 18))
        file.flush()
except OSError as error:
    print(error.strerror)
"""

    async def work(workshop: Workshop) -> None:
        grouped = (await workshop.handle.started())["cgroups"]
        for stock in (False, True):
            before = await stocked(workshop) if stock else set()
            box = await workshop.box(
                planned(workshop, open_files=77, cpu_seconds=5, disk_bytes=4 << 20, memory_bytes=96 << 20)
            )
            files, refused = (await output(box, code)).splitlines()
            assert files == "(77, 77) (6, 6)" and refused in ("No space left on device", "File too large")
            assert (await interpreter(box) in before) == stock
            said = await output(box, "x = bytearray(200 << 20)")
            if "MemoryError" not in said:
                assert grouped, "without a group the process's own limit holds"
                await box.usage()
                assert box._oom == 1, "the group's limit holds what was there before"
            await end(box)

    in_workshop(work, **planned.config)  # type: ignore[attr-defined]


def test_however_it_started_it_is_confined_alike(in_workshop: InWorkshop, planned: Planned) -> None:
    async def all_ways(workshop: Workshop) -> list[dict[str, Any]]:
        found = [json.loads(await workshop.run(FACTS, planned(workshop, fresh=False)))]
        found.append(json.loads(await workshop.run(FACTS, planned(workshop))))
        await stocked(workshop)
        found.append(json.loads(await workshop.run(FACTS, planned(workshop))))
        return found

    async def nothing_ready(workshop: Workshop) -> list[dict[str, Any]]:
        return [json.loads(await workshop.run(FACTS, planned(workshop)))]

    config = planned.config  # type: ignore[attr-defined]
    forked, by_fork, from_stock, at_once = in_workshop(all_ways, **config) + in_workshop(
        nothing_ready, blanks_ready=0, **config
    )
    assert by_fork == from_stock == at_once
    assert forked == by_fork
    assert forked["NoNewPrivs"] == "1" and int(forked["CapPrm"], 16) == int(forked["CapEff"], 16) == 0
    assert forked["leads"] and forked["oom"] == "1000\n"


def test_the_successor_of_a_cell_keeps_fresh_ones_too(in_workshop: InWorkshop, planned: Planned) -> None:
    async def work(workshop: Workshop) -> None:
        await workshop.run("print(1)", planned(workshop))
        (old,) = zygotes(workshop)
        for _ in range(6):
            await workshop.run("print(1)", planned(workshop, fresh=False))
        for _ in range(200):
            if old not in zygotes(workshop):
                break
            await asyncio.sleep(0.05)
        assert old not in zygotes(workshop)
        await stocked(workshop)

    in_workshop(work, rotate_after=5, **planned.config)  # type: ignore[attr-defined]


def test_where_ids_are_few_the_stock_takes_them_from_nobody(in_workshop: InWorkshop) -> None:
    async def work(workshop: Workshop) -> None:
        plain = workshop.plan()
        await workshop.run("print(1)", workshop.plan(Spec("jail", fresh=True)))
        await asyncio.sleep(0.3)
        boxes = []
        for _ in range(2):
            boxes.append(await workshop.box(plain))
            assert (await output(boxes[-1], SEED)).split()[2] == "fork"
            await asyncio.sleep(0.1)
        for box in boxes:
            await end(box)

    in_workshop(work, uid_block=6)


@pytest.mark.parametrize("level", ["jail", "process"])
def test_files_and_environment_of_a_sandbox_are_there_on_each_way(level: str) -> None:
    need(level)
    for _ in range(3):
        with Sandbox(level=level, fresh=True, env={"ASKED": "for"}, files={"in.txt": b"file"}) as box:
            said = box.run("import os\nprint(open('in.txt').read(), os.environ['ASKED'])\nopen('out', 'w').write('x')")
            assert said.stdout == "file for\n", said
            assert box.files.read("out") == "x"
        time.sleep(0.1)
