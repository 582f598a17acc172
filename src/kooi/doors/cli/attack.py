"""Run hostile programs at every level, and show what became of each.

Outcomes: prevented (stopped, and something proves it), contained (it had its way, but only in a machine of its own),
escaped (it did the harm), vacuous (nothing was proved). Every program has a harmless twin that must work, and must do
its harm with the sandbox off; what is left behind afterwards is looked for. So each runs once unprotected, as you: on
this machine, against targets that kooi plants, with bounds on number and time.

examples:
  kooi attack                                   the six classic programs at every level that works here
  kooi attack --suite catalogue --level jail    the larger catalogue at one level
  kooi attack --check                           exit with 2 unless every outcome is the documented one
  kooi attack --html report.html                a page to pass on
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from kooi.doors.cli import choose, show
from kooi.doors.cli.main import FINE, OURS
from kooi.proof.access import close_all
from kooi.proof.attacks import html, report, runner, suites
from kooi.proof.attacks.runner import SuiteReport

_STYLE = {"prevented": "good", "contained": "good", "escaped": "bad", "vacuous": "doubt"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--suite", default="classic", choices=tuple(suites.SUITES), help="which programs (classic)")
    parser.add_argument("--level", default="all", help="a level, several with commas, or all (that work here)")
    parser.add_argument("--only", default="", metavar="IDS", help="only these programs, with commas")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page of its own")
    parser.add_argument("--check", action="store_true", help="fail unless everything is as documented for the level")


def run(args: argparse.Namespace) -> int:
    """Run the suite and print the report."""
    levels = () if args.level == "all" else choose.words(args.level)
    only = choose.words(args.only)
    programs = suites.load(args.suite, only)
    with show.progress(len(programs) * (1 + (len(levels) or 2)), "attack") as bar:
        result = asyncio.run(_run(args.suite, levels, only, bar))
    if args.html:
        args.html.write_text(html.page(result), encoding="utf-8")
    if args.json:
        show.print_json(report.to_json(result))
    else:
        _print(result)
    return _exit_code(result, asked=levels, check=args.check)


async def _run(suite: str, levels: tuple[str, ...], only: tuple[str, ...], bar: show.Progress) -> SuiteReport:
    try:
        return await runner.run_suite(suite, levels, only, lambda title, level: bar.step(f"{level}: {title}"))
    finally:
        await close_all()


def _exit_code(result: SuiteReport, asked: tuple[str, ...], check: bool) -> int:
    if not result.findings or (asked and result.absent):
        return OURS
    return OURS if check and not result.as_expected else FINE


def _print(result: SuiteReport) -> None:
    programs = list(dict.fromkeys((f.program, f.title) for f in result.findings))
    rows = []
    for name, title in programs:
        row = [show.cell(name), show.cell(title)]
        for level in result.levels:
            finding = result.at(name, level)
            sign = "" if finding.as_expected else " (not as documented)"
            style = _STYLE[finding.outcome] if finding.as_expected else "bad"
            row.append(show.cell(finding.outcome + sign, style))
        rows.append(row)
    show.table(f"{result.suite} suite", ["program", "what it tries", *result.levels], rows)
    for line, style in report.remarks(result):
        show.note(line, style)
    sys.stdout.flush()
