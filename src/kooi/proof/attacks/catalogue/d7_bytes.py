"""D7: output that is no text: what comes out must be what went in, byte by byte."""

import hashlib
from dataclasses import replace

from kooi.proof.attacks.model import Evidence, Expectation, Program, World

SOURCE = """
name_me()
data = b"\\xff\\xfe\\x00\\xed\\xa0\\x80\\xc0\\xaf\\r\\x1b[2J" + os.urandom(100000) + b"y" * 400000
mark("started", _hashlib.sha256(data).hexdigest())
done = 0
while done < len(data):
    done += os.write(2, data[done:])
"""
CONTROL = """
os.write(2, "ü\\n".encode())
mark("works")
"""


async def _attack(world: World) -> Evidence:
    evidence = await world.run(SOURCE)
    lost = evidence.last("started") != hashlib.sha256(evidence.errors).hexdigest()
    if not world.params["sandboxed"]:
        try:
            evidence.errors.decode()  # as a careless host does, and so loses all of it
        except UnicodeDecodeError:
            lost = True
    return replace(evidence, facts={**evidence.facts, "lost": lost})


def _lost(evidence: Evidence) -> str | None:
    return "output was changed or lost" if evidence.facts.get("lost") else None


def _exact(evidence: Evidence) -> str | None:
    if "started" in evidence.marks and evidence.facts.get("lost") is False:
        return f"{len(evidence.errors)} bytes came out as they went in"
    return None


PROGRAM = Program(
    id="D7",
    title="output that is no text",
    source=SOURCE,
    control=CONTROL,
    harm=_lost,
    refused=_exact,
    expect=Expectation(),
    attack=_attack,
)
