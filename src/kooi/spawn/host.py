"""The host's facts, gathered once per process, and why something is not there."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from kooi.contract.backend import HostFacts
from kooi.linux import facts


@functools.lru_cache(maxsize=1)
def _gathered() -> tuple[HostFacts, Mapping[str, str]]:
    found = facts.report()
    return HostFacts(**found["host"]), found["reasons"]


def host_facts() -> HostFacts:
    """Return what this host offers to this process."""
    return _gathered()[0]


def reasons() -> Mapping[str, str]:
    """Return, by field of `HostFacts`, why it is not there and what would bring it."""
    return _gathered()[1]
