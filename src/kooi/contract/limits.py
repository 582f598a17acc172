"""How much a sandbox and each run in it may use. Units are in the names; `None` means no limit."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits. memory, processes, disk, files and open_files bound the whole sandbox; wall, CPU and output each run."""

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
