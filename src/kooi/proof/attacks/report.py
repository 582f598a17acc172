"""A suite's report as JSON and as remarks for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kooi.proof.attacks.model import Finding
from kooi.proof.attacks.runner import SuiteReport


def to_json(report: SuiteReport) -> dict[str, Any]:
    """Return the report as a JSON document."""
    return {
        "suite": report.suite,
        "levels": list(report.levels),
        "as_expected": report.as_expected,
        "seconds": round(report.seconds, 3),
        "counts": {level: counts(report, level) for level in report.levels},
        "controls": dict(report.controls),
        "left_at_the_end": {level: list(what) for level, what in report.left.items()},
        "absent": [asdict(absent) for absent in report.absent],
        "findings": [_finding(f) for f in report.findings],
    }


def counts(report: SuiteReport, level: str) -> dict[str, int]:
    """Return how often each outcome came up at `level`."""
    outcomes = [f.outcome for f in report.findings if f.level == level]
    return {outcome: outcomes.count(outcome) for outcome in ("prevented", "contained", "escaped", "vacuous")}


def remarks(report: SuiteReport) -> list[tuple[str, str]]:
    """Return the lines below the table, each with a style: totals, surprises, residue, absent levels."""
    lines = []
    for level in report.levels:
        found = counts(report, level)
        total = sum(found.values())
        said = ", ".join(f"{n} {outcome}" for outcome, n in found.items() if n)
        fine = all(f.as_expected for f in report.findings if f.level == level)
        lines.append((f"{level}: {said} of {total}", "good" if fine else "bad"))
    for finding in report.findings:
        if not finding.as_expected or finding.outcome in ("escaped", "vacuous"):
            lines.append((_remark(finding), "dim" if finding.as_expected else "bad"))
    for absent in report.absent:
        fix = f"; {absent.fix}" if absent.fix else ""
        lines.append((f"{absent.level}: not run here: {absent.reason}{fix}", "dim"))
    for level, what in report.left.items():
        if what:
            lines.append((f"{level}: when all was closed there was still: {', '.join(what)}", "bad"))
    left = any(f.residue for f in report.findings) or any(report.left.values())
    lines.append(("something was left behind" if left else "nothing was left behind", "bad" if left else "good"))
    return lines


def _remark(finding: Finding) -> str:
    held = f" (clause {finding.clause}: {finding.grade})" if finding.clause and finding.grade else ""
    expected = "" if finding.outcome in finding.expected else f", documented: {' or '.join(finding.expected)}"
    left = f"; left behind: {', '.join(finding.residue)}" if finding.residue else ""
    return f"{finding.level} {finding.program}: {finding.outcome}{expected}{held}: {finding.reason}{left}"


def _finding(finding: Finding) -> dict[str, Any]:
    document = asdict(finding)
    document["seconds"] = round(finding.seconds, 3)
    document["as_expected"] = finding.as_expected
    return document
