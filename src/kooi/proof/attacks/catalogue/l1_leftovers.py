"""L1: leave a token in every folder that can be written; another sandbox looks for it."""

from dataclasses import replace

from kooi.proof.attacks.model import Evidence, Expectation, Program, World

HEAD = """
folders = ["/tmp", "/dev/shm", os.getcwd()]
if P["level"] not in ("none", "process"):
    folders += ["/var/tmp", "/run", os.path.expanduser("~"), os.path.dirname(os.__file__)]
"""
LEAVE = (
    HEAD
    + """
name_me()
left = 0
for folder in folders:
    try:
        with open(folder + "/kooi-l1-" + P["word"], "w") as f:
            f.write(P["word"])
        left += 1
    except OSError:
        pass
mark("started", left)
"""
)
LOOK = (
    HEAD
    + """
for folder in folders:
    path = folder + "/kooi-l1-" + P["word"]
    if os.path.exists(path):
        mark("found", folder)
        if P["clean"]:
            os.unlink(path)
mark("looked")
"""
)
CONTROL = """
with open("x", "w") as f:
    f.write("x")
if os.path.exists("x"):
    mark("works")
"""


async def _attack(world: World) -> Evidence:
    word = {"word": str(world.params["word"]), "clean": False}
    left = await world.run(LEAVE, word)
    other = await world.another()
    seen = await other.run(LOOK, word)
    # The same look in the same sandbox: the way of looking works, and what lies in shared folders is taken away.
    own = await world.run(LOOK, {**word, "clean": True})
    return replace(left, facts={"seen": seen.marks.get("found", ()), "own": own.marks.get("found", ())})


def _leaked(evidence: Evidence) -> str | None:
    seen = evidence.facts.get("seen")
    return f"another sandbox sees {seen}" if seen else None


def _private(evidence: Evidence) -> str | None:
    return f"seen in its own sandbox only: {evidence.facts.get('own')}" if evidence.facts.get("own") else None


PROGRAM = Program(
    id="L1",
    title="files left for another sandbox",
    source=LEAVE,
    control=CONTROL,
    harm=_leaked,
    refused=_private,
    expect=Expectation(clause="host_files"),
    attack=_attack,
)
