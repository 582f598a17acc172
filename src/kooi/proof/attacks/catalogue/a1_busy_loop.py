"""A1: a busy loop, against the CPU limit."""

from kooi.proof.attacks.judges import by_status, overstayed
from kooi.proof.attacks.model import Bare, Expectation, Program

SOURCE = """
name_me()
mark("started")
n = 0
while True:
    n += 1
"""
CONTROL = """
n = 0
while n < 100000:
    n += 1
mark("works", n)
"""
PROGRAM = Program(
    id="A1",
    title="busy loop against the CPU limit",
    source=SOURCE,
    control=CONTROL,
    harm=overstayed,
    refused=by_status("cpu_limit", "timeout"),
    expect=Expectation(clause="cpu_seconds"),
    limits={"cpu_seconds": 0.5, "wall_seconds": 10.0},
    bare=Bare(seconds=1.5),
)
