"""What is left behind: everything of this process that the host can see, before and after.

Helpers that stay warm between boxes are there in both pictures, under the same description, so they cancel out. What
is compared is a bag of descriptions without numbers: a replaced helper is no residue, one more of them is. What a level
keeps in stock goes up and down with use, so a program is held to the most there has been before it; and when a level is
done its helpers are closed too, and then everything has to be as it was before the level was used at all.

Other programs use the machine too, and other sandboxes of the same kind. Ours are told apart by descent, by the
planted environment variable, and by the names that this process's spawners write into their journals.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from collections import Counter
from pathlib import Path

from kooi import settings

SETTLE_SECONDS = 5.0
# A container that is made ahead takes a while on a busy machine, in which nothing else may change.
QUIET_LOOKS = 4
_NUMBERS = re.compile(r"[0-9a-f]{6,}|\d+")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


class Residue:
    """Takes pictures of what is ours; remembers every name of ours that it has seen."""

    def __init__(self, token: str = "") -> None:
        self._token = token
        self._names: set[str] = set()
        self._most: Counter[str] = Counter()

    def picture(self) -> Counter[str]:
        """Return the bag of everything of ours that the host sees now; empty where there is no `/proc`."""
        if not os.path.isdir("/proc/self"):
            return Counter()
        self._names |= _own_names()
        bag: Counter[str] = Counter(descendants(os.getpid()).values())
        for part in (_marked(self._token), _mounts(), self._cgroups(), self._files(), _descriptors(), _ipc()):
            bag.update(part)
        return bag

    async def settled(self) -> Counter[str]:
        """Return the most there has been so far, once the picture has stopped changing: stock is refilled after use."""
        deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
        last = await asyncio.to_thread(self.picture)
        quiet = 0
        while True:
            await asyncio.sleep(0.1)
            now = await asyncio.to_thread(self.picture)
            quiet = quiet + 1 if now == last else 0
            if quiet >= QUIET_LOOKS or asyncio.get_running_loop().time() >= deadline:
                self._most |= now
                return self._most.copy()
            last = now

    def forget(self) -> None:
        """Begin a new level: what the last one kept in stock is closed and no measure any more."""
        self._most.clear()

    async def since(self, before: Counter[str]) -> tuple[str, ...]:
        """Return what is there more often than in `before`, once it has had a moment to go away."""
        deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
        while True:
            more = await asyncio.to_thread(self.picture) - before
            if not more or asyncio.get_running_loop().time() >= deadline:
                return tuple(f"{what} × {n}" if n > 1 else what for what, n in sorted(more.items()))
            await asyncio.sleep(0.05)

    def _is_ours(self, name: str) -> bool:
        return any(own in name for own in self._names)

    def _cgroups(self) -> list[str]:
        found = []
        for directory, _, _ in os.walk(_CGROUP_ROOT):
            if "kooi-" in directory and self._is_ours(directory) and not _is_free_slot(directory):
                found.append(f"cgroup {_shape(directory)}")
        return found

    def _files(self) -> list[str]:
        run_dir = str(settings.load_settings().run_dir)
        found = [f"file {run_dir}/{_shape(name)}" for name in _listed(run_dir) if self._is_ours(name)]
        # The runner gives itself a temporary folder of its own, so everything there is ours.
        temporary = tempfile.gettempdir()
        return found + [f"file {_shape(name)}" for name in _listed(temporary) if "kooi" in temporary]


def _is_free_slot(directory: str) -> bool:
    """Return whether a group is one that a living spawner keeps for its next box: empty, and gone with the spawner."""
    if not os.path.basename(directory).startswith("box-"):
        return False
    try:
        return not Path(directory, "cgroup.procs").read_bytes()
    except OSError:
        return True


def _own_names() -> set[str]:
    """Return the names (`kooi-ID`) of the spawners that work for this process, as their journals tell."""
    run_dir = settings.load_settings().run_dir
    found = set()
    for name in _listed(str(run_dir)):
        if name.startswith("kooi-") and name.endswith(".journal"):
            try:
                header = json.loads((run_dir / name).read_text(errors="replace").split("\n", 1)[0].partition(" ")[2])
                if header["owner"][0] == os.getpid():
                    found.add(name[: -len(".journal")])
            except (OSError, ValueError, LookupError, TypeError):
                continue
    return found


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


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
    found: list[str] = []
    if not token:
        return found
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
