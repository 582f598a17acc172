"""Attacks on the level `jail` below the engine, each with what it would have done."""

from __future__ import annotations

from tests.spawn.conftest import in_workshop

__all__ = ["in_workshop"]
