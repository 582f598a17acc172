"""I1: find descriptors that were left open: a file of the host, or any folder (a way out of a new root)."""

from kooi.proof.attacks.model import Bare, Evidence, Expectation, Program

SOURCE = """
import stat
name_me()
count = 0
for fd in range(3, 4096):
    try:
        found = os.fstat(fd)
    except OSError:
        continue
    count += 1
    if [found.st_dev, found.st_ino] == P["inode"]:
        mark("found", "the host's open file at %d" % fd)
    elif stat.S_ISDIR(found.st_mode):
        mark("found", "a folder at %d" % fd)
mark("started", count)
"""
CONTROL = """
fd = os.open("/dev/null", os.O_RDONLY)
if os.fstat(fd):
    mark("works")
os.close(fd)
"""


def _found(evidence: Evidence) -> str | None:
    found = evidence.marks.get("found", ())
    return f"open inside: {', '.join(found)}" if found else None


def _none(evidence: Evidence) -> str | None:
    started = evidence.last("started")
    return None if started is None else f"{started} descriptors beyond the first three, none of the host's files"


PROGRAM = Program(
    id="I1",
    title="descriptors that were left open",
    source=SOURCE,
    control=CONTROL,
    harm=_found,
    refused=_none,
    expect=Expectation(),
    bare=Bare(inherit=True),
)
