"""Every level keeps the same promises: each behavioural check at each level is a test of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kooi import settings
from kooi.engine import registry
from kooi.proof import conformance
from kooi.proof.access import close_all, probe_all


@pytest.fixture(scope="module", params=registry.BUILT_IN)
def level(request: pytest.FixtureRequest) -> Iterator[tuple[str, asyncio.AbstractEventLoop]]:
    """A level that works here, with the loop that its sandboxes live on."""
    name = str(request.param)
    loop = asyncio.new_event_loop()
    try:
        state = loop.run_until_complete(probe_all())[name]
        if not state.ok:
            reason = f"level {name} does not work here: {state.reason} ({state.fix})"
            (pytest.fail if settings.load_settings().must_work(name) else pytest.skip)(reason)
        yield name, loop
    finally:
        loop.run_until_complete(close_all())
        loop.close()


@pytest.mark.parametrize("check", conformance.names())
def test_every_level_keeps_the_promise(level: tuple[str, asyncio.AbstractEventLoop], check: str) -> None:
    name, loop = level
    checked = loop.run_until_complete(conformance.check_one(name, check))
    if checked.holds is None:
        pytest.skip(f"not a promise of {name}: {checked.detail}")
    assert checked.holds, f"{checked.promise} {checked.detail}"
