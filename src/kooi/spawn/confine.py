"""From blank to box: the steps of a plan, one verb each, run inside the blank in the order the plan gives.

The verbs hold in security order, in three parts: ahead of any request the file view and what no spec changes
(`CellPlan.prepare`); for the box its quota, limits and capabilities (`BoxPlan.steps`); last no_new_privs, Landlock and
the system call filter (`CellPlan.seal`). After `capabilities` no mount is possible any more; after `seccomp` nothing
here is.
Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kooi.linux import caps, landlock, mounts, network, paths, process, rlimits, seccomp
from kooi.spawn import warden

_STAGE = "/run/stage"
_EMPTY = "/run/empty"
_FLAGS = mounts.NOSUID | mounts.NODEV


class StepFailed(Exception):
    """A step of the plan failed; carries its name for the report."""

    def __init__(self, step: str, error: BaseException) -> None:
        super().__init__("%s: %s: %s" % (step, type(error).__name__, error))


class Confinement:
    """The verbs, and what one of them leaves for a later one."""

    def __init__(self) -> None:
        #: another process of this box, whose limits are set with ours; 0 for none
        self.companion = 0
        #: the box's private folder and the line to its warden, where it has these
        self.folder = ""
        self.line = -1
        self._ruleset: landlock.Ruleset | None = None
        self._domains: dict[str, landlock.Ruleset] = {}
        self._verbs: dict[str, Callable[..., None]] = {
            "workspace": workspace,
            "quota": quota,
            "proc": proc,
            "terminals": terminals,
            "loopback": network.loopback_up,
            "bound_tcp": network.bound_tcp,
            "bounding_set": caps.drop_bounding,
            "private_home": private_home,
            "home_quota": home_quota,
            "datasets": datasets,
            "rlimits": self._rlimits,
            "capabilities": capabilities,
            "no_new_privileges": process.no_new_privileges,
            "landlock_rules": self._landlock_rules,
            "landlock_scope": landlock_scope,
            "landlock": self._landlock,
            "seccomp": system_calls,
            "agent_calls": agent_calls,
            "zygote_calls": zygote_calls,
            "domain_rules": self._domain_rules,
            "enter_domain": self._enter_domain,
            "warden": self._warden,
            "oom_first": oom_first,
        }

    def carry_out(self, steps: Sequence[Sequence[Any]]) -> None:
        """Run every step; raise `StepFailed` at the first that fails, and run none after it."""
        for name, arguments in steps:
            try:
                self._verbs[name](**arguments)
            except BaseException as error:
                raise StepFailed(name, error) from error

    def _rlimits(self, **values: "int | None") -> None:
        """Set per-process limits, hard and soft; without any, those that every box gets."""
        table = rlimits.table(values or rlimits.BASE)
        rlimits.apply(table)
        if self.companion:
            # One that has ended already is replaced by one that inherits ours.
            with contextlib.suppress(ProcessLookupError):
                rlimits.apply_to(self.companion, table)

    def _landlock_rules(self, clauses: Sequence[str], allow: Sequence[Sequence[Any]]) -> None:
        """Collect what is allowed while opening paths is still cheap; nothing is restricted yet."""
        self._ruleset = landlock.Ruleset(clauses)
        for path, access in allow:
            self._ruleset.allow(path, *access)

    def _domain_rules(
        self,
        name: str,
        clauses: Sequence[str],
        allow: Sequence[Sequence[Any]],
        own: Sequence[str],
        datasets: Sequence[str],
    ) -> None:
        """Collect the rules of the domain `name`: what `allow` lists, and the places `own` of the private folder.

        `datasets` can be read, and the place with the links to them; none is reached by a link itself.
        """
        ruleset = self._domains[name] = landlock.Ruleset(clauses)
        for path, access in allow:
            ruleset.allow(path, *access)
        for place in own:
            ruleset.allow(self.folder + "/" + place, "read", "execute", "write")
        for source in datasets:
            fd = paths.open_absolute_no_symlinks(source)
            try:
                ruleset.allow(fd, "read")
            finally:
                os.close(fd)
        if datasets and "home" in own:
            ruleset.allow(self.folder + "/data", "read")

    def _enter_domain(self, name: str, keep: bool = False) -> None:
        """Enter a domain for good; `keep` its rules for processes that come from this one."""
        self._domains[name].restrict_self()
        if not keep:
            self._domains.pop(name).close()

    def _warden(self, scoped: bool) -> None:
        """Go on in a new process, whose end and whose descendants' end is the end of this one."""
        warden.stay_behind(self.line, scoped)

    def _landlock(self) -> None:
        """Restrict this process and all that come from it to the rules collected before."""
        if self._ruleset is None:
            raise RuntimeError("no rules were collected")
        self._ruleset.restrict_self()
        self._ruleset.close()


def workspace(owner: int) -> None:
    """Mount one tmpfs and show it as home, /tmp and /dev/shm, so that one quota holds for all three.

    It stays mounted where it was staged, behind a mode that only the agent passes: taking it away would wait for the
    kernel (umount(2) waits for a grace period).
    """
    mounts.mount("kooi", _STAGE, "tmpfs", _FLAGS, "mode=0700,size=4k,nr_inodes=8")
    for name, mode, target in (("home", 0o700, "/home/user"), ("tmp", 0o1777, "/tmp"), ("shm", 0o1777, "/dev/shm")):
        path = _STAGE + "/" + name
        os.mkdir(path)
        os.chmod(path, mode)
        if name == "home":
            os.chown(path, owner, owner)
        mounts.mount(path, target, None, mounts.BIND)


def quota(size_bytes: int | None, files: int | None) -> None:
    """Give the workspace its size and its number of files; None means no limit but the memory's."""
    # The kernel counts the root and our three directories too; 0 means no limit to it.
    inodes = 0 if files is None else files + 4
    size = 0 if size_bytes is None else size_bytes
    mounts.mount("kooi", _STAGE, None, mounts.REMOUNT | _FLAGS, "size=%d,nr_inodes=%d" % (size, inodes))


def proc(hidden: Sequence[str], read_only: Sequence[str]) -> None:
    """Mount a /proc of this box's own processes, mask what is the host's, and make kernel settings read-only."""
    flags = _FLAGS | mounts.NOEXEC
    # hidepid=4: the agent stays invisible to the code even if it runs with the same gid (2 does not give that).
    mounts.mount("proc", "/proc", "proc", flags, "hidepid=4")
    for name in hidden:
        path = "/proc/" + name
        if os.path.exists(path):
            mounts.mount(_EMPTY if os.path.isdir(path) else "/dev/null", path, None, mounts.BIND)
    for name in read_only:
        mounts.mount("/proc/" + name, "/proc/" + name, None, mounts.BIND)
        mounts.remount_read_only("/proc/" + name, flags)


def terminals() -> None:
    """Mount a private set of pseudo-terminals."""
    mounts.mount("devpts", "/dev/pts", "devpts", mounts.NOSUID | mounts.NOEXEC, "newinstance,ptmxmode=0666,mode=0620")


def private_home(path: str) -> None:
    """Mount a tmpfs over `path`, seen by this box alone; it gets its size later."""
    mounts.make_private()
    mounts.mount("kooi", path, "tmpfs", _FLAGS, "mode=0700,size=4k,nr_inodes=2")


def home_quota(path: str, size_bytes: int | None, files: int | None) -> None:
    """Give the private home its size and its number of files, and go there."""
    inodes = 0 if files is None else files + 1
    mounts.mount("kooi", path, None, mounts.REMOUNT | _FLAGS, "size=%d,nr_inodes=%d" % (size_bytes or 0, inodes))
    os.chdir(path)


def datasets(path: str, sources: Mapping[str, str]) -> None:
    """Show datasets read-only in `path`, where there is no root of its own to show them in.

    Mounts, not links: what is there on the host could be written through a link. They end with this namespace, so
    nothing that removes the folder can reach the host's files.
    """
    if sources:
        os.mkdir(path)
    for name, source in sources.items():
        _show_read_only(source, path + "/" + name)


def _show_read_only(source: str, target: str) -> None:
    tree = mounts.clone_tree(source)
    try:
        mounts.set_attributes(tree, mounts.RDONLY | mounts.NOEXEC | _FLAGS)
        if os.path.isdir(source):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o400))
        mounts.attach(tree, target)
    finally:
        os.close(tree)


def landlock_scope(clauses: Sequence[str]) -> None:
    """Draw the edge that no signal and no abstract socket crosses; it handles no files, so mounting goes on."""
    with landlock.Ruleset(clauses) as ruleset:
        ruleset.restrict_self()


def capabilities(keep: Sequence[str]) -> None:
    """Give up every capability of this user namespace but `keep`."""
    kept = caps.mask(keep)
    caps.set_caps(permitted=kept, effective=kept)


def system_calls(restrictions: Sequence[str]) -> None:
    """Install the system call filter, narrowed by `restrictions`."""
    seccomp.install(seccomp.program(*restrictions))


def agent_calls(restrictions: Sequence[str]) -> None:
    """Install the filter of an agent that confines its children further than itself."""
    seccomp.install(seccomp.agent_program(*restrictions))


def zygote_calls() -> None:
    """Install the filter of a zygote that has no cell around it."""
    seccomp.install(seccomp.zygote_program(in_cell=False))


def oom_first() -> None:
    """Let the kernel kill this process before its agent; where it refuses, the other limits decide alone."""
    # Whoever is not dumpable does not own its files in /proc.
    process.set_dumpable(True)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(b"1000")
    process.set_dumpable(False)
