"""kooi runs code that nobody has read yet: one API, several isolation levels, and proof that each one holds.

    import kooi

    kooi.run("print(1)").stdout                       # one fresh sandbox, run, destroyed
    with kooi.Sandbox(level="jail") as box:           # one sandbox kept open: state is kept between runs
        box.files.write("sales.csv", data)
        result = box.run("import csv; print(len(list(csv.reader(open('sales.csv')))))")

Importing this does no work: each name is loaded when it is first used.
"""

from __future__ import annotations

# `typing` would be half the cost of importing this; type checkers know the name without it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from kooi.blocking import Sandbox, run
    from kooi.contract.errors import (
        InvalidPolicy,
        InvalidRequest,
        KooiError,
        LevelUnavailable,
        PolicyUnenforceable,
        SandboxClosed,
        SandboxLost,
        SetupFailed,
        Unsupported,
    )
    from kooi.contract.limits import Limits
    from kooi.contract.policy import Dataset, Policy
    from kooi.contract.result import Clause, Enforcement, ErrorInfo, Result, RichItem, RunEvent, Usage
    from kooi.contract.spec import Spec
    from kooi.engine.filesystem import FileEntry
    from kooi.sandbox import AsyncSandbox

__version__ = "0.1.0"

_HOMES = {
    "kooi.blocking": ("Sandbox", "run"),
    "kooi.contract.errors": (
        "InvalidPolicy", "InvalidRequest", "KooiError", "LevelUnavailable", "PolicyUnenforceable", "SandboxClosed",
        "SandboxLost", "SetupFailed", "Unsupported",
    ),
    "kooi.contract.limits": ("Limits",),
    "kooi.contract.policy": ("Dataset", "Policy"),
    "kooi.contract.result": ("Clause", "Enforcement", "ErrorInfo", "Result", "RichItem", "RunEvent", "Usage"),
    "kooi.contract.spec": ("Spec",),
    "kooi.engine.filesystem": ("FileEntry",),
    "kooi.sandbox": ("AsyncSandbox",),
}  # fmt: skip

__all__ = [
    "AsyncSandbox",
    "Clause",
    "Dataset",
    "Enforcement",
    "ErrorInfo",
    "FileEntry",
    "InvalidPolicy",
    "InvalidRequest",
    "KooiError",
    "LevelUnavailable",
    "Limits",
    "Policy",
    "PolicyUnenforceable",
    "Result",
    "RichItem",
    "RunEvent",
    "Sandbox",
    "SandboxClosed",
    "SandboxLost",
    "SetupFailed",
    "Spec",
    "Unsupported",
    "Usage",
    "run",
]


if not TYPE_CHECKING:

    def __getattr__(name):
        """Load a public name when it is first used."""
        import importlib

        for home, names in _HOMES.items():
            if name in names:
                value = globals()[name] = getattr(importlib.import_module(home), name)
                return value
        if name == "agent":
            return importlib.import_module("kooi.agent")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted([*__all__, "__version__"])
