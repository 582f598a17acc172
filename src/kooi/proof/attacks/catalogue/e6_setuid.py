"""E6: gain privileges through a program that carries them."""

from kooi.proof.attacks.model import Evidence, Expectation, Program

SOURCE = """
name_me()
mark("started")
import ctypes
prctl = ctypes.CDLL(None).prctl
mark("sticky", prctl(39, 0, 0, 0, 0))
mark("bounding", sum(1 << bit for bit in range(64) if prctl(23, bit, 0, 0, 0) == 1))
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
