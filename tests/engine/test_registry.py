"""Levels by name: found, unknown, taken, plugged in, chosen."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from kooi.contract.errors import InvalidRequest, LevelUnavailable
from kooi.engine import registry
from tests.engine.fakes import FakeBackend

Run = Callable[..., Any]


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint("fake", "tests.engine.fakes:FakeBackend", registry.GROUP),
        importlib.metadata.EntryPoint("jail", "tests.engine.fakes:FakeBackend", registry.GROUP),
        importlib.metadata.EntryPoint("microvm", "tests.engine.fakes:FakeBackend", registry.GROUP),
        importlib.metadata.EntryPoint("broken", "tests.engine.fakes:NoSuchThing", registry.GROUP),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == registry.GROUP else [])
    monkeypatch.setattr(registry, "_held", {})


def test_a_backend_is_made_once() -> None:
    assert registry.find("process") is registry.find("process")


def test_an_unknown_level_names_the_nearest(plugged: None) -> None:
    with pytest.raises(LevelUnavailable, match=r"no level 'proces'.*did you mean process"):
        registry.find("proces")
    with pytest.raises(LevelUnavailable, match="did you mean fake"):
        registry.find("fkae")


@pytest.mark.parametrize("level", registry.NOT_BUILT)
def test_a_level_of_later_work_is_no_typo(level: str) -> None:
    with pytest.raises(LevelUnavailable, match="not in this version"):
        registry.find(level)


def test_a_plug_in_adds_a_name_and_takes_none(plugged: None) -> None:
    assert isinstance(registry.find("fake"), FakeBackend)
    assert type(registry.find("process")).__name__ == "ProcessBackend"
    with pytest.raises(LevelUnavailable, match="not in this version"):
        registry.find("microvm")
    assert registry.levels() == ("process", "confined", "jail", "container", "broken", "fake")


def test_a_broken_plug_in_says_so(plugged: None) -> None:
    with pytest.raises(LevelUnavailable, match=r"plug-in .*NoSuchThing.*cannot be loaded"):
        registry.find("broken")


def test_choose_takes_the_cheapest_that_is_strong_enough(
    plugged: None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "BUILT_IN", {})
    assert run(registry.choose("kernel-shared")) == "fake"
    with pytest.raises(LevelUnavailable, match="at least machine"):
        run(registry.choose("machine"))
    with pytest.raises(InvalidRequest, match="not a strength"):
        run(registry.choose("strong"))


def test_probe_all_never_raises(plugged: None, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BUILT_IN", {})
    found = run(registry.probe_all())
    assert found["fake"].ok
    assert "cannot be loaded" in found["broken"].reason
    assert not found["microvm"].ok and "not in this version" in found["microvm"].reason


def test_close_all_closes_and_forgets(plugged: None, run: Run) -> None:
    backend = registry.find("fake")
    run(registry.close_all())
    assert isinstance(backend, FakeBackend) and backend.closed == 1
    assert registry.find("fake") is not backend


def test_a_pool_is_put_around_where_settings_ask(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, plugged: None) -> None:
    config = tmp_path / "kooi.toml"
    config.write_text("[settings]\npool_size = 3\n")
    config.chmod(0o600)
    monkeypatch.setenv("KOOI_CONFIG", str(config))
    pool = registry.find("fake")
    assert type(pool).__name__ == "Pool" and pool.name == "fake"


def test_a_child_neither_uses_nor_closes_its_parents_backends(plugged: None) -> None:
    backend = registry.find("fake")
    pid = os.fork()
    if pid == 0:
        (held,) = registry._held.values()
        registry._close_at_exit(held)
        own = registry.find("fake")
        os._exit(0 if own is not backend and isinstance(backend, FakeBackend) and backend.closed == 0 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_backends_are_closed_at_exit() -> None:
    code = """
import atexit, tests.engine.fakes as fakes
from kooi.engine import registry
backend = fakes.FakeBackend()
atexit.register(lambda: print("closed", backend.closed))
registry._mine().backends["fake"] = backend
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "closed 1\n"
