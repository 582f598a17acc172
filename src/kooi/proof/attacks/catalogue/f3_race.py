"""F3: a name that changes between a file and a link to the outside while the host reads and writes it."""

import asyncio
from dataclasses import replace

from kooi.contract.errors import KooiError
from kooi.proof.attacks.model import Evidence, Expectation, Program, World

TRIES = 400
SOURCE = """
name_me()
with open("own", "w") as f:
    f.write("own")
os.symlink(P["credentials"], "away")
os.symlink(P["drop"] + "/raced", "out")
mark("started")
swaps = 0
deadline = time.monotonic() + 4
while time.monotonic() < deadline:
    for name, target in (("swap", "own"), ("sink", "own"), ("swap", "away"), ("sink", "out")):
        os.link(target, "next", follow_symlinks=False)
        os.replace("next", name)
        swaps += 1
mark("swaps", swaps)
"""
CONTROL = """
with open("x", "w") as f:
    f.write("x")
os.replace("x", "y")
mark("works")
"""


async def _attack(world: World) -> Evidence:
    running = asyncio.ensure_future(world.run(SOURCE))
    await asyncio.sleep(0.3)
    got = []
    tried = 0
    while tried < TRIES and not running.done():
        tried += 1
        try:
            got.append(await world.read("swap"))
            await world.write("sink", b"written by the host")
        except (OSError, KooiError):
            continue
    evidence = await running
    seen = world.check(*set(got))
    return replace(evidence, spoils=seen.spoils, facts={**seen.facts, "tried": tried, "read": len(got)})


def _raced(evidence: Evidence) -> str | None:
    if evidence.spoils:
        return "the host read its own file for the program"
    if evidence.facts.get("dropped") or evidence.facts.get("changed"):
        return "the host wrote outside for the program"
    return None


def _held(evidence: Evidence) -> str | None:
    tried = evidence.facts.get("tried")
    if evidence.number("swaps") > 100 and isinstance(tried, int) and tried > 20:
        return f"{tried} reads and writes against {evidence.number('swaps')} swaps, none led out"
    return None


PROGRAM = Program(
    id="F3",
    title="a name that changes while the host uses it",
    source=SOURCE,
    control=CONTROL,
    harm=_raced,
    refused=_held,
    expect=Expectation(clause="host_files"),
    attack=_attack,
    seconds=15.0,
)
