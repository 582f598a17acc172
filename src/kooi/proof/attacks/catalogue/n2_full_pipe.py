"""N2: fill standard error while the host reads standard output, and the other way round."""

import hashlib

from kooi.proof.attacks.model import Bare, Evidence, Expectation, Program

SOURCE = """
name_me()
mark("started")
for fd in (2, 1, 2):
    data = b"z" * ((512 << 10) - 1) + b"\\n"
    while data:
        data = data[os.write(fd, data):]
mark("done", _hashlib.sha256((b"z" * ((512 << 10) - 1) + b"\\n") * 2).hexdigest())
"""
CONTROL = """
os.write(2, b"x")
mark("works")
"""


def _stuck(evidence: Evidence) -> str | None:
    return None if evidence.returned else f"both wait for each other, for {evidence.elapsed_seconds:.1f} s"


def _flowed(evidence: Evidence) -> str | None:
    if evidence.last("done") == hashlib.sha256(evidence.errors).hexdigest():
        return f"{evidence.total_bytes} bytes came through both"
    return None


PROGRAM = Program(
    id="N2",
    title="fill one pipe while the other is read",
    source=SOURCE,
    control=CONTROL,
    harm=_stuck,
    refused=_flowed,
    expect=Expectation(),
    limits={"output_bytes": 4 << 20},
    bare=Bare(seconds=3.0, output="in_turn"),
)
