"""E6: gain privileges through a program that carries them."""

from kooi.proof.attacks.model import Evidence, Expectation, Program

SOURCE = """
name_me()
mark("started")
with open("/proc/self/status") as f:
    state = dict(line.rstrip().split(":", 1) for line in f if ":" in line)
mark("sticky", state.get("NoNewPrivs", "?").strip())
bounding = int(state.get("CapBnd", "0").strip(), 16)
mark("bounding", bounding)
"""
CONTROL = """
import subprocess
if subprocess.run(["/bin/sh", "-c", "exit 4"]).returncode == 4:
    mark("works")
"""


def _can_gain(evidence: Evidence) -> str | None:
    return "programs may still give privileges (NoNewPrivs 0)" if evidence.last("sticky") == "0" else None


def _cannot(evidence: Evidence) -> str | None:
    if evidence.last("sticky") == "1":
        return f"NoNewPrivs 1, bounding set {evidence.last('bounding')}"
    return None


PROGRAM = Program(
    id="E6",
    title="gain privileges through a setuid program",
    source=SOURCE,
    control=CONTROL,
    harm=_can_gain,
    refused=_cannot,
    expect=Expectation(levels={"process": frozenset({"escaped", "prevented"})}),
)
