"""Fixtures of the engine's tests: a fake level, and a loop per test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from kooi.engine import openbox, registry
from tests.engine.fakes import FakeBackend

T = TypeVar("T")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBackend]:
    """The level `fake`, found by name."""
    backend = FakeBackend()
    monkeypatch.setitem(registry._mine().backends, "fake", backend)
    openbox._prepared.clear()
    yield backend
    openbox._prepared.clear()
    for box in backend.boxes:
        assert not box.thread.is_alive(), "a box outlived its test"


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Run a coroutine to its end in a loop of its own, in debug mode."""
    return lambda work: asyncio.run(work, debug=True)
