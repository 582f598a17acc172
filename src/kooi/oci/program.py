"""The program that process 1 of a container reads before all else: our modules, compiled, and what they are told.

The image holds nothing of ours, and nothing of the host's is mounted for it. An interpreter of the host's version gets
compiled modules, any other from 3.8 on their sources behind them.
"""

from __future__ import annotations

import ast
import functools
import marshal
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kooi.guest import fresh
from kooi.oci import inside

_PACKAGE = Path(__file__).resolve().parents[1]
_ROOT = inside.__name__
_BOOT = """import sys,marshal,posix
def r(n):
 b=[]
 while n:
  c=posix.read({fd},min(n,1<<20))
  if not c:posix._exit(0)
  n-=len(c);b.append(c)
 return b''.join(b)
h=r(12)
i=lambda k:int.from_bytes(h[k:k+4],'big')
t=marshal.loads(r(i(0)));c=r(i(4));s=r(i(8))
for k,c in marshal.loads(c if sys.hexversion=={version} else s):
 m=sys.modules[k]=type(sys)(k);exec(c,m.__dict__)
m.main(t)"""


def command(python: str, fd: int) -> list[str]:
    """Return the command line of process 1, which takes its program from the descriptor `fd`."""
    return [python, "-I", "-S", "-B", "-c", _BOOT.format(fd=fd, version=sys.hexversion)]


def encode(config: Mapping[str, Any]) -> bytes:
    """Return the program with what `inside.main` is told."""
    told = marshal.dumps(dict(config), 2)
    compiled, sources = modules()
    lengths = b"".join(len(part).to_bytes(4, "big") for part in (told, compiled, sources))
    return lengths + told + compiled + sources


def settings(
    guest: Mapping[str, Any], warm: tuple[str, ...], code: bytes, *, fresh_interpreters: bool, gate: bool,
    folders: tuple[tuple[str, int], ...] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return what `inside.main` is told.

    `guest` are plain fields of the guest's `Setup`, `code` the filter. With `gate` the box begins when its stream is
    handed over there; else it begins at once, on standard input and output.
    `folders` (path, mode) are made first, in what the runtime mounted.
    """
    return {
        "guest": {**guest, "program": fresh.program()},
        "sys_path": list(guest["sys_path"]),
        "warm": list(warm),
        "filter": code,
        "fresh": fresh_interpreters,
        "gate": gate,
        "folders": [list(folder) for folder in folders],
    }


@functools.lru_cache(maxsize=1)
def modules() -> tuple[bytes, bytes]:
    """Return our modules for the inside in the order of their needs, compiled and as sources."""
    names: list[str] = []
    _collect(_ROOT, names)
    compiled, sources = [], []
    for name in names:
        spec = find_spec(name)
        loader: Any = None if spec is None else spec.loader
        # A package is but a name inside; above all the root's own code is not for there.
        source = "" if spec is None or spec.submodule_search_locations is not None else loader.get_source(name)
        sources.append((name, source))
        compiled.append((name, compile(source, f"<{name}>", "exec", dont_inherit=True, optimize=2)))
    return marshal.dumps(compiled), marshal.dumps(sources, 2)


def _collect(name: str, names: list[str]) -> None:
    """Append `name` and what it imports of ours, needs first."""
    if name in names:
        return
    parent = name.rpartition(".")[0]
    if parent:
        _collect(parent, names)
    path = _PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
    if path.is_file():
        # What is imported for the type checker alone, or inside a function, is no need at this moment.
        for node in ast.parse(path.read_bytes()).body:
            for found in _imported(node):
                _collect(found, names)
    names.append(name)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.startswith("kooi.")]
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kooi"):
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if _exists(name) else str(node.module) for name in inner]
    return []


def _exists(name: str) -> bool:
    path = _PACKAGE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
