"""What the store keeps about an image besides its tree: found at its making, not part of its digest."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kooi.contract.errors import InvalidPolicy, SetupFailed

HEX = re.compile(r"(?:sha256:)?([0-9a-f]{12,64})")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_TEXTS = ("digest", "python", "version", "machine", "created")


@dataclass(frozen=True)
class Meta:
    """An image: its digest, its interpreter, what it was made from.

    `warm` are the modules that its zygotes import besides the standard library's; `packages` are `name==version`.
    """

    digest: str
    python: str
    version: str
    sys_path: tuple[str, ...]
    machine: str
    created: str
    size_bytes: int
    entries: int
    packages: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()
    definition: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Meta:
        """Return what `encode` wrote; raise `SetupFailed` for anything else."""
        try:
            given = json.loads(data)
            for key in ("sys_path", "packages", "warm"):
                given[key] = tuple(given[key])
            made = cls(**given)
        except (ValueError, TypeError, KeyError) as error:
            raise SetupFailed(f"what the store says about an image cannot be read: {error}", key="image")
        if not all(isinstance(getattr(made, name), str) for name in _TEXTS):
            raise SetupFailed("what the store says about an image has values of the wrong kind", key="image")
        return made


def checked_name(name: str) -> str:
    """Return a name that an image may be given; raise `InvalidPolicy` for any other."""
    if not _NAME.fullmatch(name) or HEX.fullmatch(name):
        accepted = "a-z 0-9 . _ -, at most 64 characters, the first a letter or digit, and not the form of a digest"
        raise InvalidPolicy(f"image: {name!r} given; accepted: {accepted}", key="image")
    return name
