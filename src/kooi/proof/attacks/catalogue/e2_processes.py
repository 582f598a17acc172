"""E2: look at other processes through /proc: their numbers, environment, folders and descriptors."""

from kooi.proof.attacks.judges import either, marked, stolen
from kooi.proof.attacks.model import Evidence, Expectation, Program

SOURCE = """
name_me()
mark("started")
try:
    seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
except OSError:
    # A folder that may not be listed can still be asked for a name.
    seen = [pid for pid in range(1, 1 << 16) if os.path.exists("/proc/%d" % pid)]
    seen += [P["victim"]] if P["victim"] >= 1 << 16 and os.path.exists("/proc/%d" % P["victim"]) else []
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
if os.path.exists("/proc/%d" % os.getpid()):
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
