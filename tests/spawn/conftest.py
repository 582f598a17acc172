"""Real spawners, cells and boxes of the level `jail`, driven below the engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kooi.contract.spec import Spec
from kooi.engine.client import Client
from kooi.images.host import host_view
from kooi.spawn.handle import SpawnedBox, SpawnerHandle
from kooi.spawn.host import host_facts
from kooi.spawn.plan import Plan, id_mode, plan_jail


class Workshop:
    """One spawner and the boxes that a test asks of it."""

    def __init__(self, run_dir: Path, **config: Any) -> None:
        facts = host_facts()
        base = {
            "owner": os.getpid(),
            "run_dir": str(run_dir),
            "ids": id_mode(facts),
            "uid_base": 1_879_048_192,
            "uid_count": 1_048_576,
            "uid_block": 4096,
            "blanks_ready": 2,
            "rotate_after": 20_000,
        }
        self.handle = SpawnerHandle(asyncio.get_running_loop(), base | config)

    def plan(self, spec: Spec | None = None) -> Plan:
        """Return the plan of a spec, by default the plain one."""
        wanted = spec or Spec()
        return plan_jail(wanted, host_facts(), host_view(wanted.preload))

    async def box(self, plan: Plan | None = None) -> SpawnedBox:
        """Open a box."""
        wanted = plan or self.plan()
        key = wanted.cell.key
        await self.handle.cell(key, wanted.cell)
        return self.handle.open(key, wanted.box, wanted.box.encode())

    async def run(self, code: str, plan: Plan | None = None) -> str:
        """Run code in a box of its own; return what it printed."""
        box = await self.box(plan)
        try:
            return await output(box, code)
        finally:
            await end(box)


async def end(box: SpawnedBox) -> None:
    """Kill a box and close its stream."""
    await box.kill()
    client: Client | None = getattr(box, "client", None)
    if client is not None:
        client.close()
    box.stream.close()


async def output(box: SpawnedBox, code: str) -> str:
    """Run code in a box and return what it printed, whatever the stream."""
    said, body = bytearray(), code.encode()
    client: Client | None = getattr(box, "client", None)
    if client is None:
        client = box.client = Client(box.stream)  # type: ignore[attr-defined]
        client.configure({}, box.home)
    fields = {"context": "", "code_bytes": len(body), "stdin": False, "limits": {}}
    call = client.open("run", fields, body=body, on_out=said.extend, on_err=said.extend)
    end = await asyncio.wait_for(call.done, 20)
    error = end.get("error")
    return said.decode() + (error["traceback"] if error else "")


@pytest.fixture
def in_workshop(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that runs a test's coroutine function with a workshop, which is gone afterwards."""
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o700)

    def drive(work: Callable[[Workshop], Awaitable[Any]], **config: Any) -> Any:
        async def main() -> Any:
            workshop = Workshop(run_dir, **config)
            try:
                return await work(workshop)
            finally:
                await workshop.handle.close()

        result = asyncio.run(main())
        assert list(run_dir.glob("kooi-*")) == [], "the spawner left its journal behind"
        return result

    return drive
