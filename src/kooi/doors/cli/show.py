"""What verbs print with: tables, notes and progress; through rich where it is installed, as plain text otherwise.

Everything that may come from code inside a sandbox is escaped before it reaches a terminal.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from kooi.contract.text import escape_terminal

STYLES = {"good": "green", "bad": "bold red", "doubt": "yellow", "dim": "dim", "": ""}
Cell = tuple[str, str]  # text and the name of a style


class Progress(Protocol):
    """A bar, or a line a step where there is no terminal."""

    def step(self, text: str, advance: int = 1) -> None:
        """Say what is being done now, and that one more thing has been done."""
        ...


def cell(text: object, style: str = "") -> Cell:
    """Return one cell of a table, escaped."""
    return escape_terminal(str(text)), style


def print_json(document: object) -> None:
    """Print a document as indented ASCII JSON."""
    json.dump(document, sys.stdout, indent=2, ensure_ascii=True, allow_nan=False)
    sys.stdout.write("\n")


def note(text: str = "", style: str = "") -> None:
    """Print a line."""
    console = _console(sys.stdout)
    if console is None:
        print(escape_terminal(text))
    else:
        console.print(escape_terminal(text), style=STYLES[style] or None, markup=False, highlight=False)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table."""
    console = _console(sys.stdout)
    if console is None:
        _plain_table(title, columns, rows)
        return
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=Text(title), title_justify="left", header_style="bold", expand=False)
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(text, style=STYLES[style]) for text, style in row))
    console.print(shown)


def _plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    texts = [[text.replace("\n", " ") for text, _ in row] for row in rows]
    widths = [max([len(c), *(len(row[i]) for row in texts)]) for i, c in enumerate(columns)]
    print(escape_terminal(title))
    for line in (list(columns), ["-" * w for w in widths], *texts):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    print()


@contextlib.contextmanager
def progress(total: int | None, label: str) -> Iterator[Progress]:
    """Show progress on standard error: a bar on a terminal, else a line a step."""
    console = _console(sys.stderr)
    if console is None:
        yield _Lines(total, label)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()]
    with Bar(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)

        class _Rich:
            started = False

            def step(self, text: str, advance: int = 1) -> None:
                bar.update(task, description=escape_terminal(text), advance=advance if self.started else 0)
                self.started = True

        yield _Rich()


class _Lines:
    def __init__(self, total: int | None, label: str) -> None:
        self._total, self._label, self._count = total, label, 0

    def step(self, text: str, advance: int = 1) -> None:
        self._count += advance
        of = f"{self._count}/{self._total}" if self._total else str(self._count)
        print(f"{self._label} {of}: {escape_terminal(text)}", file=sys.stderr, flush=True)


def _console(stream: Any) -> Any:
    """Return rich's console when `stream` is a terminal and rich is installed, else `None`."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, width=max(80, shutil.get_terminal_size().columns))
