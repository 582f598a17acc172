"""D1: fill every folder that can be written with many files, each of them small enough."""

from kooi.proof.attacks.judges import at_least, by_status, either, marked
from kooi.proof.attacks.model import WHOLE, Expectation, Outcome, Program

# Where the host's own folders are in reach, only the program's own one is filled.
SOURCE = """
name_me()
mark("started")
made, total = [], 0
BLOCK = os.urandom(1 << 20)
folders = (".",) if P["level"] in ("none", "process") else (".", "/tmp", "/var/tmp", "/dev/shm")
for folder in folders:
    for number in range(24):
        path = "%s/%s-%d" % (folder, P["tag"], number)
        try:
            with open(path, "xb", buffering=0) as f:
                made.append(path)
                for _ in range(4):
                    if f.write(BLOCK) < len(BLOCK):
                        raise OSError(errno.ENOSPC, "short")
                    total += 1
        except OSError as error:
            mark("refused", code_of(error))
            break
    mark("megabytes", total)
for path in made:
    os.unlink(path)
"""
CONTROL = """
with open("two", "wb") as f:
    f.write(b"ok")
os.unlink("two")
mark("works")
"""
# A child process has a home of a fixed size only where it can have a mount of its own.
EITHER: dict[str, frozenset[Outcome]] = {"process": frozenset({"escaped", "prevented"})}
PROGRAM = Program(
    id="D1",
    title="fill every folder with many files",
    source=SOURCE,
    control=CONTROL,
    harm=at_least("megabytes", 90, "MB"),
    refused=either(
        marked("refused", "ENOSPC", "EDQUOT", "EFBIG", "EACCES", "ENOENT", "EROFS"), by_status("disk_limit", "oom")
    ),
    expect=Expectation(clause="disk_bytes", holds=WHOLE, levels=EITHER),
    limits={"disk_bytes": 24 << 20, "memory_bytes": 256 << 20},
    resource=True,
    seconds=20.0,
)
