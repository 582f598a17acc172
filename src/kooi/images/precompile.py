"""Compiles the modules of a tree, as a program of its own: `python3 -I -S -B precompile.py TREE PART PARTS FOLDER...`.

Each .pyc is bound to nothing (unchecked hash), so that it is as good in every copy of the tree, and depends on the
source and its path inside alone: the same part has the same files in the same order, in a new interpreter with a fixed
hash seed. What does not compile (templates, tests of syntax) is left; so are tests.
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import sys

_LEFT = ("tests", "test", "__pycache__")


def sources(tree: str, folders: list[str]) -> list[str]:
    """Return every source file below `folders` (absolute inside), sorted."""
    found = []
    for top in folders:
        for folder, below, files in os.walk(tree + top):
            below[:] = sorted(name for name in below if name not in _LEFT)
            found += [f"{folder}/{name}" for name in files if name.endswith(".py")]
    return sorted(set(found))


def main(tree: str, part: int, parts: int, folders: list[str]) -> None:
    """Compile one of `parts` equal parts."""
    for path in sources(tree, folders)[part::parts]:
        try:
            py_compile.compile(
                path,
                importlib.util.cache_from_source(path, optimization=""),
                path[len(tree) :],
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
        except (py_compile.PyCompileError, ValueError, OSError, RecursionError):
            continue


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
