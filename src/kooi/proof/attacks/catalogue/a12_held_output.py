"""A12: a grandchild keeps standard output open after the program has ended: whoever waits for its end waits."""

from kooi.proof.attacks.model import Bare, Evidence, Expectation, Program

SOURCE = """
name_me()
pid = os.fork()
if pid == 0:
    if os.fork() == 0:
        time.sleep(12)
    os._exit(0)
os.waitpid(pid, 0)
mark("started", "the grandchild holds the output")
"""
CONTROL = """
pid = os.fork()
if pid == 0:
    os.write(1, b"from a child\\n")
    os._exit(0)
os.waitpid(pid, 0)
mark("works")
"""


def _held(evidence: Evidence) -> str | None:
    if not evidence.returned or evidence.elapsed_seconds > 4.0:
        return f"the call was held for {evidence.elapsed_seconds:.1f} s"
    return None


def _came_back(evidence: Evidence) -> str | None:
    if "started" in evidence.marks and evidence.status in ("ok", "error"):
        return f"the call came back after {evidence.elapsed_seconds:.2f} s with what was written"
    return None


PROGRAM = Program(
    id="A12",
    title="a grandchild holds standard output open",
    source=SOURCE,
    control=CONTROL,
    harm=_held,
    refused=_came_back,
    expect=Expectation(),
    seconds=20.0,
    bare=Bare(seconds=5.0, output="end"),
)
