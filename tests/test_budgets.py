"""Modules and functions stay small enough to be read."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "kooi"
MODULES = sorted(PACKAGE.rglob("*.py"))
MODULE_LINES, FUNCTION_LINES, MEDIAN_FUNCTION_LINES = 400, 50, 10


def functions() -> Iterator[tuple[str, int]]:
    """Yield place and length in lines of every function, decorators not counted."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{path}:{node.lineno}: {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def test_modules_are_short() -> None:
    lengths = {str(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {path: lines for path, lines in lengths.items() if lines > MODULE_LINES} == {}


def test_functions_are_short() -> None:
    assert {place: lines for place, lines in functions() if lines > FUNCTION_LINES} == {}
    assert statistics.median(lines for _, lines in functions()) <= MEDIAN_FUNCTION_LINES


def test_every_module_says_what_it_is() -> None:
    bare = [str(p) for p in MODULES if p.read_text().strip() and ast.get_docstring(ast.parse(p.read_bytes())) is None]
    assert bare == []
