"""F4: the code leaves a link to a file of the host where the host expects a result to fetch."""

from dataclasses import replace

from kooi.contract.errors import KooiError
from kooi.proof.attacks.model import Evidence, Expectation, Program, World

SOURCE = """
name_me()
os.symlink(P["credentials"], "report.txt")
os.makedirs("sub", exist_ok=True)
os.symlink(os.path.dirname(P["credentials"]), "sub/folder")
mark("started", os.readlink("report.txt"))
"""
CONTROL = """
with open("real.txt", "w") as f:
    f.write("real")
mark("works")
"""


async def _attack(world: World) -> Evidence:
    evidence = await world.run(SOURCE)
    got, answers = [], []
    for path in ("report.txt", "sub/folder/credentials", "/proc/self/root" + str(world.params["credentials"])):
        try:
            got.append(await world.read(path))
            answers.append("read")
        except (OSError, KooiError) as error:
            answers.append(type(error).__name__)
    await world.write("real.txt", b"real")
    inside = await world.read("real.txt") == b"real"
    return replace(evidence, spoils=world.check(*got).spoils, facts={"answers": answers, "inside": inside})


def _fetched(evidence: Evidence) -> str | None:
    return "the host fetched its own file for the program" if evidence.spoils else None


def _refused(evidence: Evidence) -> str | None:
    if "started" in evidence.marks and evidence.facts.get("inside"):
        return f"no link was followed out ({evidence.facts.get('answers')})"
    return None


PROGRAM = Program(
    id="F4",
    title="fetch a link that leads out",
    source=SOURCE,
    control=CONTROL,
    harm=_fetched,
    refused=_refused,
    expect=Expectation(clause="host_files"),
    attack=_attack,
)
