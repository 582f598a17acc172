"""What the guest's tests share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_home() -> Iterator[Path]:
    """Yield a folder that every user can reach and write to."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="kooi-test-") as name:
        home = Path(name)
        home.chmod(0o777)
        yield home
