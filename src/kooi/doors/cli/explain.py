"""Print the compiled plan and the enforcement of a policy at a level, without running anything.

examples:
  kooi explain
  kooi explain --policy kooi.toml --level jail
  kooi explain --limit memory_bytes=64MiB --json
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kooi.contract import wire
from kooi.contract.errors import PolicyUnenforceable
from kooi.contract.result import Clause, Enforcement
from kooi.contract.spec import Spec
from kooi.doors.cli import choose, show
from kooi.doors.cli.main import FINE, OURS
from kooi.engine import enforce, registry

_STYLE = {"kernel": "good", "polled": "doubt", "per_process": "doubt", "remote": "doubt", "none": "bad"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    choose.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Compile and print."""
    spec = choose.spec_of(args)
    backend = registry.find(spec.level)
    enforcement = backend.enforcement(spec, enforce.host_facts())
    refusal = None
    try:
        enforcement = enforce.granted(enforcement, spec.policy)
    except PolicyUnenforceable as error:
        refusal = error
    plan = _plan(backend, spec)
    if args.json:
        show.print_json(
            {
                "spec": wire.to_json(spec),
                "digest": spec.digest(),
                "enforcement": wire.to_json(enforcement),
                "refused": None if refusal is None else str(refusal),
                "plan": plan,
            }
        )
    else:
        _print(spec, enforcement, plan)
        if refusal is not None:
            show.note(f"refused: {refusal}", "bad")
    return FINE if refusal is None else OURS


def _plan(backend: object, spec: Spec) -> Any:
    """Return the backend's compiled plan as plain data, or `None` where the level compiles none."""
    explain = getattr(backend, "explain", None)
    return None if explain is None else _plain(explain(spec))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _print(spec: Spec, enforcement: Enforcement, plan: Any) -> None:
    show.note(f"level {enforcement.level}, strength {enforcement.strength}, spec {spec.digest()[:16]}")
    rows = [_clause(clause) for clause in enforcement.clauses]
    show.table(
        "what holds each clause", ["clause", "asked", "grade", "by", "overshoot"], [_asked(spec, r) for r in rows]
    )
    if enforcement.waivers:
        show.note(f"held by nothing, and waived: {', '.join(enforcement.waivers)}", "doubt")
    if plan is None:
        show.note(f"level {spec.level} compiles no plan", "dim")
        return
    show.note("the plan, in order:")
    for line in _lines(plan):
        show.note(line)


def _clause(clause: Clause) -> list[show.Cell]:
    told = asdict(clause)
    return [
        show.cell(told["name"]),
        show.cell(told["grade"], _STYLE[clause.grade]),
        show.cell(told["mechanism"]),
        show.cell(told["overshoot"] or ""),
    ]


def _asked(spec: Spec, row: list[show.Cell]) -> list[show.Cell]:
    limits = spec.limits.to_mapping()
    name = row[0][0]
    asked: object = ""
    if name == "network":
        asked = ", ".join(spec.policy.network) or "none"
    elif name in limits and name != "files":
        asked = "no limit" if limits[name] is None else limits[name]
    elif name == "files":
        asked = f"{len(spec.policy.datasets)} datasets, at most {limits['files'] or 'any number of'} files"
    return [row[0], show.cell(asked), *row[1:]]


def _lines(plan: Any, indent: str = "  ") -> list[str]:
    if isinstance(plan, dict):
        lines = []
        for key, value in plan.items():
            nested = isinstance(value, dict | list) and value
            lines.append(f"{indent}{key}:" if nested else f"{indent}{key}: {value}")
            lines += _lines(value, indent + "  ") if nested else []
        return lines
    if isinstance(plan, list):
        lines = []
        for number, item in enumerate(plan, 1):
            if isinstance(item, dict | list) and item:
                lines.append(f"{indent}{number}.")
                lines += _lines(item, indent + "   ")
            else:
                lines.append(f"{indent}{number}. {item}")
        return lines
    return [f"{indent}{plan}"]
