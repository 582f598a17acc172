"""I9: a secret given to the program by its policy must not be on a command line that every user can read."""

import asyncio
import os
import secrets
from dataclasses import replace
from pathlib import Path

from kooi.proof.attacks.model import Evidence, Expectation, Program, World

SECRET = secrets.token_hex(16)
SOURCE = """
name_me()
mark("started", os.environ.get("KOOI_PROOF_SECRET", "")[:4])
time.sleep(1)
"""
CONTROL = """
if P["sandboxed"] and len(os.environ.get("KOOI_PROOF_SECRET", "")) == 32:
    mark("works")
"""


def on_a_command_line(secret: str) -> bool:
    """Whether any process of this host shows `secret` in its command line."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if secret.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                    return True
            except OSError:
                continue
    return False


async def _attack(world: World) -> Evidence:
    running = asyncio.ensure_future(world.run(SOURCE))
    shown = False
    while not running.done():
        shown = shown or await asyncio.to_thread(on_a_command_line, SECRET)
        await asyncio.sleep(0.1)
    evidence = await running
    return replace(evidence, facts={**evidence.facts, "shown": shown})


def _shown(evidence: Evidence) -> str | None:
    return "the secret is on a command line" if evidence.facts.get("shown") else None


def _hidden(evidence: Evidence) -> str | None:
    if evidence.last("started") == SECRET[:4]:
        return "the program has the secret, and no command line of the host shows it"
    return None


PROGRAM = Program(
    id="I9",
    title="secrets on command lines",
    source=SOURCE,
    control=CONTROL,
    harm=_shown,
    refused=_hidden,
    expect=Expectation(clause="environment"),
    attack=_attack,
    env={"KOOI_PROOF_SECRET": SECRET},
)
