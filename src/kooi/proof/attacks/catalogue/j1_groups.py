"""J1: change one's own control groups: limits, release agents, membership."""

from kooi.proof.attacks.judges import marked
from kooi.proof.attacks.model import Bare, Evidence, Expectation, Program

# Files are opened for writing and nothing is written.
SOURCE = """
name_me()
mark("started")
names = ("release_agent", "notify_on_release", "devices.allow", "cgroup.procs", "memory.limit_in_bytes", "memory.max",
         "pids.max", "cgroup.subtree_control")
looked = 0
for folder, folders, files in os.walk("/sys/fs/cgroup"):
    looked += 1
    for name in names:
        if name in files:
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY))
                mark("opened", os.path.join(folder, name))
            except OSError as error:
                mark("refused", code_of(error))
    if folder.count("/") > 5 or looked > 60:
        folders[:] = []
mark("done", looked)
"""
CONTROL = """
try:
    with open("/proc/self/cgroup") as f:
        f.read()
except PermissionError:
    os.stat("/sys/fs/cgroup")
mark("works")
"""


def _opened(evidence: Evidence) -> str | None:
    found = evidence.marks.get("opened", ())
    return f"{len(found)} control files can be written, like {found[0]}" if found else None


PROGRAM = Program(
    id="J1",
    title="change the own control groups",
    source=SOURCE,
    control=CONTROL,
    harm=_opened,
    refused=marked("done"),
    expect=Expectation(levels={"process": frozenset({"escaped", "prevented"})}),
    bare=Bare(root=True),
)
