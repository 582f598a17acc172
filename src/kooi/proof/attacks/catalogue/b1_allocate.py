"""B1: allocate until it fails, at most twice what is allowed."""

from kooi.proof.attacks.judges import at_least, by_status, either, marked
from kooi.proof.attacks.model import Expectation, Program

SOURCE = """
name_me()
mark("started")
held = []
try:
    while len(held) < 32:
        held.append(b"\\x01" * (8 << 20))
        mark("megabytes", 8 * len(held))
except MemoryError:
    del held
    mark("refused", "MemoryError")
"""
CONTROL = """
held = [b"\\x01" * (1 << 20) for _ in range(8)]
mark("works", len(held))
"""
PROGRAM = Program(
    id="B1",
    title="allocate until it fails",
    source=SOURCE,
    control=CONTROL,
    harm=at_least("megabytes", 256, "MB"),
    refused=either(by_status("oom"), marked("refused", "MemoryError")),
    expect=Expectation(clause="memory_bytes"),
    limits={"memory_bytes": 128 << 20},
    resource=True,
)
