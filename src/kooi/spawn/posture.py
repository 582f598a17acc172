"""A box read from outside: its agent and the code's processes, against this process, as the contract's types."""

from __future__ import annotations

import os

from kooi.contract.backend import Posture, ProcessPosture
from kooi.linux import landlock, posture
from kooi.spawn.watchdog import tree


def posture_of(agent: int) -> Posture:
    """Return the posture of the box whose first process is `agent`. Raises `OSError` when it is gone."""
    found = [posture.collect(agent, "agent", os.getpid())]
    for pid in tree(agent)[1:]:
        try:
            found.append(posture.collect(pid, "code", os.getpid()))
        except (FileNotFoundError, ProcessLookupError):
            # It ended between the listing and the look.
            continue
    mounts = tuple(str(mount) for mount in posture.mounts(agent))
    return Posture(tuple(map(_process, found)), mounts, landlock.abi())


def _process(facts: posture.ProcessFacts) -> ProcessPosture:
    return ProcessPosture(**facts._asdict())
