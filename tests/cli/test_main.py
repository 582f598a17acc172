"""The table of verbs, exit codes, and errors without tracebacks."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from types import ModuleType

import pytest

from kooi.contract.errors import LevelUnavailable
from kooi.doors.cli import main as door


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = door.main(words)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"\n  {verb}" in out for verb in door.VERBS)
    assert run(capsys)[0] == 2


@pytest.mark.parametrize("verb", door.VERBS)
def test_every_verb_has_help_with_examples(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    with pytest.raises(SystemExit) as done:
        door.main([verb, "--help"])
    out = capsys.readouterr().out
    assert done.value.code == 0
    assert "examples:" in out and f"kooi {verb}" in out
    assert "--json" in out


@pytest.mark.parametrize(
    "words",
    [
        ["nothing"],
        ["run"],
        ["run", "--no-such-option"],
        ["run", "-c", "1", "--limit", "memory_bytes"],
        ["run", "-c", "1", "--limit", "memory_bytes=-5"],
        ["run", "-c", "1", "--limit", "wall_seconds=nan"],
        ["run", "-c", "1", "--limit", "nonsense=1"],
        ["run", "-c", "1", "--limit", "memory_bytes=5parsec"],
        ["run", "-c", "1", "--policy", "/no/such/file.toml"],
        ["run", "-c", "1", "--env", "NOTHING"],
        ["run", "-c", "1", "--level", "fort"],
        ["run", "/no/such/program.py"],
        ["run", "-c", "1", "--file", "/no/such/data.csv"],
        ["attack", "--only", "nothing"],
        ["attack", "--suite", "nothing"],
        ["bench", "--full", "--only", "nothing"],
        ["explain", "--level", "fort"],
    ],
)
def test_a_mistake_gets_one_message_and_no_traceback(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    code, out, err = run(capsys, *words)
    assert code == 2
    assert err.startswith("kooi: ") and "Traceback" not in err
    code, out, err = run(capsys, *words, "--json")
    assert code == 2
    assert json.loads(out)["error"]["message"]


def test_our_errors_are_ours_and_escaped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    verb = ModuleType("verb")
    verb.configure = lambda parser: None  # type: ignore[attr-defined]

    def fail(args: argparse.Namespace) -> int:
        raise LevelUnavailable("bad \x1b[2J screen", fix="fix \x07 it")

    verb.run = fail  # type: ignore[attr-defined]
    monkeypatch.setattr(door, "_load", lambda name: verb)
    code, _, err = run(capsys, "run")
    assert code == 2
    assert "\x1b" not in err and "\x07" not in err and "\\x1b[2J" in err


def test_interruption_has_a_code_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(door, "_dispatch", interrupted)
    assert run(capsys, "run")[0] == 130


def test_a_reader_that_went_away_is_no_error() -> None:
    program = subprocess.run(
        f"{sys.executable} -m kooi.doors.cli.main --help | true; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert program.stdout.strip() == "0"
    assert program.stderr == ""


def test_verbs_are_not_imported_before_they_are_named() -> None:
    code = (
        "import sys; from kooi.doors.cli import main; print(*sorted(m for m in sys.modules if m.startswith('kooi.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not any(m.startswith(("kooi.proof", "kooi.engine", "kooi.sandbox")) for m in loaded)
