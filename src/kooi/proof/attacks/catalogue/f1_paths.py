"""F1: the host is asked to write to names that lead out: absolute, with dots, with NUL."""

from dataclasses import replace

from kooi.contract.errors import KooiError
from kooi.proof.attacks.model import Evidence, Expectation, Program, World

SOURCE = """
name_me()
os.makedirs("a/b", exist_ok=True)
mark("started")
"""
CONTROL = """
os.makedirs("c/d", exist_ok=True)
if os.path.isdir("c/d"):
    mark("works")
"""


async def _attack(world: World) -> Evidence:
    evidence = await world.run(SOURCE)
    drop = str(world.params["drop"])
    up = "../" * 20
    answers = []
    for path in (
        f"{drop}/1",
        f"{up}{drop}/2",
        f"a/b/{up}{drop}/3",
        f"/proc/self/cwd/{up}{drop}/4",
        f"//{drop}/5",
        f"{drop}/6\0.txt",
        f"./{drop}/7",
    ):
        try:
            await world.write(path, b"out")
            answers.append("written")
        except (OSError, ValueError, KooiError) as error:
            answers.append(type(error).__name__)
    await world.write("a/b/inside.txt", b"inside")
    inside = await world.read("a/b/inside.txt") == b"inside"
    seen = world.check()
    return replace(evidence, facts={**seen.facts, "answers": answers, "inside": inside})


def got_out(evidence: Evidence) -> str | None:
    """Harm: something turned up outside."""
    found = evidence.facts.get("dropped")
    return f"written outside: {found}" if found else None


def stayed(evidence: Evidence) -> str | None:
    """Refusal: what was asked for happened inside, and nothing turned up outside."""
    if "started" in evidence.marks and evidence.facts.get("inside") and evidence.facts.get("dropped") == ():
        return f"nothing turned up outside ({evidence.facts.get('answers')})"
    return None


PROGRAM = Program(
    id="F1",
    title="names that lead out, through the files API",
    source=SOURCE,
    control=CONTROL,
    harm=got_out,
    refused=stayed,
    expect=Expectation(clause="host_files"),
    attack=_attack,
)
