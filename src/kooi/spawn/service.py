"""What a backend needs to make boxes from plans: one spawner per event loop, its cells, and plans kept by spec."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kooi.contract.backend import Availability, Box, HostFacts
from kooi.contract.errors import SetupFailed
from kooi.contract.spec import Spec
from kooi.images.host import View, host_view
from kooi.images.view import Images
from kooi.settings import Settings, load_settings, private_dir
from kooi.spawn import datasets
from kooi.spawn.handle import SpawnedBox, SpawnerHandle
from kooi.spawn.handles import Handles
from kooi.spawn.plan import Plan

UID_BLOCK = 4096
# All forks of one zygote share its address layout and hash seed, so none serves for ever.
ROTATE_AFTER = 20_000
_KEPT_PLANS = 256
_PROBE_SECONDS = 20.0
Viewer = Callable[[tuple[str, ...] | None], View]
Planner = Callable[[Spec, HostFacts, View], Plan]


class Compiled(NamedTuple):
    """A plan, its cell's key, and its box half as a blank gets it."""

    plan: Plan
    key: str
    encoded: bytes


class Service:
    """Boxes of one level, on whatever event loop asks."""

    def __init__(self, planner: Planner, ids: str, view: Viewer = host_view) -> None:
        self._planner = planner
        self._ids = ids
        self._view = view
        self._settings: Settings | None = None
        self._handles = Handles(SpawnerHandle, self._config)
        self._images = Images()
        self._plans: dict[tuple[Spec, str | None], Compiled] = {}
        self._pid = os.getpid()

    def plan(self, spec: Spec, facts: HostFacts) -> Compiled:
        """Return the plan of a spec, with what every open needs of it worked out; kept.

        Raises `InvalidPolicy` with the key `image` for one that is not there.
        """
        # By what the name of an image means now: it can be given to another one.
        digest = None if spec.image is None else self._images.pin(spec.image)
        known = self._plans.get((spec, digest))
        if known is None:
            if len(self._plans) >= _KEPT_PLANS:
                self._plans.clear()
            view = self._view(spec.preload) if digest is None else self._images.view(digest, spec.preload)
            plan = self._planner(spec, facts, view)
            known = self._plans[spec, digest] = Compiled(plan, plan.cell.key, plan.box.encode())
        return known

    async def open(self, spec: Spec, facts: HostFacts) -> SpawnedBox:
        """Ask for a box; it may not be there yet when this returns. Raises `SetupFailed`."""
        compiled = self.plan(spec, facts)
        cell, box = compiled.plan.cell, compiled.plan.box
        if spec.policy.datasets:
            datasets.check(spec.policy.datasets, own_ids=cell.ids in ("root", "subuid", "leased"))
        handle = self.handle()
        await handle.cell(compiled.key, cell)
        if facts.cgroup_writable and handle.reader is None:
            # The plan and its enforcement count on them: a box without is not what was promised.
            why = (await handle.started()).get("reason", "no reason given")
            raise SetupFailed(f"control groups were there and the spawner has none: {why}", fix="see `kooi doctor`")
        return handle.open(compiled.key, box, compiled.encoded)

    async def prove(self, spec: Spec, facts: HostFacts) -> Availability:
        """Say whether a box starts here, by starting one and waiting for its guest's first word."""
        box = await self.open(spec, facts)
        try:
            problem = await greeting(box)
        finally:
            await box.kill()
            box.stream.close()
        if problem is not None:
            return Availability(False, problem)
        groups = await self.handle().started()
        detail = {"ids": self._ids, "cgroup": str(groups.get("kind", "none"))}
        if not groups["cgroups"]:
            detail["cgroup_reason"] = str(groups["reason"])
        return Availability(True, detail=detail)

    def handle(self) -> SpawnerHandle:
        """Return the spawner of the running loop, starting one if there is none."""
        return self._handles.mine()

    async def close(self) -> None:
        """End every spawner of this process; safe twice."""
        if self._pid != os.getpid():
            return
        await self._handles.close()
        self._images.release()

    def _config(self) -> Mapping[str, Any]:
        if self._settings is None:
            self._settings = load_settings()
        settings = self._settings
        return {
            "owner": os.getpid(),
            "run_dir": str(private_dir(settings.run_dir)),
            "ids": self._ids,
            "uid_base": settings.uid_base,
            "uid_count": settings.uid_count,
            "uid_block": UID_BLOCK,
            "blanks_ready": settings.blanks_ready,
            "rotate_after": ROTATE_AFTER,
        }


async def greeting(box: Box) -> str | None:
    """Wait for a box's first word; return what went wrong, if anything did."""
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[None] = loop.create_future()
    loop.add_reader(box.stream.read_fd, lambda: None if heard.done() else heard.set_result(None))
    failed: asyncio.Future[str] = asyncio.ensure_future(_failure(box))
    try:
        waited: set[asyncio.Future[Any]] = {heard, failed}
        await asyncio.wait(waited, timeout=_PROBE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(box.stream.read_fd)
        failed.cancel()
    if failed.done() and not failed.cancelled():
        return failed.result()
    if not heard.done():
        return f"it did not answer within {_PROBE_SECONDS:.0f} s"
    # The end of the stream can be heard before the reason for it.
    return None if _says_something(box.stream.read_fd) else await _failure(box)


def _says_something(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as peer:
        try:
            return bool(peer.recv(1, socket.MSG_PEEK))
        except OSError:
            return False


async def _failure(box: Box) -> str:
    async for event in box.events():
        if event.kind in ("failed", "exited"):
            return event.detail or "it ended at once"
    return "it ended at once"
