"""The live control group tests once more as on a plain v1 host: no unified tree, so cpuacct and the freezer serve."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kooi.linux.cgroup_layout import Layout, hierarchies, v1_layout


def live_tests() -> ModuleType:
    """Load a copy of the live tests, whose layout can be exchanged without touching the other one."""
    spec = importlib.util.spec_from_file_location("cgroup_live_v1", Path(__file__).with_name("test_cgroup_live.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


live = live_tests()


def plain_v1() -> Layout | None:
    found = tuple(one for one in hierarchies() if one.version == 1)
    controllers = {controller for one in found for controller in one.controllers}
    return v1_layout(found) if {"memory", "pids", "cpuacct", "freezer"} <= controllers else None


HERE = plain_v1()
TESTS = [name for name in dir(live) if name.startswith("test_") and "ordinary_user" not in name]


@pytest.mark.skipif(HERE is None or not HERE.available, reason="no v1 controllers to make groups with")
@pytest.mark.parametrize("name", TESTS)
def test_plain_v1(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert HERE is not None and HERE.kind == "v1" and "unified" not in HERE.parents
    monkeypatch.setattr(live, "HERE", HERE)
    getattr(live, name)()
