"""Which levels work here, for tests that run at each: a missing one is skipped, or fails where it must work."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping

import pytest

from kooi.contract.backend import Availability
from kooi.engine import registry
from kooi.settings import load_settings

BUILT_IN = tuple(registry.BUILT_IN)


@functools.lru_cache(maxsize=1)
def found() -> Mapping[str, Availability]:
    """Return every level's availability, probed once."""
    return asyncio.run(_probe())


async def _probe() -> Mapping[str, Availability]:
    try:
        return await registry.probe_all()
    finally:
        await registry.close_all()


def need(level: str) -> None:
    """Skip the running test if `level` does not work here; fail it if KOOI_LEVELS_MUST_WORK says that it must."""
    state = found()[level]
    if not state.ok:
        reason = f"level {level} does not work here: {state.reason} ({state.fix})"
        (pytest.fail if load_settings().must_work(level) else pytest.skip)(reason)
