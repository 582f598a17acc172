"""F2: the code puts a link in the place of a folder, and then the host writes into that folder."""

from dataclasses import replace

from kooi.contract.errors import KooiError
from kooi.proof.attacks.catalogue.f1_paths import got_out, stayed
from kooi.proof.attacks.model import Evidence, Expectation, Program, World

SOURCE = """
name_me()
os.mkdir("out")
os.rmdir("out")
os.symlink(P["drop"], "out")
os.symlink(P["drop"] + "/file", "result.txt")
mark("started", os.readlink("out"))
"""
CONTROL = """
os.mkdir("fine")
os.symlink("fine", "link")
if os.path.isdir("link"):
    mark("works")
"""


async def _attack(world: World) -> Evidence:
    evidence = await world.run(SOURCE)
    answers = []
    for path in ("out/result.txt", "result.txt"):
        try:
            await world.write(path, b"out")
            answers.append("written")
        except (OSError, KooiError) as error:
            answers.append(type(error).__name__)
    await world.write("honest.txt", b"inside")
    inside = await world.read("honest.txt") == b"inside"
    return replace(evidence, facts={**world.check().facts, "answers": answers, "inside": inside})


PROGRAM = Program(
    id="F2",
    title="a link in the place of a folder",
    source=SOURCE,
    control=CONTROL,
    harm=got_out,
    refused=stayed,
    expect=Expectation(clause="host_files"),
    attack=_attack,
)
