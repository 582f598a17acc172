"""The OCI runtimes of this host: where they are, which version, and whether that has known ways out.

Distributions carry fixes back without raising the number, so a low version is reported and not refused: what decides is
the posture of a container that was really started.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from kooi.contract.errors import LevelUnavailable

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RUNTIMES = ("crun", "runc")
_SECONDS = 10
_VERSION = re.compile(r"version:? v?([0-9][^\s]*)")
_NUMBER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
Version = tuple[int, int, int]

# For each line of releases the first that is fixed; a line that is not here is fixed from the next one on.
_BREAKOUTS: dict[str, tuple[tuple[str, tuple[Version, ...]], ...]] = {
    "runc": (
        ("CVE-2024-21626", ((1, 1, 12),)),
        ("CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", ((1, 2, 8), (1, 3, 3))),
        ("CVE-2026-41579", ((1, 3, 6), (1, 4, 3))),
    ),
    "crun": (("CVE-2025-24965", ((1, 20, 0),)),),
}


@dataclass(frozen=True)
class Runtime:
    """A runtime that is installed: its name, its program, its version, and the breakouts known for that number."""

    name: str
    program: str
    version: str
    breakouts: tuple[str, ...]

    def argv(self, bundle: str) -> list[str]:
        """Return the command line that starts a bundle and ends; a name comes last. All it keeps is in the bundle."""
        groups = ["--cgroup-manager=disabled"] if self.name == "crun" else []
        return [
            self.program, *groups, "--root", f"{bundle}/state", "run", "--bundle", bundle, "--detach",
            "--pid-file", f"{bundle}/pid", "--preserve-fds", "2",
        ]  # fmt: skip

    @property
    def groups(self) -> tuple[str, ...]:
        """Control group hierarchies that it insists on managing, where the host has them."""
        return ("devices",) if self.name == "runc" else ()


def find(name: str) -> Runtime:
    """Return the runtime `name`; raise `LevelUnavailable` where it is not installed or does not tell its version."""
    program = shutil.which(name, path=PATH)
    if program is None:
        raise LevelUnavailable(f"{name} is not on this host", key="level", fix=f"as root: apt-get install {name}")
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_SECONDS, env={})
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LevelUnavailable(f"{program} does not run: {error}", key="level", fix=f"install {name} anew")
    match = _VERSION.search(done.stdout)
    version = None if match is None else number(match[1])
    if match is None or version is None:
        raise LevelUnavailable(f"{program} does not tell its version", key="level", fix=f"install {name} anew")
    return Runtime(name, program, match[1], breakouts(name, version))


def number(text: str) -> Version | None:
    """Return the number that a version begins with, None where it begins with none."""
    match = _NUMBER.match(text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))


def breakouts(name: str, version: Version) -> tuple[str, ...]:
    """Return the known breakouts that a version has by its number alone."""
    return tuple(said for said, fixed in _BREAKOUTS.get(name, ()) if not _is_fixed(version, fixed))


def _is_fixed(version: Version, fixed: tuple[Version, ...]) -> bool:
    for each in fixed:
        if version[:2] == each[:2]:
            return version >= each
    return version > fixed[-1]
