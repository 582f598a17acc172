"""Every promise that conformance checks holds with an image, too, at every level that takes one."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from kooi.contract.limits import Limits
from kooi.contract.policy import Policy
from kooi.contract.spec import Spec
from kooi.engine import registry
from kooi.images.meta import Meta
from kooi.images.store import Store
from kooi.proof import conformance
from tests import levels


@pytest.mark.parametrize("level", ["jail", "process"])
def test_every_promise_holds_with_an_image(
    level: str, of_user: Store, python: Meta, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels.need(level)

    def spec_of(level: str, policy: Policy | None = None, **limits: Any) -> Spec:
        return Spec(level, "python", (), policy or Policy(), Limits(**limits))

    patched = 0
    for name, module in list(sys.modules.items()):
        if name.startswith(conformance.__name__) and hasattr(module, "spec_of"):
            monkeypatch.setattr(module, "spec_of", spec_of)
            patched += 1
    assert patched

    async def check() -> list[str]:
        found = [await conformance.check_one(level, name) for name in conformance.names()]
        await registry.close_all()
        return [f"{each.promise} {each.detail}" for each in found if each.holds is False]

    assert asyncio.run(check()) == []
