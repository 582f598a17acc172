"""C3: orphans that die: whoever inherits them has to reap them, or they pile up."""

from kooi.proof.attacks.model import Evidence, Expectation, Program

# With the sandbox off the program makes itself the heir (a subreaper) and, like a bad process 1, does not reap.
SOURCE = """
name_me()
if not P["sandboxed"]:
    import ctypes
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
living, held_by_orphans = os.pipe()
for _ in range(40):
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            os.write(held_by_orphans, b"%8d" % os.getpid())
            time.sleep(0.05)
        os._exit(0)
    os.waitpid(pid, 0)
mark("started", "40 orphans")
os.close(held_by_orphans)
with open(living, "rb") as f:
    told = f.read()
orphans = [int(told[at:at + 8]) for at in range(0, len(told), 8)]
# All of them are dead. One that can still be signalled was not reaped.
def zombies():
    count = 0
    for pid in orphans:
        try:
            os.kill(pid, 0)
            count += 1
        except OSError:
            pass
    return count
deadline = time.monotonic() + 1.5
while time.monotonic() < deadline and zombies() != (0 if P["sandboxed"] else 40):
    time.sleep(0.05)
mark("zombies", zombies())
"""
CONTROL = """
pid = os.fork()
if pid == 0:
    os._exit(3)
if os.waitpid(pid, 0)[1] == 3 << 8:
    mark("works")
"""


def _piled_up(evidence: Evidence) -> str | None:
    left = evidence.number("zombies")
    return f"{left} zombies were left" if left >= 5 else None


def _reaped(evidence: Evidence) -> str | None:
    return "all 40 orphans were reaped" if "zombies" in evidence.marks else None


PROGRAM = Program(
    id="C3",
    title="a flood of orphans that die",
    source=SOURCE,
    control=CONTROL,
    harm=_piled_up,
    refused=_reaped,
    expect=Expectation(),
)
