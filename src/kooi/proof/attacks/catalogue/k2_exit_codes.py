"""K2: leave with an exit code that a careless runner takes for a limit, or for success."""

from dataclasses import replace

from kooi.proof.attacks.model import Evidence, Expectation, Program, World

SOURCE = """
name_me()
mark("started", P["code"])
os._exit(P["code"])
"""
CONTROL = """
mark("works")
"""
CARELESS = {137: "oom", 124: "timeout", 139: "signal", 143: "signal"}


async def _attack(world: World) -> Evidence:
    wrong: list[str] = []
    right: list[str] = []
    evidence = Evidence(None, 0.0)
    for code, meant in CARELESS.items():
        evidence = await world.run(SOURCE, {"code": code})
        status = evidence.status if world.params["sandboxed"] else meant
        told = (status, evidence.facts.get("exit_code"))
        (right if told == ("error", code) and "started" in evidence.marks else wrong).append(f"{code} is {told}")
    return replace(evidence, facts={"wrong": wrong, "right": right})


def _fooled(evidence: Evidence) -> str | None:
    wrong = evidence.facts.get("wrong")
    return f"taken for something else: {wrong}" if wrong else None


def _not_fooled(evidence: Evidence) -> str | None:
    right = evidence.facts.get("right")
    return f"{right}" if isinstance(right, list) and len(right) == len(CARELESS) else None


PROGRAM = Program(
    id="K2",
    title="forge an ending by an exit code",
    source=SOURCE,
    control=CONTROL,
    harm=_fooled,
    refused=_not_fooled,
    expect=Expectation(),
    attack=_attack,
)
