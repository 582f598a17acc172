"""Control groups on v1, hybrid and v2 hosts: what one box may use, what it used, and its end.

`layout()` says what this host offers. A spawner makes one `Tree`, named after its journal, and in it one `Group` for
each box: limits before the first process, `attach` off the critical path, counters while it lives, `kill`, `remove`.
All directories and files belong to the user of the spawner, never to a box; boxes do not see the file systems at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

from kooi.contract.errors import KooiError, LevelUnavailable, SetupFailed
from kooi.linux import cgroup_v2
from kooi.linux.cgroup_files import PREFIX, Counters, check_name, names
from kooi.linux.cgroup_group import MODE, Group
from kooi.linux.cgroup_kill import kill_members, remove_groups
from kooi.linux.cgroup_layout import NEEDED, SLICE, Hierarchy, Layout, hierarchies, v1_layout
from kooi.linux.cgroup_v1 import GroupV1
from kooi.linux.cgroup_v2 import GroupV2

__all__ = [
    "Counters",
    "Group",
    "Hierarchy",
    "Layout",
    "Reader",
    "Tree",
    "destroy",
    "kill_members",
    "layout",
    "planned",
    "remove_groups",
]


def layout(*, delegate: bool = False, for_child: bool = False) -> Layout:
    """Return what this host offers to this process, found by making and removing a group.

    With `delegate` an ordinary user's process that cannot make groups is moved into a scope of its own by the user's
    service manager, if there is one. With `for_child` the answer is the one that a child, in the same groups as this
    process and beside it, would get. Never raises for a host that offers nothing: see `Layout.available`.
    """
    found = hierarchies()
    v1 = {controller for one in found if one.version == 1 for controller in one.controllers}
    if all(key in v1 for key in NEEDED):
        return v1_layout(found)
    return cgroup_v2.v2_layout(found, delegate=delegate, for_child=for_child)


def planned(where: Layout, name: str) -> dict[str, str]:
    """Return the directories that `Tree.create(where, name)` will make, for the crash journal.

    By controller; "self" is the group that this process has to move to, where it does.
    """
    paths = _paths(where, name)
    step = cgroup_v2.step(where, name)
    return paths if step is None else {**paths, "self": step}


def _paths(where: Layout, name: str) -> dict[str, str]:
    return {key: f"{parent}/{name}" for key, parent in where.parents.items()}


def destroy(paths: Mapping[str, str], seconds: float = 5.0) -> None:
    """Kill everything in the groups at `paths` (controller to path) and below, and remove them; absent ones are fine.

    Works on paths alone: it also ends the tree of a spawner that died. Raises `KooiError` for what does not die.
    """
    if not kill_members(paths, seconds):
        raise KooiError(f"processes in the control groups {', '.join(paths.values())} do not die")
    remove_groups(paths.values())
    for parent in {os.path.dirname(path) for path in paths.values()}:
        if os.path.basename(parent) == SLICE:
            with suppress(OSError):  # other spawners' trees are in it
                os.rmdir(parent)


class Tree:
    """The groups of one spawner: `NAME/BOX` in each hierarchy. Made by `Tree.create`."""

    def __init__(self, where: Layout, name: str) -> None:
        self.name = check_name(name)
        if not name.startswith(PREFIX):
            raise SetupFailed(f"a tree's name starts with {PREFIX!r}, not {name!r}")
        self._where = where
        self.paths = _paths(where, name)
        self._fds: dict[str, int] = {}
        self.features: frozenset[str] = frozenset()

    @classmethod
    def create(cls, where: Layout, name: str) -> Tree:
        """Make the tree `name` (`kooi-...`). Raises `LevelUnavailable` where `where` is not available."""
        if not where.available:
            raise LevelUnavailable(f"control groups are not available: {where.reason}", fix=where.fix)
        tree = cls(where, name)
        made: list[str] = []
        try:
            if where.kind == "v2":
                cgroup_v2.prepare(where, name)
            for key, path in tree.paths.items():
                os.mkdir(path, MODE)
                made.append(path)
                tree._fds[key] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if where.kind == "v2":
                cgroup_v2.enable(tree.paths["unified"])
            tree.features = frozenset().union(*(names(path) for path in made))
        except BaseException as error:
            tree.close()
            remove_groups(made)
            cgroup_v2.restore(where, name)
            if isinstance(error, OSError):
                raise SetupFailed(f"cannot make the control groups of {name}: {error}") from error
            raise
        return tree

    def group(self, name: str) -> Group:
        """Make the group `name` in all hierarchies, without limits and empty. Undone on failure."""
        kind = GroupV2 if self._where.kind == "v2" else GroupV1
        return kind(name, self._fds, self.paths, self.features)

    def remove(self) -> None:
        """Kill everything in the tree and remove it. Safe twice. Raises `KooiError` if something does not die."""
        self.close()
        destroy(self.paths)
        cgroup_v2.restore(self._where, self.name)

    def close(self) -> None:
        """Close the tree's descriptors and leave the groups."""
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)


class Reader:
    """Another process's tree, to read the counters of its groups. Needs no right to change them."""

    def __init__(self, kind: str, paths: Mapping[str, str], features: Iterable[str]) -> None:
        self._kind = GroupV2 if kind == "v2" else GroupV1
        self._paths = dict(paths)
        self._features = frozenset(features)
        self._fds = {key: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for key, path in paths.items()}

    def group(self, name: str) -> Group:
        """Return the existing group `name`; only its reading methods are of use."""
        return self._kind(name, self._fds, self._paths, self._features, make=False)

    def close(self) -> None:
        """Close the tree's directories."""
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)
