"""A3: a daemon (double fork, session of its own, every descriptor closed) that outlives its program."""

from dataclasses import replace

from kooi.proof.attacks.judges import marked
from kooi.proof.attacks.model import Evidence, Expectation, Program, World

SOURCE = """
name_me()
read_end, write_end = os.pipe()
pid = os.fork()
if pid == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write_end, b"up")
        os.closerange(0, 64)
        time.sleep(20)
    os._exit(0)
os.waitpid(pid, 0)
if os.read(read_end, 2) == b"up":
    mark("started", "the daemon is up")
"""
CONTROL = """
pid = os.fork()
if pid == 0:
    os.setsid()
    os._exit(0)
if os.waitpid(pid, 0)[1] == 0:
    mark("works")
"""


async def _attack(world: World) -> Evidence:
    evidence = await world.run(SOURCE)
    left = await world.end()
    return replace(evidence, seen_after=left, facts={**evidence.facts, "ended": True})


def _outlived(evidence: Evidence) -> str | None:
    return f"{evidence.seen_after} processes outlived their sandbox" if evidence.seen_after else None


PROGRAM = Program(
    id="A3",
    title="a daemon that outlives its program",
    source=SOURCE,
    control=CONTROL,
    harm=_outlived,
    refused=marked("started"),
    # Without a namespace or group the daemon is found by walking the process tree; the report's grade says which.
    expect=Expectation(clause="kill"),
    attack=_attack,
)
