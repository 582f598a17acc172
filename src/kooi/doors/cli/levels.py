"""List the levels and whether each runs here, or choose one for a purpose, with the reason.

examples:
  kooi levels
  kooi levels --for secrets
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from kooi.contract.backend import Availability
from kooi.doors.cli import show
from kooi.doors.cli.main import FINE, OURS
from kooi.engine import registry


@dataclass(frozen=True, slots=True)
class Purpose:
    """A use, the levels that fit it (best first), why, and what to know when a later one is taken."""

    title: str
    levels: tuple[str, ...]
    why: str
    otherwise: str


PROMISES: dict[str, str] = {
    "process": "no boundary: limits and a clean environment, for trusted code",
    "confined": "Landlock and seccomp, no namespaces: works inside an unprivileged container",
    "jail": "all namespaces, read-only view, seccomp allow list, control groups; shares the host's kernel",
    "wasm": "no processes, no sockets, no host files by construction",
    "container": "the familiar boundary, hardened",
    "gvisor": "its own kernel in user space",
    "microvm": "its own kernel behind a hypervisor",
    "e2b": "somebody else's microVM, reached over the network",
}
PURPOSES: dict[str, Purpose] = {
    "trusted": Purpose(
        "code you would run anyway: your own scripts, a teacher's examples",
        ("process", "jail"),
        "a child process with limits is enough to catch mistakes, works everywhere and costs least",
        "a stronger level does no harm here",
    ),
    "secrets": Purpose(
        "code that runs where stealing something would hurt: keys, personal data, money",
        ("microvm", "gvisor", "jail"),
        "with a kernel of its own the code meets the host's kernel only through a narrow interface",
        "it shares the host's kernel, so a kernel bug is a way out: keep the secrets on another machine if you can",
    ),
    "many-users": Purpose(
        "code of people who do not know each other, on one machine",
        ("microvm", "gvisor", "jail"),
        "one user's code must not reach another's, not even through a bug of the shared kernel",
        "it shares the host's kernel between the users: one trust domain a machine is safer",
    ),
    "containers": Purpose(
        "an agent that itself builds and runs containers",
        ("microvm",),
        "building containers needs root, mounts and namespaces, which only a machine of one's own can give away safely",
        "",
    ),
    "inside-a-container": Purpose(
        "kooi runs inside a container that you cannot change",
        ("confined", "jail", "process"),
        "hardened containers refuse namespaces; Landlock and seccomp still work there",
        "it needs user namespaces and an unmasked /proc in the outer container",
    ),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--for", dest="purpose", choices=tuple(PURPOSES), help="choose a level for this")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """List or choose."""
    found = asyncio.run(_probe())
    if args.purpose:
        return _choose(args.purpose, found, args.json)
    if args.json:
        show.print_json({name: {"promise": PROMISES.get(name), **asdict(state)} for name, state in found.items()})
        return FINE
    show.table("levels", ["level", "here", "what it is"], [_row(name, state) for name, state in found.items()])
    return FINE


async def _probe() -> Mapping[str, Availability]:
    try:
        return await registry.probe_all()
    finally:
        await registry.close_all()


def _row(name: str, state: Availability) -> list[show.Cell]:
    here = show.cell("works", "good") if state.ok else show.cell(f"no: {state.reason}", "dim")
    return [show.cell(name), here, show.cell(PROMISES.get(name, "added by a plug-in"))]


def _choose(name: str, found: Mapping[str, Availability], as_json: bool) -> int:
    purpose = PURPOSES[name]
    usable = [level for level in purpose.levels if level in found and found[level].ok]
    choice = usable[0] if usable else None
    missing = [level for level in purpose.levels if level not in usable]
    skipped = (
        missing if choice is None else [m for m in missing if purpose.levels.index(m) < purpose.levels.index(choice)]
    )
    caution = purpose.otherwise if choice != purpose.levels[0] else ""
    if as_json:
        show.print_json({"for": name, "level": choice, "why": purpose.why, "caution": caution or None,
                         "better_but_absent": {m: _reason(m, found) for m in skipped}})  # fmt: skip
        return FINE if choice else OURS
    show.note(f"for {name}: {purpose.title}")
    show.note(f"take {choice}" if choice else "no level here fits", "good" if choice else "bad")
    show.note(f"best would be {purpose.levels[0]}: {purpose.why}" if skipped else f"because {purpose.why}")
    for level in skipped:
        show.note(f"  {level} is not here: {_reason(level, found)}", "dim")
    if choice and caution:
        show.note(f"mind, with {choice}: {caution}", "doubt")
    return FINE if choice else OURS


def _reason(level: str, found: Mapping[str, Availability]) -> str:
    state = found.get(level)
    if state is None:
        return "not in this version"
    return f"{state.reason}; {state.fix}" if state.fix else state.reason or "unknown"
