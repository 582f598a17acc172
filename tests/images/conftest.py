"""A store of the test's own, made the user's by a settings file, and one image `python` that is built once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kooi.engine import registry
from kooi.images import build
from kooi.images.meta import Meta
from kooi.images.store import Store


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return the store that holds the images that all tests share; nobody may remove them."""
    return Store(tmp_path_factory.mktemp("shelf") / "data" / "images")


@pytest.fixture(scope="session")
def python(shelf: Store) -> Meta:
    """Return the image `python`, built for real."""
    return build.build(shelf, "python", build.DEFINITIONS["python"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store(tmp_path / "data" / "images")


@pytest.fixture
def of_user(shelf: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """Make the shared store the one that sandboxes and the command line use."""
    config = tmp_path / "kooi.toml"
    config.write_text(f'[settings]\ndata_dir = "{shelf.folder.parent}"\n')
    config.chmod(0o600)
    monkeypatch.setenv("KOOI_CONFIG", str(config))
    asyncio.run(registry.close_all())  # the levels of this process may know another store
    yield shelf
    asyncio.run(registry.close_all())


def little(folder: Path, text: str = "x") -> Path:
    """Make a tree that passes for an image: an interpreter and a standard library, neither of which runs."""
    for path, content in {
        "usr/bin/python3.11": "#!",
        "usr/lib/python3.11/os.py": "",
        "etc/passwd": "root:x:0:0::/:/bin/sh\n",
        "usr/share/text": text,
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    os.chmod(folder / "usr/bin/python3.11", 0o755)
    (folder / "usr/bin/python3").symlink_to("python3.11")
    (folder / "bin").symlink_to("usr/bin")
    return folder
