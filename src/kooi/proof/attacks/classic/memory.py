"""Allocate 512 MB, touching every page, with half of that allowed."""

from kooi.proof.attacks.judges import at_least, by_status, either, marked
from kooi.proof.attacks.model import Expectation, Program

SOURCE = """
name_me()
mark("started")
held = []
try:
    for step in range(1, 33):
        block = bytearray(16 << 20)
        for at in range(0, len(block), 4096):
            block[at] = 1
        held.append(block)
        if sum(b[-4096] for b in held) == step:
            mark("megabytes", step * 16)
except MemoryError:
    del held
    mark("refused", "MemoryError")
"""
CONTROL = """
block = bytearray(1 << 20)
for at in range(0, len(block), 4096):
    block[at] = 1
if sum(block) == 256:
    mark("works")
"""
PROGRAM = Program(
    id="memory",
    title="allocate 512 MB",
    source=SOURCE,
    control=CONTROL,
    harm=at_least("megabytes", 512, "MB"),
    refused=either(by_status("oom"), marked("refused", "MemoryError")),
    expect=Expectation(clause="memory_bytes", levels={"microvm": frozenset({"contained", "prevented"})}),
    limits={"memory_bytes": 256 << 20},
    resource=True,
)
