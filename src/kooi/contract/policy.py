"""What a sandbox may touch: files, network, environment. Fixed by the operator before the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Dataset:
    """A host file or folder shown read-only inside at `/data/NAME`."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy. The default allows nothing: no files, no network, no inherited environment.

    `waive` names clauses that may stay unenforced; `require` names optional layers that must be there
    ("landlock"); `strict` accepts only clauses that the kernel holds.
    """

    datasets: tuple[Dataset, ...] = ()
    network: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    waive: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    strict: bool = False
