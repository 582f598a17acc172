"""Print the compiled plan and the enforcement of a policy at a level, without running anything.

examples:
  kooi explain
  kooi explain --policy kooi.toml --level jail
  kooi explain --limit memory_bytes=64MiB --json
"""

from __future__ import annotations

import argparse
import textwrap
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
    elif name == "host_files":
        asked = ", ".join(f"{d.name} = {d.source}" for d in spec.policy.datasets) or "none"
    elif name in limits:
        asked = "no limit" if limits[name] is None else limits[name]
    return [row[0], show.cell(asked), *row[1:]]


def _lines(plan: Any, indent: str = "  ") -> list[str]:
    """Return nested data as indented lines; what is short stays on one line."""
    if isinstance(plan, dict):
        pairs = [(f"{key}:", value) for key, value in plan.items()]
    elif isinstance(plan, list) and not any(isinstance(item, dict | list) for item in plan):
        return textwrap.wrap(", ".join(map(str, plan)), 100, initial_indent=indent, subsequent_indent=indent)
    elif isinstance(plan, list):
        pairs = [(f"{number}.", value) for number, value in enumerate(plan, 1)]
    else:
        return [indent + _on_one_line(plan)]
    lines = []
    for head, value in pairs:
        short = _short(value)
        if short is not None:
            lines.append(f"{indent}{head} {short}".rstrip())
        elif isinstance(value, list) and _is_step(value):
            lines.append(f"{indent}{head} {value[0]}")
            lines += _lines(value[1], indent + "   ")
        else:
            lines.append(f"{indent}{head}")
            lines += _lines(value, indent + "   ")
    return lines


def _short(value: Any, room: int = 100) -> str | None:
    """Return `value` on one line if it fits: a step as its verb and arguments, a list with commas."""
    if isinstance(value, list):
        parts = [_short(item) for item in value]
        text = None if None in parts else (" " if _is_step(value) else ", ").join(str(p) for p in parts)
        return "(none)" if text == "" else text if text is None or len(text) <= room else None
    if isinstance(value, dict):
        parts = [_short(item) for item in value.values()]
        if None in parts:
            return None
        text = " ".join(f"{key}={part}" for key, part in zip(value, parts, strict=True))
        return text if len(text) <= room else None
    text = _on_one_line(value)
    return text if len(text) <= room else None


def _on_one_line(value: Any) -> str:
    return str(value).replace("\n", "\\n")


def _is_step(value: list[Any]) -> bool:
    return len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict)
