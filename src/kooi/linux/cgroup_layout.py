"""Where control groups are mounted and whether this process can make some; found by really making one.

v1 and hybrid: a tree hangs below this process's own group in each hierarchy, so what bounds the process bounds its
boxes too. v2 has the rule that a group with processes of its own cannot give controllers to children; so there a tree
hangs, in order of preference,
  - as root: below `kooi.slice` at the top, if the top can give controllers (no processes of its own, or the real root);
  - below this process's own group, if that is writable and nobody else is in it: this process then moves one down;
  - below a scope of its own that the user's service manager makes and delegates on request (`delegate=True`).
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from kooi.linux.cgroup_files import names, read_all

SLICE = "kooi.slice"
NEEDED = ("memory", "pids")
_V1_FILES = {
    "memory": "memory.limit_in_bytes",
    "pids": "pids.max",
    "cpuacct": "cpuacct.usage",
    "freezer": "freezer.state",
}


class Hierarchy(NamedTuple):
    """One mounted hierarchy: its controllers, and this process's own group in it."""

    version: int
    controllers: tuple[str, ...]
    mount: str
    own: str


class Layout(NamedTuple):
    """What this process can do with control groups.

    `kind` is "v1", "hybrid", "v2" or "none". `parents` maps controller to the directory that trees are made in; under
    v2 its one key is "unified". `available` is false with a `reason` and a `fix`. `move_self`: a tree has to move this
    process one level down first. `delegable`: not available as it is, but `layout(delegate=True)` is worth a try.
    """

    kind: str
    hierarchies: tuple[Hierarchy, ...]
    parents: dict[str, str]
    available: bool
    reason: str | None = None
    fix: str | None = None
    move_self: bool = False
    delegable: bool = False


def hierarchies(proc: str = "/proc/self", of: str | None = None) -> tuple[Hierarchy, ...]:
    """Return the mounted hierarchies that this process's own group, or that of `of` in /proc, can be seen in."""
    own = _own_groups(read_all(f"{of or proc}/cgroup").decode("utf-8", "surrogateescape"))
    found: dict[tuple[str, ...], Hierarchy] = {}
    for line in read_all(f"{proc}/mountinfo").decode("utf-8", "surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        root, mount = (_unescape(text) for text in left.split(" ")[3:5])
        kind, _, options = right.split(" ")[:3]
        if kind not in ("cgroup", "cgroup2"):
            continue
        version = 1 if kind == "cgroup" else 2
        controllers = _v1_controllers(options, own) if version == 1 else ("",)
        path = own.get(controllers[0]) if controllers else None
        inside = None if path is None else _below(path, root)
        if inside is not None and os.path.isdir(mount + inside):
            found[controllers] = Hierarchy(version, controllers if version == 1 else (), mount, mount + inside)
    return tuple(found.values())


def _own_groups(text: str) -> dict[str, str]:
    """Map each controller ("" for v2) to this process's group, from /proc/self/cgroup."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _v1_controllers(options: str, own: dict[str, str]) -> tuple[str, ...]:
    return tuple(sorted(option for option in options.split(",") if option and option in own))


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _below(path: str, root: str) -> str | None:
    """Return `path` relative to the mounted `root`, as "" or "/..."; `None` if it is not below it."""
    if root == "/":
        return "" if path == "/" else path if ".." not in path.split("/") else None
    if path == root:
        return ""
    return path[len(root) :] if path.startswith(root + "/") else None


def v1_layout(found: tuple[Hierarchy, ...]) -> Layout:
    """Return the layout of a host whose memory and pids controllers are v1."""
    unified = next((one.own for one in found if one.version == 2), None)
    kind = "hybrid" if unified else "v1"
    own = {controller: one.own for one in found for controller in one.controllers}
    parents = {key: own[key] for key in NEEDED}
    features: frozenset[str] = frozenset()
    if unified is not None:
        reason, features = try_group(unified)
        if reason is None:
            parents["unified"] = unified
    if "cpu.stat" not in features and "cpuacct" in own:
        parents["cpuacct"] = own["cpuacct"]
    if "cgroup.freeze" not in features and "freezer" in own:
        parents["freezer"] = own["freezer"]
    missing = [
        key
        for key, one in (("cpuacct", "cpu.stat"), ("freezer", "cgroup.freeze"))
        if key not in parents and one not in features
    ]
    if missing:
        return Layout(
            kind,
            found,
            parents,
            False,
            f"no {' and no '.join(missing)} controller is mounted",
            f"mount it: mount -t cgroup -o {missing[0]} cgroup /sys/fs/cgroup/{missing[0]}",
        )
    for key in [key for key in parents if key != "unified"]:
        reason, features = try_group(parents[key])
        if reason is None and _V1_FILES[key] not in features:
            reason = f"groups in {parents[key]} have no {_V1_FILES[key]}"
        if reason is not None:
            return Layout(kind, found, parents, False, reason, _v1_fix())
    return Layout(kind, found, parents, True)


def _v1_fix() -> str:
    if os.geteuid() != 0:
        return (
            "cgroup v1 cannot be delegated to users: run as root, or boot with "
            "systemd.unified_cgroup_hierarchy=1 to have pure cgroup v2"
        )
    return (
        "mount the cgroup file systems writable; in a container: --privileged, or -v /sys/fs/cgroup:/sys/fs/cgroup:rw"
    )


def try_group(parent: str) -> tuple[str | None, frozenset[str]]:
    """Make a group in `parent` and remove it; return why not (or `None`) and the control files it had."""
    path = f"{parent}/kooi-probe-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        os.mkdir(path, 0o755)
    except OSError as error:
        return f"cannot make a control group in {parent}: {error.strerror}", frozenset()
    try:
        return None, names(path)
    finally:
        os.rmdir(path)
