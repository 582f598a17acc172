"""`kooi image`: what it prints, as text and as JSON, and its exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kooi.doors.cli import main as door
from kooi.engine import registry
from kooi.images.meta import Meta
from kooi.images.store import Store
from tests import levels
from tests.images.conftest import little


@pytest.fixture
def own(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """Make an empty store the one that the command uses."""
    config = tmp_path / "kooi.toml"
    config.write_text(f'[settings]\ndata_dir = "{store.folder.parent}"\n')
    config.chmod(0o600)
    monkeypatch.setenv("KOOI_CONFIG", str(config))
    asyncio.run(registry.close_all())
    yield store
    asyncio.run(registry.close_all())


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert door.main(["image", *words, "--json"]) == code, capsys.readouterr()
    return json.loads(capsys.readouterr().out)


def test_from_nothing_to_nothing(own: Store, shelf: Store, python: Meta, tmp_path: Path,
                                 capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    assert said(capsys, "list") == []
    tree = str(shelf.tree(python.digest))
    made = said(capsys, "import", "mine", tree, "--warm", "json")
    assert made["name"] == "mine" and made["warm"] == ["json"] and made["digest"] != python.digest
    assert made["starts"].keys() == {"process", "jail"}
    assert {level: None for level in made["starts"] if levels.found()[level].ok}.items() <= made["starts"].items()
    again = said(capsys, "import", "plain", tree)
    assert again["digest"] == python.digest
    listed = said(capsys, "list")
    assert {tuple(each["names"]) for each in listed} == {("mine",), ("plain",)}
    assert said(capsys, "show", "plain")["verified"] is True
    out = tmp_path / "it.tar"
    assert said(capsys, "export", "plain", str(out))["size_bytes"] == out.stat().st_size
    assert said(capsys, "remove", "plain") == {"digest": python.digest, "tree_removed": True}
    assert said(capsys, "prune") == {"removed": [], "in_use": [], "jobs": 0}
    for words in (["list"], ["show", "mine"], ["prune"], ["remove", "mine"], ["list"]):
        assert door.main(["image", *words]) == 0
    assert made["digest"] in capsys.readouterr().out


def test_an_image_that_does_not_start_is_told_at_once(own: Store, tmp_path: Path,
                                                      capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    made = said(capsys, "import", "dead", str(little(tmp_path / "tree")))
    assert all(made["starts"].values()), made


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "nope"], "there is no image"),
        (["remove", "nope"], "there is no image"),
        (["export", "nope", "x.tar"], "there is no image"),
        (["export", "nope", "x.what"], "format"),
        (["import", "UP", "/tmp"], "accepted"),
        (["import", "it", "/nonexistent"], "No such file"),
        (["build", "b/c"], "accepted"),
        (["build"], "required"),
        (["what"], "invalid choice"),
        ([], "required"),
        (["build", "x", "--pip", "kooi-no-such-package-there-is"], "pip could not install"),
        (["build", "x", "--requirements", "/nonexistent"], "pip could not install"),
        (["build", "x", "--apt", "../evil"], "not the name of a Debian package"),
    ],
)
def test_mistakes_get_one_line(own: Store, words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert door.main(["image", *words]) == 2
    err = capsys.readouterr().err
    assert says in err and "Traceback" not in err
    assert own.names() == {}


@pytest.mark.parametrize("action", ["", "build", "import", "list", "show", "remove", "prune", "export"])
def test_help_has_examples(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        door.main(["image", *filter(None, [action]), "--help"])
    out = capsys.readouterr().out
    assert "examples:" in out and f"  kooi image {action}" in out and "--json" in out


def test_a_changed_tree_is_told(own: Store, shelf: Store, python: Meta, capsys: pytest.CaptureFixture[str]) -> None:
    made = said(capsys, "import", "mine", str(shelf.tree(python.digest)))
    (own.tree(made["digest"]) / "usr/bin/cat").write_bytes(b"not it")
    error = said(capsys, "show", "mine", code=2)["error"]
    assert "/usr/bin/cat" in error["message"] and error["key"] == "image" and error["code"] == "setup_failed"


def test_run_takes_an_image(of_user: Store, python: Meta, capfd: pytest.CaptureFixture[str]) -> None:
    levels.need("process")
    words = ["run", "--level", "process", "-c", "import sys; print(sys.executable)"]
    assert door.main([*words, "--image", "python"]) == 0
    assert capfd.readouterr().out == f"{python.python}\n"
    assert door.main([*words, "--image", "nope"]) == 2
    assert door.main(["explain", "--level", "process", "--image", "python", "--json"]) == 0
    assert python.digest in capfd.readouterr().out
