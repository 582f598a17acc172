"""Write 50 MB to a file, with 32 MB allowed."""

from kooi.proof.attacks.judges import at_least, by_status, either, marked
from kooi.proof.attacks.model import Expectation, Program

# A refusal by permission does not count: a directory that cannot be written proves nothing about a quota.
SOURCE = """
name_me()
mark("started")
path = "attack.bin"
try:
    with open(path, "wb", buffering=0) as file:
        for step in range(1, 51):
            block, done = os.urandom(1 << 20), 0
            while done < len(block):
                done += file.write(block[done:])
            if os.fstat(file.fileno()).st_blocks * 512 >= step << 20:
                mark("megabytes", step)
except OSError as error:
    mark("refused", code_of(error))
os.unlink(path)
"""
CONTROL = """
with open("control.bin", "wb") as file:
    file.write(b"ok")
with open("control.bin", "rb") as file:
    if file.read() == b"ok":
        mark("works")
os.unlink("control.bin")
"""
PROGRAM = Program(
    id="disk",
    title="write 50 MB",
    source=SOURCE,
    control=CONTROL,
    harm=at_least("megabytes", 50, "MB"),
    refused=either(marked("refused", "EFBIG", "ENOSPC", "EDQUOT"), by_status("disk_limit")),
    expect=Expectation(clause="disk_bytes", levels={"microvm": frozenset({"contained", "prevented"})}),
    limits={"disk_bytes": 32 << 20},
    resource=True,
)
