"""D5: flood standard output and standard error in turns, without a line end."""

from kooi.proof.attacks.model import Evidence, Expectation, Program

SOURCE = """
name_me()
mark("started")
block = b"x" * 65536
for _ in range(512):
    for fd in (1, 2):
        done = 0
        while done < len(block):
            done += os.write(fd, block[done:])
"""
CONTROL = """
os.write(2, b"a little\\n")
mark("works")
"""


def _flooded(evidence: Evidence) -> str | None:
    kept = evidence.facts.get("kept_bytes")
    if isinstance(kept, int) and kept > 4 << 20:
        return f"the host keeps {kept >> 20} MB"
    return None if evidence.returned else f"the call was held for {evidence.elapsed_seconds:.1f} s"


def _cut_off(evidence: Evidence) -> str | None:
    if (
        "started" in evidence.marks
        and evidence.truncated
        and evidence.status in ("output_limit", "ok", "error", "signal")
    ):
        return (
            f"cut off at {evidence.facts.get('kept_bytes')} of {evidence.total_bytes} bytes, status {evidence.status}"
        )
    return None


PROGRAM = Program(
    id="D5",
    title="flood the output",
    source=SOURCE,
    control=CONTROL,
    harm=_flooded,
    refused=_cut_off,
    expect=Expectation(clause="output_bytes"),
    limits={"output_bytes": 100_000},
)
