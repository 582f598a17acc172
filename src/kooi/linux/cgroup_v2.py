"""cgroup v2: one directory holds everything. Where a tree may hang, how it gets its controllers, and a box's group.

A group with processes of its own cannot give memory and pids to its children (only the real root can). `prepare` does
what follows from that: it enables the controllers above the tree, and where this process itself stands in the way it
moves it one level down, to `NAME-self`; `restore` undoes that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from kooi.contract.errors import KooiError
from kooi.linux.cgroup_files import PREFIX, Counters, check_limit, read_all, read_pids, write
from kooi.linux.cgroup_group import MODE, Group
from kooi.linux.cgroup_layout import NEEDED, SLICE, Hierarchy, Layout, hierarchies, try_group


class GroupV2(Group):
    """A group in the v2 tree, with the memory and pids controllers enabled for it by its tree."""

    _exact = False

    def set_limits(self, memory_bytes: int | None, processes: int | None) -> None:
        memory, tasks = check_limit("memory_bytes", memory_bytes), check_limit("processes", processes)
        if "memory.swap.max" in self._features:
            self._write("unified", "memory.swap.max", None if memory is None else 0, b"max")
        self._write("unified", "memory.max", memory, b"max")
        self._write("unified", "pids.max", tasks, b"max")

    def usage(self) -> Counters:
        return Counters(
            self.cpu_ns(),
            self._memory_peak(),
            self._value("unified", "pids.current"),
            self._value("unified", "pids.peak") if "pids.peak" in self._features else None,
        )

    def cpu_ns(self) -> int:
        return self._value("unified", "cpu.stat", "usage_usec") * 1000

    def memory_now(self) -> int:
        return self._value("unified", "memory.current")

    def oom_kills(self) -> int:
        return self._value("unified", "memory.events", "oom_kill")

    def pids_hits(self) -> int:
        return self._value("unified", "pids.events", "max")

    def reset_peaks(self) -> bool:
        if "memory.peak" not in self._features:
            return False
        # A reset holds for later readings through the same descriptor only (Linux 6.12), so that one is kept; everyone
        # else still sees the old peak.
        old = self._fds.pop("memory.peak", None)
        if old is not None:
            os.close(old)
        self.peak_base = self._value("unified", "memory.peak")
        try:
            fd = os.open(f"{self.name}/memory.peak", os.O_RDWR | os.O_CLOEXEC, dir_fd=self._parents["unified"])
        except OSError:
            return False
        try:
            os.write(fd, b"reset")
        except OSError:
            os.close(fd)
            return False
        os.close(self._fds["memory.peak"])
        self._fds["memory.peak"] = fd
        self._exact = True
        return True

    def _memory_peak(self) -> int | None:
        if "memory.peak" not in self._features:
            return None
        peak = self._value("unified", "memory.peak")
        return peak if self._exact or peak > self.peak_base else None


def v2_layout(
    found: tuple[Hierarchy, ...], *, delegate: bool = False, user_bus: str | None = None, for_child: bool = False
) -> Layout:
    """Return the layout of a host without v1 memory and pids; see `layout`."""
    one = next((one for one in found if one.version == 2), None)
    if one is None:
        fix = "mount it: mount -t cgroup2 none /sys/fs/cgroup; in a container: --cgroupns=private and a writable mount"
        return Layout("none", found, {}, False, "no control group file system with memory and pids is mounted", fix)
    # A process that already stepped down for a tree is best off beside that tree.
    own = os.path.dirname(one.own) if _is_step(one.own) else one.own
    tried = [_candidate(own, found, for_child=for_child)]
    if os.geteuid() == 0:
        tried.insert(0, _candidate(one.mount, found, top=True, for_child=for_child))
    for candidate in tried:
        if candidate.available:
            return candidate
    bus = user_bus or f"/run/user/{os.geteuid()}/bus"
    delegable = os.geteuid() != 0 and shutil.which("busctl") is not None and os.path.exists(bus)
    if not (delegable and delegate):
        return tried[-1]._replace(delegable=delegable)
    failure = _move_to_scope(bus)
    if failure is not None:
        return tried[-1]._replace(reason=f"{tried[-1].reason}; the user's service manager did not help: {failure}")
    return v2_layout(hierarchies())


def _is_step(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith(PREFIX) and name.endswith("-self")


def step(where: Layout, name: str) -> str | None:
    """Return the group that this process moves to for the tree `name`; `None` if it stays where it is."""
    return f"{_giver(where.parents['unified'])}/{name}-self" if where.move_self else None


def _giver(parent: str) -> str:
    """Return the group that has to give controllers to the trees in `parent` and may hold this process."""
    return os.path.dirname(parent) if os.path.basename(parent) == SLICE else parent


def _candidate(path: str, found: tuple[Hierarchy, ...], top: bool = False, for_child: bool = False) -> Layout:
    """Return the layout with trees in the group `path` (`top`: below `kooi.slice` in it)."""
    parents = {"unified": f"{path}/{SLICE}" if top else path}
    reason, move_self = _obstacle(path, for_child)
    if reason is None:
        reason, _ = try_group(path)
    return Layout("v2", found, parents, reason is None, reason, None if reason is None else _fix(path), move_self)


def _obstacle(path: str, for_child: bool = False) -> tuple[str | None, bool]:
    """Return why children of the group `path` cannot have controllers, or `None` and whether we must step down."""
    missing = sorted(set(NEEDED) - set(_words(path, "cgroup.controllers")))
    if missing:
        return f"the controllers {', '.join(missing)} are not available in {path}", False
    if set(NEEDED) <= set(_words(path, "cgroup.subtree_control")):
        return None, False
    for file in ("cgroup.subtree_control", "cgroup.procs"):
        if not os.access(f"{path}/{file}", os.W_OK):
            return f"{path}/{file} is not writable", False
    if not os.path.exists(f"{path}/cgroup.type"):
        return None, False  # only the real root has none
    inside = set(read_pids(f"{path}"))
    others = len(inside if for_child else inside - {os.getpid()})
    if others:
        return f"{others} other processes are in {path}, so its children cannot have controllers", False
    return None, bool(inside)


def _fix(path: str) -> str:
    if os.geteuid() != 0:
        return (
            "start it in a scope of its own: systemd-run --user --scope -p Delegate=yes COMMAND; if that gives no "
            "memory controller: systemctl edit user@.service, [Service] Delegate=cpu memory pids"
        )
    return (
        f"move the processes of {path} into a child group (mkdir {path}/init; every pid of {path}/cgroup.procs "
        f"into {path}/init/cgroup.procs), or mount the cgroup file system writable"
    )


def _words(path: str, file: str) -> list[str]:
    return read_all(f"{path}/{file}").decode("ascii").split()


def enable(path: str) -> None:
    """Give the children of the group `path` the controllers that are needed, if they lack one."""
    if not set(NEEDED) <= set(_words(path, "cgroup.subtree_control")):
        write(f"{path}/cgroup.subtree_control", b" ".join(b"+" + key.encode() for key in NEEDED))


def prepare(where: Layout, name: str) -> None:
    """Make the way for the tree `name`: enable controllers above it, step down where needed."""
    parent, leaf = where.parents["unified"], step(where, name)
    if leaf is not None:
        os.mkdir(leaf, MODE)
        write(f"{leaf}/cgroup.procs", b"0")
    enable(_giver(parent))
    if parent != _giver(parent):
        os.makedirs(parent, MODE, exist_ok=True)
        enable(parent)


def restore(where: Layout, name: str) -> None:
    """Undo `prepare` as far as nobody else needs it: remove an empty `kooi.slice`, step up again."""
    if where.kind != "v2":
        return
    parent, leaf = where.parents["unified"], step(where, name)
    try:
        if parent != _giver(parent) and os.path.isdir(parent):
            os.rmdir(parent)
        if leaf is not None and os.path.isdir(leaf):
            write(f"{_giver(parent)}/cgroup.subtree_control", b" ".join(b"-" + key.encode() for key in NEEDED))
            write(f"{_giver(parent)}/cgroup.procs", b"0")
            os.rmdir(leaf)
    except (OSError, KooiError):
        pass  # another spawner lives there; the last one out removes it


def _move_to_scope(bus: str) -> str | None:
    """Have the user's service manager move this process into a new delegated scope; return why it did not."""
    pid = os.getpid()
    unit = f"kooi-{pid}-{os.urandom(4).hex()}.scope"
    command = ["busctl", f"--address=unix:path={bus}", "--timeout=5", "call", "org.freedesktop.systemd1",
               "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "StartTransientUnit",
               "ssa(sv)a(sa(sv))", unit, "fail", "4", "PIDs", "au", "1", str(pid), "Delegate", "b", "true",
               "Description", "s", "kooi spawner", "CollectMode", "s", "inactive-or-failed", "0"]  # fmt: skip
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        return done.stderr.decode("utf-8", "replace").strip() or f"busctl ended with {done.returncode}"
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
        if read_all("/proc/self/cgroup").endswith(b"/" + unit.encode() + b"\n"):
            return None
        time.sleep(0.005)
    return f"{unit} was made but this process was not moved into it"
