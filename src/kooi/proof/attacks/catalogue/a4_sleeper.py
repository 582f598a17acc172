"""A4: sleep for ever, using no CPU: only the wall clock can see it."""

from kooi.proof.attacks.judges import by_status, overstayed
from kooi.proof.attacks.model import Bare, Expectation, Program

SOURCE = """
name_me()
mark("started")
while True:
    time.sleep(3600)
"""
CONTROL = """
began = time.monotonic()
time.sleep(0.05)
if time.monotonic() - began >= 0.05:
    mark("works")
"""
PROGRAM = Program(
    id="A4",
    title="sleep for ever",
    source=SOURCE,
    control=CONTROL,
    harm=overstayed,
    refused=by_status("timeout"),
    expect=Expectation(clause="wall_seconds"),
    limits={"wall_seconds": 1.0, "cpu_seconds": 0.5},
    bare=Bare(seconds=1.5),
)
