"""How much a sandbox and each run in it may use. Units are in the names; `None` means no limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kooi.contract import checks

MIB = 1024 * 1024
MAX_BYTES = 2**50
MAX_SECONDS = 10 * 365 * 86_400
MAX_PROCESSES = 4 * 1024 * 1024  # the kernel's own ceiling for pid_max
MAX_FILES = 2**32
MAX_OPEN_FILES = 2**20  # the kernel's default fs.nr_open: RLIMIT_NOFILE beyond it is refused even to root


@dataclass(frozen=True, slots=True)
class Range:
    """The values one limit accepts besides `None`: `low` to `high`, whole numbers only if `whole`."""

    low: float
    high: int
    unit: str
    whole: bool = True

    def check(self, key: str, value: object) -> float | int | None:
        """Return `value`, as a float where fractions are accepted; raise `InvalidPolicy` naming `key`."""
        if value is None:
            return None
        kinds = (int,) if self.whole else (int, float)
        # Compared before any conversion: an int may be too large for a float, and NaN fails every comparison.
        if isinstance(value, bool) or not isinstance(value, kinds) or not self.low <= value <= self.high:
            number = "a whole number" if self.whole else "a number"
            raise checks.refusal(
                key, value, f"{number} of {self.unit} from {self.low} to {self.high}, or none for no limit"
            )
        return int(value) if self.whole else float(value)


_SECONDS = Range(0.001, MAX_SECONDS, "seconds", whole=False)

# Zero is refused wherever it would end the box at once or, as for the size and inodes of a tmpfs, mean "no limit".
RANGES: Mapping[str, Range] = MappingProxyType(
    {
        "wall_seconds": _SECONDS,
        "cpu_seconds": _SECONDS,
        "memory_bytes": Range(8 * MIB, MAX_BYTES, "bytes"),
        "processes": Range(1, MAX_PROCESSES, "processes"),
        "disk_bytes": Range(1, MAX_BYTES, "bytes"),
        "files": Range(1, MAX_FILES, "files"),
        "output_bytes": Range(0, MAX_BYTES, "bytes"),
        "open_files": Range(8, MAX_OPEN_FILES, "open files"),
        "ttl_seconds": _SECONDS,
        "idle_seconds": _SECONDS,
    }
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits. memory, processes, disk and files bound the whole sandbox; wall, CPU and output each run; open_files
    each process.

    A value out of its range in `RANGES`, or of a wrong type, raises `InvalidPolicy` with `key` naming it.
    """

    wall_seconds: float | None = 30.0
    cpu_seconds: float | None = 30.0
    memory_bytes: int | None = 512 * MIB
    processes: int | None = 64
    disk_bytes: int | None = 256 * MIB
    files: int | None = 10_000
    output_bytes: int | None = 1 * MIB
    open_files: int | None = 256
    ttl_seconds: float | None = None
    idle_seconds: float | None = None

    def __post_init__(self) -> None:
        for name, allowed in RANGES.items():
            object.__setattr__(self, name, allowed.check(f"limits.{name}", getattr(self, name)))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Limits:
        """Return the limits a table names; the others keep their defaults. `"none"` is `None` (TOML has no null).

        Raises `InvalidPolicy` for an unknown key, naming the nearest known one.
        """
        given = checks.table("limits", mapping, RANGES)
        return cls(**{name: None if value == "none" else value for name, value in given.items()})

    def to_mapping(self) -> dict[str, float | int | None]:
        """Return all limits by name; `from_mapping` gives an equal value back."""
        return {name: getattr(self, name) for name in RANGES}

    def within(self, ceiling: Limits) -> Limits:
        """Return the smaller of each pair of limits; `None` is the largest."""
        return Limits(**{name: _smaller(getattr(self, name), getattr(ceiling, name)) for name in RANGES})


def _smaller(a: float | None, b: float | None) -> Any:
    return min(a, b, key=lambda limit: math.inf if limit is None else limit)
