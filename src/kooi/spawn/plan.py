"""The plan: a spec and the host's facts, compiled into ordered steps. Pure; `explain` prints it.

A plan has two halves. The *cell* half says how to build the cell and its zygote; it is the same for every sandbox with
the same image, preload list and datasets, so cells are shared by its key. It also has the steps that its blanks take
ahead of any request (`prepare`) and last (`seal`). The *box* half is the list of steps in between, that turn a blank
into a box. Each step is a verb of `spawn/confine.py` with its arguments; together they are in security order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kooi.contract.backend import HostFacts
from kooi.contract.spec import Spec
from kooi.images.host import GUEST_ROOT, HOME, View

CODE_ID = 1000
# The agent, the file helper and the run's own supervision are not the code's: they come on top of its process limit.
AGENT_PROCESSES = 2

#: for the process that forks interpreters
SINGLE_THREADED = {
    # It must have one thread, and a pool of threads does not live through a fork.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # The filter refuses rseq. A C library that has it in this process would insist on it in every later thread.
    "GLIBC_TUNABLES": "glibc.pthread.rseq=0",
}
_CELL_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": HOME,
    **SINGLE_THREADED,
}

_JAIL_NAMESPACES = ("user", "pid", "net", "ipc", "uts", "mount")
_PLAIN_NAMESPACES = ("user", "pid", "net", "mount")

# Unreachable for the code's ids already; masked as a second layer.
_PROC_HIDDEN = (
    "kcore",
    "keys",
    "key-users",
    "kallsyms",
    "modules",
    "interrupts",
    "timer_list",
    "sysrq-trigger",
    "acpi",
    "scsi",
)
_LANDLOCK_CLAUSES = (("files", 1), ("rename", 2), ("truncate", 3), ("device_ioctl", 5))
_SCOPE_ABI = 6
_SCOPES = ("abstract_unix", "signal")

Step = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class CellPlan:
    """How to build one cell, start its zygote and prepare its blanks.

    `ids` is root (a leased range), subuid, single, leased (one id for all of it) or none. `guest` is what every agent
    is told: the fields of the guest's `Setup` that are plain data. `prepare` are the steps that no spec changes; a
    blank takes them ahead of any request. `seal` are the last steps, of the first interpreter ahead and of its agent
    once the box's own are done. Without namespaces `enclose` are the zygote's own steps, and `code` are those that
    every process of the code takes.
    """

    isolated: bool
    ids: str
    view: View
    datasets: tuple[tuple[str, str], ...]
    namespaces: tuple[str, ...]
    guest: Mapping[str, Any]
    restrictions: tuple[str, ...]
    prepare: tuple[Step, ...]
    seal: tuple[Step, ...]
    enclose: tuple[Step, ...] = ()
    code: tuple[Step, ...] = ()

    @property
    def key(self) -> str:
        """Return the digest under which cells are shared."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def encode(self, source: str) -> bytes:
        """Return what the spawner is sent: what builds the cell, and what its zygote is told then.

        `source` is the folder on the host that holds the package `kooi`.
        """
        view = self.view
        env = [*_CELL_ENV.items(), *view.env]
        # What builds an isolated cell is the host's interpreter, for which paths of the view mean nothing.
        outside = list(_CELL_ENV.items()) if self.isolated else env
        zygote = {
            "python": view.python,
            "sys_path": view.sys_path,
            "warm": view.warm,
            "restrictions": self.restrictions,
            "namespaces": self.namespaces,
            "ids": self.ids,
            "code_id": CODE_ID,
            "prepare": self.prepare,
            "seal": self.seal,
            "enclose": self.enclose,
            "code": self.code,
            "uid": None,
            "guest": self.guest,
        }
        build = {
            "ids": self.ids,
            "id_base": 0,
            "id_count": 1,
            "binds": [*view.binds, (source + "/kooi", GUEST_ROOT + "/kooi")],
            "datasets": self.datasets,
            "links": view.links,
            "texts": view.texts,
            "python": view.python,
            "guest_root": GUEST_ROOT,
            "env": env,
        }
        message = {"isolated": self.isolated, "ids": self.ids, "source": source, "env": outside}
        return json.dumps({**message, "build": build, "zygote": zygote}).encode()


@dataclass(frozen=True)
class BoxPlan:
    """How a blank becomes a box: ordered steps, whether interpreters are new ones, its control group's limits.

    `disk_bytes` and `files` are for a private folder that no mount bounds.
    """

    steps: tuple[Step, ...]
    fresh: bool
    home: str
    memory_bytes: int | None
    processes: int | None
    disk_bytes: int | None = None
    files: int | None = None

    def bounds(self) -> dict[str, Any]:
        """Return what the spawner is told of it."""
        return {
            "memory": self.memory_bytes,
            "processes": self.processes,
            "disk": self.disk_bytes,
            "files": self.files,
            "fresh": self.fresh,
        }

    def encode(self) -> bytes:
        """Return what a blank is sent."""
        return json.dumps({"steps": self.steps, "fresh": self.fresh}, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Plan:
    """The two halves."""

    cell: CellPlan
    box: BoxPlan


def id_mode(facts: HostFacts) -> str:
    """Return how boxes get their ids on this host: root, subuid or single."""
    if facts.euid == 0:
        return "root"
    return "subuid" if facts.newuidmap and facts.subuid_count >= 2 else "single"


def plan_jail(spec: Spec, facts: HostFacts, view: View) -> Plan:
    """Compile a spec for the level `jail`."""
    ids = id_mode(facts)
    # Without a control group nothing outside can count a memfd. A folder of the host may hold sockets of its services,
    # now or later, and a read-only mount does not keep anybody from connecting to them.
    restrictions = (() if facts.cgroup_writable else ("memfd",)) + (("unix",) if spec.policy.datasets else ())
    cell = CellPlan(
        isolated=True,
        ids=ids,
        view=view,
        datasets=tuple((d.name, d.source) for d in spec.policy.datasets),
        namespaces=_JAIL_NAMESPACES,
        guest=agent_setup(view, HOME, "/data", CODE_ID if ids != "single" else None),
        restrictions=restrictions,
        prepare=_jail_prepare(facts),
        seal=_jail_seal(facts, restrictions),
    )
    return Plan(cell, _jail_box(spec, facts, ids))


def _jail_seal(facts: HostFacts, restrictions: tuple[str, ...]) -> tuple[Step, ...]:
    landlock: tuple[Step, ...] = (("landlock", {}),) if facts.landlock_abi >= 1 else ()
    return (("no_new_privileges", {}), *landlock, ("seccomp", {"restrictions": restrictions}))


def _jail_prepare(facts: HostFacts) -> tuple[Step, ...]:
    steps: list[Step] = [
        # Before /proc/sys becomes read-only.
        *(() if facts.cgroup_writable else (("bound_tcp", {}),)),
        ("workspace", {"owner": CODE_ID}),
        ("proc", {"hidden": _PROC_HIDDEN, "read_only": ("sys",)}),
        ("terminals", {}),
        ("loopback", {}),
        ("bounding_set", {}),
        ("rlimits", {}),
    ]
    if facts.landlock_abi >= 1:
        steps.append(("landlock_rules", _landlock(facts.landlock_abi)))
    if facts.landlock_abi >= _SCOPE_ABI:
        # Before anything is forked: then agent and code are inside the same edge, and the agent can signal the code.
        steps.append(("landlock_scope", {"clauses": _SCOPES}))
    return tuple(steps)


def _jail_box(spec: Spec, facts: HostFacts, ids: str) -> BoxPlan:
    limits = spec.limits
    steps: list[Step] = [
        ("quota", {"size_bytes": limits.disk_bytes, "files": limits.files}),
        ("rlimits", _rlimits(spec, facts, own_count=True)),
        ("capabilities", {"keep": ("setuid", "setgid", "kill") if ids != "single" else ("kill",)}),
    ]
    return BoxPlan(tuple(steps), spec.fresh, HOME, limits.memory_bytes, _with_agent(limits.processes))


def _landlock(abi: int) -> dict[str, Any]:
    """Return the rules; every clause the kernel has but TCP, which the own network namespace holds better."""
    clauses = [name for name, needed in _LANDLOCK_CLAUSES if abi >= needed]
    workspace = ("read", "execute", "write")
    allow = [("/", ("read", "execute")), ("/dev", ("read", "write", "device")), ("/proc", ("read", "write"))]
    return {"clauses": clauses, "allow": allow + [(path, workspace) for path in (HOME, "/tmp", "/dev/shm")]}


def plan_process(spec: Spec, facts: HostFacts, view: View, *, home: str) -> Plan:
    """Compile a spec for the level `process`: no boundary, so no view, no ids of its own, no filter.

    `home` is the folder over which each box mounts its private one.
    """
    prepare: list[Step] = [("private_home", {"path": home}), ("loopback", {}), ("rlimits", {})]
    if facts.proc_in_userns:
        prepare.append(("proc", {"hidden": (), "read_only": ()}))
    cell = CellPlan(
        isolated=False,
        ids="none",
        view=view,
        datasets=(),
        namespaces=_PLAIN_NAMESPACES,
        guest=agent_setup(view, home, f"{home}/data", None),
        restrictions=(),
        prepare=tuple(prepare),
        seal=(("no_new_privileges", {}),),
    )
    limits = spec.limits
    own_count = facts.euid != 0
    sources = {d.name: d.source for d in spec.policy.datasets}
    # The places where datasets are mounted, and their folder, are not the code's files.
    files = limits.files + len(sources) + 1 if limits.files is not None and sources else limits.files
    steps: tuple[Step, ...] = (
        ("home_quota", {"path": home, "size_bytes": limits.disk_bytes, "files": files}),
        ("datasets", {"path": f"{home}/data", "sources": sources}),
        (
            "rlimits",
            _rlimits(spec, facts, own_count) | {"file_bytes": limits.disk_bytes, "data_bytes": limits.memory_bytes},
        ),
        ("capabilities", {"keep": ()}),
    )
    return Plan(cell, BoxPlan(steps, spec.fresh, home, limits.memory_bytes, _with_agent(limits.processes)))


def plan_process_image(spec: Spec, facts: HostFacts, view: View) -> Plan:
    """Compile a spec with an image for the level `process`: its root is the image, and nothing else is a boundary."""
    prepare: list[Step] = [("workspace", {"owner": CODE_ID}), ("proc", {"hidden": (), "read_only": ()})]
    cell = CellPlan(
        isolated=True,
        ids="single",
        view=view,
        datasets=tuple((d.name, d.source) for d in spec.policy.datasets),
        namespaces=_JAIL_NAMESPACES,
        guest=agent_setup(view, HOME, "/data", None),
        restrictions=(),
        prepare=(*prepare, ("terminals", {}), ("loopback", {}), ("rlimits", {})),
        seal=(("no_new_privileges", {}),),
    )
    limits = spec.limits
    steps: tuple[Step, ...] = (
        ("quota", {"size_bytes": limits.disk_bytes, "files": limits.files}),
        (
            "rlimits",
            _rlimits(spec, facts, facts.euid != 0)
            | {"file_bytes": limits.disk_bytes, "data_bytes": limits.memory_bytes},
        ),
        ("capabilities", {"keep": ()}),
    )
    return Plan(cell, BoxPlan(steps, spec.fresh, HOME, limits.memory_bytes, _with_agent(limits.processes)))


def _with_agent(processes: int | None) -> int | None:
    return None if processes is None else processes + AGENT_PROCESSES


def _rlimits(spec: Spec, facts: HostFacts, own_count: bool) -> dict[str, Any]:
    limits = spec.limits
    values: dict[str, Any] = {"open_files": limits.open_files}
    if limits.processes is not None and own_count:
        values["processes"] = limits.processes + AGENT_PROCESSES
    if not facts.cgroup_writable:
        values["data_bytes"] = limits.memory_bytes
    if limits.cpu_seconds is not None:
        # Per process, and only a backstop: the host measures the whole box.
        values["cpu_seconds"] = int(limits.cpu_seconds) + 1
    return values


def agent_setup(view: View, home: str, data: str, code_id: int | None) -> dict[str, Any]:
    """Return what every agent of a cell is told, as plain data."""
    path = "/usr/local/bin:/usr/bin:/bin"
    return {
        "home": home,
        "env": {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "KOOI_DATA": data, "USER": "user", **dict(view.env)},
        "code_uid": code_id,
        "code_gid": code_id,
        "python_argv": (view.python,),
        "sys_path": view.sys_path,
    }
