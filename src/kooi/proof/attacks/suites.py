"""The suites: a literal table of names to the modules of their programs."""

from __future__ import annotations

import importlib

from kooi.contract.errors import InvalidRequest
from kooi.proof.attacks.model import Program

SUITES: dict[str, tuple[str, ...]] = {
    "classic": ("classic.loop", "classic.memory", "classic.fork", "classic.disk", "classic.credentials",
                "classic.service"),
    "catalogue": (),
}  # fmt: skip


def load(suite: str, only: tuple[str, ...] = ()) -> tuple[Program, ...]:
    """Return the programs of `suite` in order, `only` those ids when any are named."""
    if suite not in SUITES:
        raise InvalidRequest(f"no suite {suite!r}", key="suite", fix=f"choose one of {', '.join(SUITES)}")
    programs = tuple(_program(name) for name in SUITES[suite])
    unknown = set(only) - {p.id for p in programs}
    if unknown:
        raise InvalidRequest(f"no program {', '.join(sorted(unknown))} in suite {suite!r}", key="only")
    return tuple(p for p in programs if not only or p.id in only)


def _program(name: str) -> Program:
    module = importlib.import_module(f"kooi.proof.attacks.{name}")
    program = module.PROGRAM
    assert isinstance(program, Program)
    return program
