"""An endless loop."""

from kooi.proof.attacks.judges import by_status, overstayed
from kooi.proof.attacks.model import Bare, Expectation, Program

SOURCE = """
name_me()
mark("started")
while True:
    pass
"""
CONTROL = """
total = 0
for n in range(100000):
    total += n
if total == 4999950000:
    mark("works")
"""
PROGRAM = Program(
    id="loop",
    title="endless loop",
    source=SOURCE,
    control=CONTROL,
    harm=overstayed,
    refused=by_status("timeout", "cpu_limit"),
    expect=Expectation(clause="wall_seconds"),
    limits={"wall_seconds": 1.0},
    bare=Bare(seconds=1.5),
)
