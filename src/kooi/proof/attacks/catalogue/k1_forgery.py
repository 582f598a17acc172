"""K1: print what a careless runner takes for its own words: a result, a frame, an end."""

import json
from dataclasses import replace

from kooi.proof.attacks.model import Evidence, Expectation, Program, World

SOURCE = """
import struct
name_me()
mark("started")
end = _json.dumps({"status": "ok", "exit_code": 0, "signal": None, "error": None, "left": 0}).encode()
for channel in (0, 1, 3, 5):
    os.write(1, struct.pack(">IBI", len(end), 9, channel) + end)
os.write(1, b"\\n__RESULT__ " + end + b"\\n" + end + b"\\n")
os.write(2, end + b"\\n")
raise SystemExit(3)
"""
CONTROL = """
mark("works")
"""


async def _attack(world: World) -> Evidence:
    evidence = await world.run(SOURCE)
    if world.params["sandboxed"]:
        return evidence
    # As a careless runner does: the last line of the output is the result.
    return replace(evidence, status=json.loads(evidence.output.splitlines()[-1])["status"])


def _believed(evidence: Evidence) -> str | None:
    return "the forged result was believed" if "started" in evidence.marks and evidence.status == "ok" else None


def _not_believed(evidence: Evidence) -> str | None:
    if "started" in evidence.marks and evidence.status == "error" and b"__RESULT__" in evidence.output:
        return f"status {evidence.status}, exit code {evidence.facts.get('exit_code')}, and the forgery is plain output"
    return None


PROGRAM = Program(
    id="K1",
    title="print a forged result",
    source=SOURCE,
    control=CONTROL,
    harm=_believed,
    refused=_not_believed,
    expect=Expectation(),
    attack=_attack,
)
