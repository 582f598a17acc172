"""A benchmark's report: as JSON, and as tables for people."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from typing import Any

from kooi.proof.bench import baseline, classic
from kooi.proof.bench.bars import Row, rows
from kooi.proof.bench.full import METHOD
from kooi.proof.bench.results import Results


def preface() -> list[str]:
    """Return what is said first: the machine and the pinned baselines."""
    found = baseline.interpreters()
    loaded = baseline.r2()
    return [
        f"machine: {platform.system()} {platform.release()}, {os.cpu_count()} processors",
        f"R0 = {_command(baseline.r0())}",
        f"R1 = {_command(baseline.r1())}   (Python {found.version})",
        "R2 = " + (_command(loaded) if loaded else "not measured: no interpreter here has numpy and pandas"),
        *found.remarks,
    ]


def to_json(results: Results) -> dict[str, Any]:
    """Return everything as a JSON document; times in milliseconds."""
    return {
        "preface": preface(),
        "method": list(METHOD),
        "series_ms": {name: _rounded(asdict(s)) for name, s in results.summaries().items()},
        "figures": _rounded(results.figures),
        "bars": [_rounded(asdict(row)) for row in rows(results)],
        "absent": results.absent,
        "remarks": results.remarks,
    }


def classic_json(lines: list[classic.Line]) -> dict[str, Any]:
    """Return the classic table as a JSON document."""
    return {"preface": preface(), "runs": classic.RUNS, "lines": [_rounded(asdict(line)) for line in lines]}


def bar_cells(row: Row) -> tuple[str, str, str, str, str]:
    """Return a bar as text: what, measured, required, aim, met."""
    sign = "<=" if row.better == "lower" else ">="
    met = str(row.reason) if row.met is None else "met" if row.met else "NOT MET"
    if row.aim_met:
        met = "met, aim too"
    aim = "" if row.aim is None else f"{sign} {row.aim:g}"
    return row.text, "" if row.measured is None else figure(row.measured), f"{sign} {row.required:g}", aim, met


def figure(value: float) -> str:
    """Return a figure with three significant digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _command(argv: list[str]) -> str:
    return " ".join(f'"{part}"' if " " in part or "(" in part else part for part in argv)


def _rounded(document: dict[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in document.items()}
