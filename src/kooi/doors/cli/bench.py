"""Measure this machine: print(1) at every level, or everything, beside a bare python3 and other sandboxes.

examples:
  kooi bench                        print(1), ten runs, median and longest, per level
  kooi bench --full                 every figure, and whether each bar is met (some minutes)
  kooi bench --full --quick         the same with fewer rounds
  kooi bench --full --only jail_first,jail_live
"""

from __future__ import annotations

import argparse
import asyncio

from kooi.contract.errors import InvalidRequest
from kooi.doors.cli import choose, show
from kooi.doors.cli.main import FINE, OURS
from kooi.proof.bench import bars, classic, full, report
from kooi.proof.bench.results import Results


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--full", action="store_true", help="measure everything")
    parser.add_argument("--quick", action="store_true", help="with --full: fewer rounds, so rougher figures")
    parser.add_argument("--only", default="", metavar="NAMES", help="with --full: only these series and parts")
    parser.add_argument("--level", default="", metavar="LEVELS", help="without --full: only these levels")
    parser.add_argument("--as-user", default=full.ORDINARY, metavar="NAME", help="the ordinary user to become (nobody)")
    parser.add_argument(
        "--check", action="store_true", help="with --full: exit with 2 unless every bar measured is met"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    if not args.json:
        for line in report.preface():
            show.note(line)
        show.note()
    if not args.full:
        return _classic(args)
    only = choose.words(args.only)
    unknown = sorted(set(only) - set(full.names()))
    if unknown:
        raise InvalidRequest(f"nothing is named {', '.join(unknown)}", key="only", fix=", ".join(full.names()))
    with show.progress(None, "bench") as bar:
        results = asyncio.run(full.full(full.Options(only, args.quick, args.as_user), bar.step))
    if args.json:
        show.print_json(report.to_json(results))
    else:
        _print(results)
    missed = [row for row in bars.rows(results) if row.met is False]
    return OURS if args.check and missed else FINE


def _classic(args: argparse.Namespace) -> int:
    with show.progress(None, "bench") as bar:
        lines = asyncio.run(classic.table(choose.words(args.level), bar.step))
    if args.json:
        show.print_json(report.classic_json(lines))
        return FINE
    bare = lines[0].median_ms or 1.0
    cells = []
    for line in lines:
        if line.median_ms is None or line.longest_ms is None:
            cells.append([show.cell(line.name), show.cell(f"not here: {line.reason}", "dim"), *[show.cell("")] * 3])
            continue
        times = [f"{line.median_ms:.2f}", f"{line.longest_ms:.2f}", f"{line.median_ms / bare:.2f}"]
        cells.append([show.cell(line.name), show.cell(line.what), *map(show.cell, times)])
    show.table(f"print(1), {classic.RUNS} runs, ms", ["level", "how", "median", "longest", "× python3"], cells)
    return FINE


def _print(results: Results) -> None:
    rows = []
    for name, found in results.summaries().items():
        times = (found.least, found.p50, found.p95, found.p99, found.most)
        rows.append([show.cell(name), show.cell(found.n), *(show.cell(f"{ms:.3f}") for ms in times)])
    show.table("series, ms", ["series", "n", "least", "p50", "p95", "p99", "max"], rows)
    if results.figures:
        figures = [[show.cell(k), show.cell(report.figure(v))] for k, v in results.figures.items()]
        show.table("figures", ["figure", "value"], figures)
    bar_rows = []
    for row in bars.rows(results):
        *cells, met = report.bar_cells(row)
        style = "dim" if row.met is None else "good" if row.met else "bad"
        bar_rows.append([*map(show.cell, cells), show.cell(met, style)])
    show.table("bars", ["bar", "measured", "required", "aim", ""], bar_rows)
    for line in full.METHOD:
        show.note(line, "dim")
    for name, reason in results.absent.items():
        show.note(f"absent: {name}: {reason}", "dim")
    for remark in dict.fromkeys(results.remarks):
        show.note(f"mind: {remark}", "doubt")
