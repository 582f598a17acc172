"""Take a folder away that a daemon worked in: what it left mounted there first."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def remove_unmounted(folder: Path) -> None:
    """Unmount everything below `folder`, the innermost first, and remove it. Docker leaves a network namespace."""
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in reversed([point for point in points if point.startswith(f"{folder}/")]):
        subprocess.run(["umount", "-l", point], check=False)
    shutil.rmtree(folder, ignore_errors=True)
