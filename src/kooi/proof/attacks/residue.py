"""What is left behind: everything of this process that the host can see, before and after.

Helpers that stay warm between boxes are there in both pictures, under the same description, so they cancel out. What
is compared is a bag of descriptions without numbers: a replaced helper is no residue, one more of them is.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections import Counter
from pathlib import Path

_NUMBERS = re.compile(r"[0-9a-f]{6,}|\d+")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
SETTLE_SECONDS = 5.0
_RUN_DIRECTORIES = ("/run", "/dev/shm")


def _shape(text: str) -> str:
    return _NUMBERS.sub("N", text)


def _parents() -> dict[int, tuple[int, str, str]]:
    """Return parent, state and name by process id."""
    table = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text(errors="replace")
        except OSError:
            continue
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        rest = stat[stat.rindex(")") + 2 :].split()
        table[int(entry)] = (int(rest[1]), rest[0], name)
    return table


def descendants(root: int) -> dict[int, str]:
    """Return the processes below `root`: id to a description."""
    table = _parents()
    found: dict[int, str] = {}
    frontier = {root}
    while frontier:
        below = {pid for pid, (parent, _, _) in table.items() if parent in frontier and pid not in found}
        for pid in below:
            _, state, name = table[pid]
            found[pid] = f"{'zombie' if state == 'Z' else 'process'} {_shape(name)}"
        frontier = below
    return found


def _marked(token: str) -> list[str]:
    """Return processes that inherited the planted environment variable."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                if token.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    found.append("process with the planted environment")
            except OSError:
                continue
    return found


def _mounts() -> list[str]:
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    return [f"mount {_shape(line.split()[4])}" for line in lines]


def _cgroups() -> list[str]:
    found = []
    for directory, names, _ in os.walk(_CGROUP_ROOT):
        if "kooi" in directory:
            found.append(f"cgroup {_shape(directory)}")
        names.sort()
    return found


def _files() -> list[str]:
    found = []
    for directory in (*_RUN_DIRECTORIES, tempfile.gettempdir()):
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        found += [f"file {directory}/{_shape(n)}" for n in names if "kooi" in n and not n.startswith("kooi-proof-")]
    return found


def _descriptors() -> list[str]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            found.append(f"descriptor {_shape(os.readlink(f'/proc/self/fd/{entry}'))}")
        except OSError:
            continue
    return found


def _ipc() -> list[str]:
    found = []
    for kind in ("shm", "sem", "msg"):
        try:
            found += [f"sysv {kind}"] * (len(Path(f"/proc/sysvipc/{kind}").read_text().splitlines()) - 1)
        except OSError:
            continue
    return found


def picture(token: str = "") -> Counter[str]:
    """Return the bag of everything of ours that the host sees now; empty where there is no `/proc`."""
    if not os.path.isdir("/proc/self"):
        return Counter()
    bag: Counter[str] = Counter(descendants(os.getpid()).values())
    for part in (_marked(token) if token else [], _mounts(), _cgroups(), _files(), _descriptors(), _ipc()):
        bag.update(part)
    return bag


async def left_since(before: Counter[str], token: str = "") -> tuple[str, ...]:
    """Return what is there more often than in `before`, once it has had a moment to go away."""
    deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while True:
        more = await asyncio.to_thread(picture, token) - before
        if not more or asyncio.get_running_loop().time() >= deadline:
            return tuple(f"{what} × {n}" if n > 1 else what for what, n in sorted(more.items()))
        await asyncio.sleep(0.05)
