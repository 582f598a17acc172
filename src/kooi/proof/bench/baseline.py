"""The baselines: what a bare interpreter takes, pinned, so that a slow one cannot flatter a ratio.

R0 is `python3 -I -S -c "print(1)"`, R1 is `python3 -c "print(1)"`, R2 is R1 with `import numpy, pandas`. R0 and R1 use
the system's interpreter. R2 does so too where that has numpy and pandas, else the running interpreter, which has to be
the same version.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from pathlib import Path

from kooi.proof.bench.machine import run_command

SYSTEM_PYTHON = "/usr/bin/python3"
PLAIN_ENV = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_IMPORTS = "import numpy, pandas; print(1)"


@dataclass(frozen=True, slots=True)
class Interpreters:
    """Which interpreters the baselines use, and what is worth knowing about them."""

    bare: str
    loaded: str | None
    version: str
    remarks: tuple[str, ...]


@functools.lru_cache(maxsize=1)
def interpreters() -> Interpreters:
    """Find the interpreters of the baselines; `loaded` is `None` where nothing has numpy and pandas."""
    remarks = []
    bare = SYSTEM_PYTHON if Path(SYSTEM_PYTHON).exists() else sys.executable
    version, running = _version(bare), _version(sys.executable)
    if bare != SYSTEM_PYTHON:
        remarks.append(f"there is no {SYSTEM_PYTHON}: the baseline is {bare}, compare ratios with care")
    if version != running:
        remarks.append(f"the sandboxes run Python {running} and the baseline {version}: the ratios mix two versions")
    loaded = next((p for p in dict.fromkeys((bare, sys.executable)) if _has_pandas(p)), None)
    if loaded is None:
        remarks.append("numpy and pandas are not installed: R2 and what depends on it is not measured")
    elif loaded != bare:
        remarks.append(f"{bare} has no pandas: R2 uses {loaded} (Python {_version(loaded)})")
    return Interpreters(bare, loaded, version, tuple(remarks))


def r0() -> list[str]:
    """Return the command of R0."""
    return [interpreters().bare, "-I", "-S", "-c", "print(1)"]


def r1() -> list[str]:
    """Return the command of R1."""
    return [interpreters().bare, "-c", "print(1)"]


def r2() -> list[str] | None:
    """Return the command of R2."""
    loaded = interpreters().loaded
    return None if loaded is None else [loaded, "-c", _IMPORTS]


def _version(python: str) -> str:
    code = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
    return run_command([python, "-I", "-S", "-c", code], PLAIN_ENV)[1].decode().strip()


def _has_pandas(python: str) -> bool:
    code = "import importlib.util as u; print(all(map(u.find_spec, ('numpy', 'pandas'))))"
    try:
        return run_command([python, "-c", code], PLAIN_ENV)[1].strip() == b"True"
    except (ChildProcessError, OSError):
        return False
