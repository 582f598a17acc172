"""What backends ask for boxes, above the spawner: it keeps what the plan counts on."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from kooi.contract.errors import SetupFailed
from kooi.contract.spec import Spec
from kooi.spawn.host import host_facts
from kooi.spawn.plan import id_mode, plan_jail
from kooi.spawn.service import Service


def test_a_spawner_without_the_control_groups_that_a_plan_counts_on_serves_no_box() -> None:
    async def main() -> None:
        facts = dataclasses.replace(host_facts(), cgroup_writable=True)
        service = Service(plan_jail, id_mode(facts))
        try:
            handle = service.handle()
            await handle.started()
            if handle.reader is not None:
                handle.reader.close()
                handle.reader = None
            with pytest.raises(SetupFailed, match="the spawner has none"):
                await service.open(Spec(), facts)
        finally:
            await service.close()

    asyncio.run(main())
