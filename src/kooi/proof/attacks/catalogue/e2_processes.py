"""E2: look at other processes through /proc: their numbers, environment, folders and descriptors."""

from kooi.proof.attacks.judges import either, marked, stolen
from kooi.proof.attacks.model import Evidence, Expectation, Program

SOURCE = """
name_me()
mark("started")
seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
mark("seen", len(seen))
if P["victim"] in seen:
    mark("opened", "the planted process")
for pid in seen:
    try:
        with open("/proc/%d/environ" % pid, "rb") as f:
            for entry in f.read().split(b"\\0"):
                if entry.startswith(P["environment"].encode()):
                    os.write(2, entry + b"\\n")
    except OSError:
        pass
mark("done")
"""
CONTROL = """
if str(os.getpid()) in os.listdir("/proc"):
    mark("works")
"""


def _saw(evidence: Evidence) -> str | None:
    return "sees the planted process of the host" if "opened" in evidence.marks else None


PROGRAM = Program(
    id="E2",
    title="look at other processes",
    source=SOURCE,
    control=CONTROL,
    harm=either(stolen, _saw),
    refused=marked("done"),
    expect=Expectation(clause="processes_hidden"),
)
