"""K3: write rubbish to every open descriptor, then close them all: nothing of the host may fall over."""

import json
from dataclasses import replace

from kooi.contract.result import STATUSES
from kooi.proof.attacks.model import Evidence, Expectation, Program, World

SOURCE = """
name_me()
mark("started")
deep = b"[" * 200000
rubbish = (b"\\xff" * 64, b"\\x00" * 64, deep, b'{"a": 1e309, "a": NaN, "\\xed\\xa0\\x80": 1}', os.urandom(4096))
if not P["sandboxed"]:
    os.write(2, deep)
for fd in range(3, 256):
    for data in rubbish:
        try:
            os.set_blocking(fd, False)
            os.write(fd, data)
        except OSError:
            break
for fd in range(0, 256):
    try:
        os.dup2(0, fd)
    except OSError:
        pass
os.closerange(0, 256)
time.sleep(0.2)
os._exit(0)
"""
CONTROL = """
mark("works")
"""


async def _attack(world: World) -> Evidence:
    evidence = await world.run(SOURCE)
    fell = not evidence.returned
    if not world.params["sandboxed"]:
        try:
            json.loads(evidence.errors)  # as a careless host does with what comes on a control channel
        except RecursionError:
            fell = True
    return replace(evidence, facts={**evidence.facts, "fell": fell})


def _fell(evidence: Evidence) -> str | None:
    return "the host fell over, or waits for ever" if evidence.facts.get("fell") else None


def _stood(evidence: Evidence) -> str | None:
    if "started" in evidence.marks and evidence.status in STATUSES:
        return f"the host says {evidence.status}, decided by {evidence.decided_by}"
    return None


PROGRAM = Program(
    id="K3",
    title="rubbish on every descriptor",
    source=SOURCE,
    control=CONTROL,
    harm=_fell,
    refused=_stood,
    expect=Expectation(),
    attack=_attack,
)
