"""Imports point down, and a few modules keep rules of their own. Read from the source, without importing anything."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "kooi"
MODULES = sorted(PACKAGE.rglob("*.py"))

# From the floor up; rooms on one line do not import each other.
LAYERS = (
    ("contract", "guest"),
    ("settings", "linux"),
    ("images",),
    ("spawn",),
    ("oci",),
    ("backends",),
    ("engine",),
    ("egress",),
    ("scan.static",),
    ("sandbox",),
    ("_portal",),
    ("blocking",),
    ("proof", "agent", "scan.behaviour"),
    ("doors",),
    ("",),  # the package root: what users import, and nothing inside does
)
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
# What runs inside a box, on whatever Python the image has.
INSIDE = [p for p in MODULES if p.relative_to(PACKAGE).parts[0] in ("guest", "linux")] + [
    PACKAGE / name for name in ("spawn/zygote.py", "spawn/confine.py", "spawn/messages.py", "oci/inside.py")
]


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(name: str) -> str:
    """Return the room of a dotted name below `kooi`; `scan` is two rooms."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "scan" else parts[0]


NAMES = {name_of(path) for path in MODULES}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name (below `kooi`) of everything of ours that a module imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name if name.removeprefix("kooi.") in NAMES else str(node.module) for name in inner]
        else:
            continue
        for name in found:
            if name == "kooi" or name.startswith("kooi."):
                yield node.lineno, name.removeprefix("kooi").removeprefix(".")


def test_every_room_has_a_place() -> None:
    rooms = {room_of(name) for name in NAMES} - {"scan"}
    assert rooms <= set(RANK), "give the new room a line in LAYERS"


def test_imports_point_down() -> None:
    wrong = []
    for path in MODULES:
        room = room_of(name_of(path))
        for line, target in imports(path):
            below = RANK.get(room_of(target), 99) < RANK.get(room, -1)
            if room_of(target) != room and not below:
                wrong.append(f"{path}:{line}: {room or 'kooi'} imports {target or 'the package root'}")
    assert wrong == []


@pytest.mark.parametrize(
    ("room", "allowed"),
    [("guest", ("guest",)), ("linux", ("linux", "contract.errors")), ("contract", ("contract",))],
)
def test_rooms_that_import_almost_nothing(room: str, allowed: tuple[str, ...]) -> None:
    for path in MODULES:
        if room_of(name_of(path)) == room:
            for line, target in imports(path):
                assert target in allowed or target.startswith(f"{room}."), f"{path}:{line} imports {target}"


def test_backends_do_not_know_each_other_and_doors_do_not_know_them() -> None:
    # A module with a leading underscore is no backend but something several of them need.
    for path in MODULES:
        name = name_of(path)
        for line, target in imports(path):
            if target.startswith("backends.") and not (
                target.startswith("backends._") and name.startswith("backends.")
            ):
                assert target == name or not name.startswith(("backends.", "doors")), f"{path}:{line}: {target}"


def environment_reads(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that read the environment; setting a variable, or dropping one, is no reading."""
    names = ("environ", "environb", "getenv")
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os" and {a.name for a in node.names} & set(names):
            yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr in names:
            parent = parents[node]
            stored = isinstance(parent, ast.Subscript) and isinstance(parent.ctx, (ast.Store, ast.Del))
            dropped = isinstance(parent, ast.Attribute) and parent.attr == "pop" and _is_statement(parent, parents)
            if not stored and not dropped:
                yield node.lineno


def _is_statement(method: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    return isinstance(parents[method], ast.Call) and isinstance(parents[parents[method]], ast.Expr)


def test_only_settings_reads_the_environment() -> None:
    wrong = [
        f"{path}:{line}"
        for path in MODULES
        for line in environment_reads(ast.parse(path.read_bytes()))
        if name_of(path) != "settings" and room_of(name_of(path)) != "guest"  # inside, it is the box's own
    ]
    assert wrong == []


def annotations(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        found = (getattr(node, "annotation", None), getattr(node, "returns", None))
        yield from (annotation for annotation in found if annotation is not None)


def _subscripts_a_builtin(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in dir(builtins)


@pytest.mark.parametrize("path", [p for p in INSIDE if p.exists()], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_what_runs_inside_parses_as_python_3_8(path: Path) -> None:
    source = path.read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    if "from __future__ import annotations" not in source:
        for annotation in annotations(tree):
            newer = [n for n in ast.walk(annotation) if isinstance(n, ast.BinOp) or _subscripts_a_builtin(n)]
            assert newer == [], f"line {annotation.lineno}: {ast.unparse(annotation)} would be evaluated"
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword):
            assert node.arg not in ("slots", "kw_only", "strict"), f"line {node.value.lineno}: {node.arg}= is newer"


def test_importing_kooi_does_no_work() -> None:
    code = "import sys; before = set(sys.modules); import kooi; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded <= {"kooi", *sys.stdlib_module_names}, "a third-party package is imported"
    assert not loaded & {"asyncio", "subprocess", "ssl", "multiprocessing", "ctypes"}, "too much is imported"
