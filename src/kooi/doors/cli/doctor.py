"""Prove which levels work on this machine by starting each, and say why the others do not and what would help.

examples:
  kooi doctor
  kooi doctor --must jail       exit with 2 unless jail works
  kooi doctor --json
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import asdict, dataclass

from kooi import settings
from kooi.contract.backend import Availability
from kooi.contract.errors import KooiError
from kooi.contract.spec import Spec
from kooi.doors.cli import choose, show
from kooi.doors.cli.main import FINE, OURS
from kooi.engine import enforce, registry
from kooi.proof import container, host
from kooi.proof.container import Container
from kooi.proof.host import Fact


@dataclass(frozen=True, slots=True)
class Proved:
    """A level: whether it was started, how long that took, and how strong it is."""

    level: str
    state: Availability
    strength: str | None
    seconds: float


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--must", default="", metavar="LEVELS", help="levels (with commas) that have to work")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Prove, look, and print."""
    must = choose.words(args.must)
    with show.progress(len(registry.levels()), "doctor") as bar:
        proved = asyncio.run(_prove(bar))
    facts = host.facts(enforce.host_facts())
    around = container.inside(enforce.host_facts())
    failed = [name for name in must if not any(p.level == name and p.state.ok for p in proved)]
    if args.json:
        show.print_json({"levels": [_level_json(p) for p in proved], "host": [asdict(f) for f in facts],
                         "container": _container_json(around, proved), "config_file": _config_file(),
                         "must_failed": failed})  # fmt: skip
    else:
        _print(proved, facts)
        if around is not None:
            _print_container(around, _strongest(proved))
        for name in failed:
            show.note(f"level {name} has to work and does not", "bad")
    return OURS if failed else FINE


async def _prove(bar: show.Progress) -> list[Proved]:
    proved = []
    for name in registry.levels():
        bar.step(name)
        started = time.monotonic()
        try:
            proved.append(await _prove_one(name, started))
        finally:
            await registry.close_all()
    return proved


async def _prove_one(name: str, started: float) -> Proved:
    try:
        backend = registry.find(name)
        state = await backend.probe()
        strength = backend.enforcement(Spec(level=name), enforce.host_facts()).strength
    except KooiError as error:
        return Proved(name, Availability(False, error.message, error.fix), None, time.monotonic() - started)
    return Proved(name, state, strength, time.monotonic() - started)


def _strongest(proved: list[Proved]) -> str | None:
    """Return the last level that works, in the order from the weakest."""
    return next((one.level for one in reversed(proved) if one.state.ok), None)


def _container_json(around: Container | None, proved: list[Proved]) -> dict[str, object] | None:
    if around is None:
        return None
    return {**asdict(around), "strongest": _strongest(proved), "flags_for_jail": around.flags or None}


def _print_container(around: Container, strongest: str | None) -> None:
    show.note(f"inside a container ({around.kind}): the strongest level here is {strongest or 'none'}")
    for refusal in around.refused:
        show.note(f"  {refusal.what}: refused by {refusal.by}", "dim")
    if around.flags:
        show.note(f"  for jail, its operator would have to grant: {around.flags}", "dim")


def _config_file() -> str | None:
    path = settings.load_settings().config_file
    return None if path is None else str(path)


def _level_json(proved: Proved) -> dict[str, object]:
    return {"level": proved.level, "strength": proved.strength, "proved_in_seconds": round(proved.seconds, 4),
            **asdict(proved.state)}  # fmt: skip


def _print(proved: list[Proved], facts: list[Fact]) -> None:
    rows = []
    for one in proved:
        state = one.state
        here = show.cell("works", "good") if state.ok else show.cell("no", "bad")
        why = f"started and answered in {one.seconds * 1000:.0f} ms" if state.ok else state.reason
        rows.append(
            [show.cell(one.level), here, show.cell(one.strength or ""), show.cell(why), show.cell(state.fix or "")]
        )
    show.table("levels, proved by starting one", ["level", "here", "strength", "why", "what would help"], rows)
    for one in proved:
        for name, value in one.state.detail.items():
            show.note(f"  {one.level}: {name}: {value}", "dim")
    for group in dict.fromkeys(f.group for f in facts):
        lines = [
            [show.cell(f.name), show.cell(f.value, f.verdict), show.cell(f.advice)] for f in facts if f.group == group
        ]
        show.table(group, ["what", "here", "advice"], lines)
    show.note(f"configuration: {_config_file() or 'none, defaults'}", "dim")
