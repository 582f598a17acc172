"""Builds an image from this host: its base interpreter, its libraries and programs, pip and Debian packages.

No network is needed but that of the package indexes, and no root. The same host, packages and versions give the same
digest: no times, no owners, byte code that depends on nothing but its source.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from kooi.contract.errors import SetupFailed, Unsupported
from kooi.images import apt, inside, packages
from kooi.images.interpreter import Base, add_interpreter, find_base
from kooi.images.meta import Meta, checked_name
from kooi.images.root import Root, add_system
from kooi.images.store import Store
from kooi.images.tree import Entry, scan

_PARTS = 4  # fixed: which file is compiled after which is part of what comes out
_PRECOMPILE = str(Path(__file__).with_name("precompile.py"))


class Stepper(Protocol):
    """Where the steps of one phase are told."""

    def step(self, text: str, advance: int = 1) -> None:
        """Say what is being done now, and that one more thing has been done."""
        ...


# Opens a phase: how many steps it has, None if nobody knows, and what it is called.
Phases = Callable[["int | None", str], "contextlib.AbstractContextManager[Stepper]"]


@dataclass(frozen=True)
class Definition:
    """What to put into an image besides interpreter and programs.

    `pip` are requirements, `requirements` files of them, `apt` names of Debian packages; `warm` what zygotes import.
    """

    pip: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()
    allow_source: bool = False
    about: str = field(default="", compare=False)


DEFINITIONS: Mapping[str, Definition] = {
    "python": Definition(about="the interpreter, its standard library and common programs"),
    "data": Definition(
        pip=("numpy", "pandas", "scipy", "scikit-learn", "matplotlib", "pillow", "openpyxl", "pyarrow", "duckdb",
             "requests", "ipython"),
        warm=("numpy", "pandas"),
        about="numpy, pandas, scipy, scikit-learn, matplotlib, pillow, openpyxl, pyarrow, duckdb, requests, IPython",
    ),
}  # fmt: skip


class _Silent:
    def step(self, text: str, advance: int = 1) -> None:
        """Say nothing."""


@contextlib.contextmanager
def silent(total: int | None, label: str) -> Iterator[Stepper]:
    """Tell nobody."""
    yield _Silent()


def build(store: Store, name: str, definition: Definition, phases: Phases = silent) -> Meta:
    """Build an image and give it a name. Raises `InvalidRequest`, `SetupFailed`, `Unsupported`; leaves nothing then."""
    checked_name(name)
    if not sys.platform.startswith("linux"):
        raise Unsupported("an image is built from a Linux host", key="image", fix="build it there and import it here")
    base = find_base()
    with store.job() as work:
        tree = work / "tree"
        tree.mkdir()
        with phases(None, "system") as phase:
            phase.step("programs and libraries")
            root = Root(tree)
            add_system(root)
            phase.step(f"Python {base.program.rpartition('python')[2]}")
            add_interpreter(root, base)
        if definition.apt:
            with phases(None, "apt") as phase:
                apt.install(tree, work, definition.apt, phase.step)
        _add_packages(root, work, base, definition, phases)
        python = inside.find_python(tree)
        _compile(tree, base, [path for path in python.sys_path if not path.endswith(".zip")], phases)
        return finish(store, tree, name, definition.warm, {"built": _told(definition)}, phases)


def _told(definition: Definition) -> dict[str, object]:
    return {key: value for key, value in asdict(definition).items() if value and key != "about"}


def _add_packages(root: Root, work: Path, base: Base, definition: Definition, phases: Phases) -> None:
    asked = [*definition.pip, *(word for path in definition.requirements for word in ("-r", path))]
    if not asked:
        return
    with phases(None, "packages") as phase:
        # So that `pip freeze` and `pip list` work inside.
        packages.install(root.tree, work, base.program, base.packages, [*asked, "pip"],
                         source=definition.allow_source, say=phase.step)  # fmt: skip
        phase.step("libraries that they need")
        for path in sorted((root.tree / base.packages[1:]).rglob("*.so*")):
            if path.is_file() and not path.is_symlink():
                root.need(str(path))


def _compile(tree: Path, base: Base, folders: list[str], phases: Phases) -> None:
    """Compile all modules, at most as many parts at once as there are CPUs."""
    command = [base.host, "-I", "-S", "-B", _PRECOMPILE, str(tree)]
    running: list[subprocess.Popen[bytes]] = []
    with phases(_PARTS, "compile") as phase:
        try:
            for part in range(_PARTS):
                if len(running) >= (os.cpu_count() or 1):
                    _wait(running.pop(0))
                phase.step(f"byte code, part {part + 1} of {_PARTS}")
                argv = [*command, str(part), str(_PARTS), *folders]
                running.append(subprocess.Popen(argv, env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}))
            while running:
                _wait(running.pop(0))
        finally:
            for each in running:
                each.kill()
                each.wait()


def _wait(child: subprocess.Popen[bytes]) -> None:
    if child.wait() != 0:
        raise SetupFailed(f"the interpreter that compiles the modules ended with {child.returncode}", key="image")


def finish(
    store: Store, tree: Path, name: str | None, warm: tuple[str, ...], definition: Mapping[str, object], phases: Phases
) -> Meta:
    """Scan a tree that is complete, find out what is in it, and put it into the store.

    Without `warm` it is the set that the tree itself says, if any: as a part of the tree it goes where that goes.
    """
    python = inside.find_python(tree)
    if warm:
        inside.write_warm(tree, warm)
    warm = inside.read_warm(tree)
    entries = counted_scan(tree, phases, settle=True)
    describe = functools.partial(_describe, tree, python, len(entries), warm, definition)
    with phases(1, "store") as phase:
        phase.step("writing to disk")
        return store.add(tree, entries, describe, name)


def _describe(
    tree: Path, python: inside.Python, entries: int, warm: tuple[str, ...], definition: Mapping[str, object],
    digest: str, size_bytes: int,
) -> Meta:  # fmt: skip
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return Meta(
        digest, python.program, python.version, python.sys_path, os.uname().machine, now, size_bytes, entries,
        inside.packages(tree, python), warm, definition,
    )  # fmt: skip


def counted_scan(tree: Path, phases: Phases, *, settle: bool = False, steps: int = 20) -> list[Entry]:
    """Scan a tree and tell how far it is, in about `steps` steps."""
    total = sum(len(folders) + len(files) for _, folders, files in os.walk(tree))
    every = max(1, total // steps)
    done = 0
    with phases(total // every, "read") as phase:

        def tell(more: int) -> None:
            nonlocal done
            done += more
            if done % every == 0:
                phase.step(f"{done} of {total} entries")

        return scan(tree, tell, settle=settle)
