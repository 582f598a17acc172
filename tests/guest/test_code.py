"""The value of a last expression: whatever way is taken, what the syntax tree says is what comes out."""

from __future__ import annotations

import ast
import contextlib
import io
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kooi.guest import code
from kooi.guest.code import compile_run

PIECES = [
    "x = 1", "x", "x + 1", "f(1)", "(x,\n 2)", "f(\n1,\n)", "[\n1\n]", "'''a\nb\n'''", '"""doc"""', "'a' \\\n'b'",
    "if x:\n    x", "if x:\n    3\nelse:\n    4", "for i in [1]:\n    i", "for i in []: pass\nelse: 5",
    "while x < 0:\n    x", "def f(a=0):\n    return a", "class C:\n    y = 1", "@f\ndef g(): pass",
    "try:\n    1\nfinally:\n    2", "try: x\nexcept E: y", "with c(): 1", "x; 2", "x = 3; x", "pass", "import math",
    "del x\nx = 2", "x = 5 if x else 6", "lambda: 1", "*f2, 1", "(yield_ := 7)", "# comment", "", "    # indented",
    "x = '''\nx\n'''", "f'''{x}\n{x}'''", "assert x", "x == 1 and \\\n  x", "x = [\n1,\n2]\nx", "not x", "-x",
    "{1: 2}", "{\n1: 2\n}[1]", "print(x)", "None", "...", "async def h(): pass", "x = 2 # ; no", "'a;b'", "#;",
    "global x", "x = (", "x = '", "return", "await x", "from __future__ import annotations", "x: int = 3", "x += 1",
    "def k(a: nowhere): pass\nk.__annotations__", "x = y = 2", "raise E", "f'{x!r}'", "b'x'", "x if x else\\\n 2",
]  # fmt: skip
WAYS = ("compile", "intercept")


def namespace() -> dict[str, Any]:
    return {"x": 1, "f": lambda *a: a[0] if a else 0, "f2": [1], "c": contextlib.nullcontext, "E": ValueError}


def by_tree(source: str) -> Any:
    """Do it the plain way."""
    space = namespace()
    tree = ast.parse(source)
    found = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    body = compile(tree, "<t>", "exec", dont_inherit=True)
    last = None
    if isinstance(found, ast.Expr):
        last = compile(ast.Expression(found.value), "<t>", "eval", body.co_flags & code._FUTURES, True)
    exec(body, space)
    return eval(last, space) if last else None


def by_us(source: str, way: str = "compile") -> Any:
    space, value = namespace(), None
    make = code._intercept if way == "intercept" else code._compile
    data = source.encode()
    parts = code._by_text(data, "<t>", 0, make)
    for part in (parts or compile_run(data, "<t>", 0))[0]:
        assert part.co_filename == "<t>"
        value = eval(part, space)
    return value


@pytest.mark.parametrize("way", WAYS)
@given(st.lists(st.sampled_from(PIECES), max_size=6), st.sampled_from(["", "\n", "\n\n# end\n", "   \n"]))
@settings(max_examples=1000, deadline=None)
def test_the_same_as_by_syntax_tree(way: str, pieces: list[str], end: str) -> None:
    source = "\n".join(pieces) + end
    results: list[Any] = []
    for run in (by_tree, lambda text: by_us(text, way)):
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = run(source)
            plain = type(value) in (int, str, bytes, tuple, list, dict, type(None), type(...))
            results.append(value if plain else type(value))
        except Exception as error:
            results.append((type(error), error.lineno if isinstance(error, SyntaxError) else str(error)))
    assert results[0] == results[1], source


@pytest.mark.parametrize("path", sorted(Path(ast.__file__).parent.glob("*.py"))[:40], ids=lambda path: path.stem)
def test_real_files_compile_to_the_same_parts(path: Path) -> None:
    source = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts, flags = compile_run(source, str(path), 0)
        whole = compile(source, str(path), "exec", dont_inherit=True)
    assert {name for part in parts for name in part.co_names} == set(whole.co_names)
    assert flags == whole.co_flags & code._FUTURES


@pytest.mark.parametrize("way", WAYS)
def test_lines_and_names_are_those_of_the_run(way: str) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        by_us("x = 1\n\ndef g():\n    return 1 / 0\n\ng()", way)
    own = [entry for entry in caught.traceback if str(entry.path) == "<t>"]
    assert [entry.lineno + 1 for entry in own] == [6, 4]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_warned_about_twice(way: str) -> None:
    for source in ("x is 1\n", "y = x is 1\nx", "y = x is 1\nfor i in [1]:\n    i", "y = x is 1\nf(\n2\n)"):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            by_us(source, way)
        assert len(seen) == 1, source


def test_usual_code_needs_no_syntax_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_by_tree", lambda *a: pytest.fail("not needed"))
    assert by_us("print(1)") is None
    assert by_us("import math\ndef f(x):\n    return x\n\nresult = f(\n    2,\n)\nresult") == 2
    assert by_us("for i in range(3):\n    pass\n") is None
    assert by_us("x\n# done\n\n") == 1


PROGRAM = """
import sys
exec(sys.stdin.buffer.read(), vars())
for source, expected in ((b'print(2)', None), (b'x = 3\\nx + 1', 4), (b'def f():\\n    return 5\\nf()', 5)):
    space = {}
    parts, flags = compile_run(source, '<run>', 0)
    for part in parts: value = eval(part, space)
    assert value == expected and parts[-1].co_filename == '<run>', source
assert '_ast' not in sys.modules
parts, flags = compile_run(b'x = 1\\nx is 1', '<run>', 0)
for part in parts: value = eval(part)
assert value is True
try: compile_run(b'x = (', '<run>', 0)
except SyntaxError as error: assert error.filename == '<run>'
print(sys.gettrace())
"""


@pytest.mark.parametrize(
    "python", [sys.executable, *map(str, sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3")))]
)
def test_a_bare_interpreter_makes_no_trees(python: str) -> None:
    version = subprocess.run([python, "-c", "import sys; print(sys.version_info >= (3, 8))"], capture_output=True)
    if version.stdout.strip() != b"True":
        pytest.skip("too old")
    source = Path(code.__file__).read_bytes()
    done = subprocess.run([python, "-I", "-S", "-c", PROGRAM], input=source, capture_output=True, timeout=60)
    assert done.stdout.split() == [b"2", b"None"] and b"SyntaxWarning" in done.stderr, done.stderr
