"""L2: pass a token to another sandbox through System V shared memory, message queues and named POSIX memory."""

from dataclasses import replace

from kooi.proof.attacks.model import Evidence, Expectation, Program, World

# 0o1600 is IPC_CREAT and read and write for the owner; 0 as command of shmctl and msgctl is IPC_RMID.
HEAD = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
key = P["key"]
"""
LEAVE = (
    HEAD
    + """
name_me()
ways = 0
segment = libc.shmget(key, 4096, 0o1600)
ways += segment >= 0
queue = libc.msgget(key, 0o1600)
ways += queue >= 0
try:
    with open("/dev/shm/kooi-l2-%d" % key, "w") as f:
        f.write("x")
    ways += 1
except OSError:
    pass
mark("started", ways)
"""
)
LOOK = (
    HEAD
    + """
segment = libc.shmget(key, 0, 0)
if segment >= 0:
    mark("found", "shared memory")
    if P["clean"]:
        libc.shmctl(segment, 0, None)
queue = libc.msgget(key, 0)
if queue >= 0:
    mark("found", "message queue")
    if P["clean"]:
        libc.msgctl(queue, 0, None)
if os.path.exists("/dev/shm/kooi-l2-%d" % key):
    mark("found", "named memory")
    if P["clean"]:
        os.unlink("/dev/shm/kooi-l2-%d" % key)
mark("looked")
"""
)
CONTROL = """
import ctypes
if ctypes.CDLL(None).getpid() == os.getpid():
    mark("works")
"""


async def _attack(world: World) -> Evidence:
    key = {"key": int(str(world.params["word"])[:7], 16) + 1, "clean": False}
    left = await world.run(LEAVE, key)
    other = await world.another()
    seen = await other.run(LOOK, key)
    own = await world.run(LOOK, {**key, "clean": True})
    facts = {"seen": seen.marks.get("found", ()), "own": own.marks.get("found", ()), "looked": "looked" in seen.marks}
    return replace(left, facts=facts)


def _leaked(evidence: Evidence) -> str | None:
    seen = evidence.facts.get("seen")
    return f"another sandbox sees {seen}" if seen else None


def _private(evidence: Evidence) -> str | None:
    if "started" in evidence.marks and evidence.facts.get("looked"):
        return f"seen in its own sandbox only: {evidence.facts.get('own') or 'refused there too'}"
    return None


PROGRAM = Program(
    id="L2",
    title="shared memory of another sandbox",
    source=LEAVE,
    control=CONTROL,
    harm=_leaked,
    refused=_private,
    # At the level `process` nothing of this is taken away.
    expect=Expectation(levels={"process": frozenset({"escaped"})}),
    attack=_attack,
)
