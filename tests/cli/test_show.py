"""Printing: escapes on a terminal, nothing lost elsewhere, tables with and without rich."""

from __future__ import annotations

import io
import sys

import pytest

from kooi.doors.cli import show
from kooi.doors.cli.run import Output, exit_code
from tests.proof.fakes import enforcement, result

HOSTILE = "\x1b]0;owned\x07\x1b[2Jplain\u202etxt"


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_program_output_is_escaped_on_a_terminal_and_exact_elsewhere() -> None:
    data = HOSTILE.encode() + b"\xff\x00\n"
    piped, shown = io.BytesIO(), io.BytesIO()
    Output(piped, terminal=False).write(data)
    Output(shown, terminal=True).write(data)
    assert piped.getvalue() == data
    text = shown.getvalue().decode()
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    assert "plain" in text and text.endswith("\n")


def test_a_character_split_between_pieces_is_shown_whole() -> None:
    shown = io.BytesIO()
    output = Output(shown, terminal=True)
    for byte in "€ü".encode():
        output.write(bytes([byte]))
    assert shown.getvalue().decode() == "€ü"


@pytest.mark.parametrize("rich", [True, False])
def test_tables_and_notes_never_steer_the_terminal(monkeypatch: pytest.MonkeyPatch, rich: bool) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    show.table("title", ["a", "b"], [[show.cell(HOSTILE, "bad"), show.cell("[red]x[/red]")]])
    show.note(HOSTILE, "good")
    text = stream.getvalue()
    assert "\x1b]0;" not in text and "\x07" not in text and "\x1b[2J" not in text and "\u202e" not in text
    assert "[red]x[/red]" in text and "\\x1b]0;owned" in text.replace("\n", "").replace("│", "")


def test_plain_tables_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    show.table("t", ["name", "n"], [[show.cell("long name"), show.cell(1)], [show.cell("x"), show.cell(22)]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == ["t", "name       n", "---------  --", "long name  1", "x          22"]


def test_progress_without_a_terminal_is_a_line_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    with show.progress(2, "doing") as bar:
        bar.step("one")
        bar.step("two\x1b[2J")
    assert capsys.readouterr().err == "doing 1/2: one\ndoing 2/2: two\\x1b[2J\n"


@pytest.mark.parametrize(
    ("status", "code"),
    [("ok", 0), ("error", 1), ("timeout", 1), ("oom", 1), ("killed", 1), ("sandbox_error", 2), ("lost", 2)],
)
def test_exit_codes(status: str, code: int) -> None:
    held = enforcement("jail", "kernel")
    assert exit_code(result(status, b"", held)) == code  # type: ignore[arg-type]
