"""What a container is, as an OCI runtime takes it: a spec, an image and the host's facts, compiled. Pure.

A plan has two parts: how the root is laid (the image's folders, read-only, and one sized workspace), which `berth`
does before the runtime starts, and the runtime's own `config.json`, whose every key closes something. The ids of the
box are put in when they are leased.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kooi.contract.backend import HostFacts
from kooi.contract.spec import Spec
from kooi.images.host import HOME, WARM_STDLIB, View
from kooi.linux import rlimits, seccomp_policy
from kooi.spawn.plan import SINGLE_THREADED

CODE_ID = 1000
#: agent and file helper are not the code's: they come on top of its process limit
AGENT_PROCESSES = 2
#: where `berth` lays everything out, in a mount namespace that nobody else sees: a folder that every host has, that all
#: ids may pass, in which no image and no dataset can be, and behind which the control groups are
STAGE = "/sys/fs"
ROOT, BUNDLE, WORK = f"{STAGE}/root", f"{STAGE}/bundle", f"{STAGE}/work"

#: the control group that a runtime makes below a box's own, where it insists on one
RUNTIME_GROUP = "runtime"

ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": HOME,
    "USER": "user",
    "KOOI_DATA": "/data",
}
NAMESPACES = ("user", "pid", "network", "ipc", "uts", "mount", "cgroup")
_CAPABILITY_SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")
MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kallsyms", "/proc/kcore", "/proc/key-users", "/proc/keys",
    "/proc/latency_stats", "/proc/modules", "/proc/sched_debug", "/proc/scsi", "/proc/sysrq-trigger",
    "/proc/timer_list", "/proc/timer_stats",
)  # fmt: skip
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys")
# What our own filter needs before it is there: it is the last thing that may be installed, and refuses all of these.
_BOOT_CALLS = ("seccomp", "getcwd", "rseq", "set_robust_list", "getdents64", "fstatfs", "readlink")
# The runtime itself still makes these between its filter and the execution of process 1.
_RUNTIME_CALLS = (
    "epoll_ctl", "epoll_pwait", "futex", "getppid", "nanosleep", "newfstatat", "openat", "sigaltstack", "tgkill",
)  # fmt: skip
_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
# By the OCI's name.
_RLIMITS = {
    "core_bytes": "RLIMIT_CORE", "locked_bytes": "RLIMIT_MEMLOCK", "queue_bytes": "RLIMIT_MSGQUEUE",
    "pending_signals": "RLIMIT_SIGPENDING", "realtime_priority": "RLIMIT_RTPRIO", "nice": "RLIMIT_NICE",
    "open_files": "RLIMIT_NOFILE", "processes": "RLIMIT_NPROC", "cpu_seconds": "RLIMIT_CPU",
    "data_bytes": "RLIMIT_DATA",
}  # fmt: skip


@dataclass(frozen=True)
class Bundle:
    """A container to be: how its root is laid, and what the runtime is told.

    `binds` are (path on the host, path inside), seen read-only; `size_bytes` and `files` bound the one workspace that
    home, /tmp and /dev/shm are folders of.
    """

    binds: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, str], ...]
    datasets: tuple[tuple[str, str], ...]
    size_bytes: int | None
    files: int | None
    memory_bytes: int | None
    processes: int | None
    config: Mapping[str, Any]

    def encode(self) -> bytes:
        """Return what the warden is sent."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()


def restrictions(spec: Spec, facts: HostFacts) -> tuple[str, ...]:
    """Return what the filter takes away besides what it always does; see `spawn.plan.plan_jail`."""
    return (() if facts.cgroup_writable else ("memfd",)) + (("unix",) if spec.policy.datasets else ())


def environment(view: View) -> dict[str, str]:
    """Return the environment of process 1."""
    return {**ENV, **SINGLE_THREADED, **dict(view.env)}


def guest(view: View) -> dict[str, Any]:
    """Return what the agent is told."""
    return {
        "home": HOME,
        "env": {**ENV, **dict(view.env)},
        "python_argv": [view.python],
        "sys_path": list(view.sys_path),
    }


def warm(spec: Spec, view: View) -> tuple[str, ...]:
    """Return what process 1 imports before it serves: what the image or the spec names.

    Of the standard library's usual modules those that the agent needs itself are there; the others would cost each
    container, which is not forked from anything warm, more than most code saves by them.
    """
    return tuple(name for name in view.warm if name not in WARM_STDLIB) if spec.preload is None else spec.preload


def bundle(spec: Spec, facts: HostFacts, view: View, command: list[str], machine: str, runtime: str) -> Bundle:
    """Compile `spec` into a container of `runtime` whose process 1 is `command`."""
    limits = spec.limits
    processes = None if limits.processes is None else limits.processes + AGENT_PROCESSES
    return Bundle(
        binds=view.binds,
        links=view.links,
        texts=view.texts,
        datasets=tuple((each.name, each.source) for each in spec.policy.datasets),
        size_bytes=limits.disk_bytes,
        files=limits.files,
        memory_bytes=limits.memory_bytes,
        processes=processes,
        config=_for_runtime(config(spec, facts, view, command, machine), runtime),
    )


def _for_runtime(made: dict[str, Any], runtime: str) -> dict[str, Any]:
    # runc will manage a group of devices where there are some; it gets one below the box's own.
    if runtime == "runc":
        made["linux"]["cgroupsPath"] = RUNTIME_GROUP
    return made


def config(spec: Spec, facts: HostFacts, view: View, command: list[str], machine: str) -> dict[str, Any]:
    """Return the runtime's `config.json`, but for the ids on the host."""
    return {
        "ociVersion": "1.0.2",
        "hostname": "kooi",
        "root": {"path": ROOT, "readonly": True},
        "process": {
            "terminal": False,
            "user": {"uid": CODE_ID, "gid": CODE_ID, "additionalGids": []},
            "args": command,
            "env": [f"{name}={value}" for name, value in environment(view).items()],
            "cwd": "/",
            "capabilities": {name: [] for name in _CAPABILITY_SETS},
            "noNewPrivileges": True,
            "rlimits": resource_limits(spec, facts),
        },
        "mounts": _mounts(),
        "linux": {
            "namespaces": [{"type": name} for name in NAMESPACES],
            "maskedPaths": list(MASKED),
            "readonlyPaths": list(READ_ONLY),
            "seccomp": seccomp(machine),
            "devices": [],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        },
    }


def seccomp(machine: str) -> dict[str, Any]:
    """Return our own filter as far as names can say it; the agent binds itself to the exact one before it serves."""
    names = {*seccomp_policy.allowed_names(), *seccomp_policy.MORE.get(machine, ()), *_BOOT_CALLS, *_RUNTIME_CALLS}
    refused = [
        {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": code}
        for name, code in sorted(seccomp_policy.REFUSALS.items())
    ]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.ENOSYS,
        "architectures": [_ARCHITECTURES[machine]] if machine in _ARCHITECTURES else [],
        "syscalls": [{"names": sorted(names), "action": "SCMP_ACT_ALLOW"}, *refused],
    }


def _mounts() -> list[dict[str, Any]]:
    def mount(inside: str, kind: str, *options: str) -> dict[str, Any]:
        return {"destination": inside, "type": kind, "source": kind, "options": list(options)}

    def part(name: str, inside: str) -> dict[str, Any]:
        source = f"{WORK}/{name}"
        return {**mount(inside, "bind", "bind", "rw", "nosuid", "nodev"), "source": source}

    return [
        # hidepid=4: code that has the agent's id does not see the agent (2 does not give that).
        mount("/proc", "proc", "nosuid", "noexec", "nodev", "hidepid=4"),
        mount("/dev", "tmpfs", "nosuid", "noexec", "mode=755", "size=64k", "nr_inodes=64"),
        mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
        part("home", HOME), part("tmp", "/tmp"), part("shm", "/dev/shm"),
    ]  # fmt: skip


def resource_limits(spec: Spec, facts: HostFacts) -> list[dict[str, Any]]:
    """Return the limits of each process, by the OCI's names."""
    limits = spec.limits
    wanted: dict[str, Any] = {**rlimits.BASE, "open_files": limits.open_files}
    if limits.processes is not None:
        wanted["processes"] = limits.processes + AGENT_PROCESSES
    if not facts.cgroup_writable:
        wanted["data_bytes"] = limits.memory_bytes
    if limits.cpu_seconds is not None:
        wanted["cpu_seconds"] = int(limits.cpu_seconds) + 1
    return [
        {"type": _RLIMITS[name], "soft": int(value), "hard": int(value)}
        for name, value in wanted.items()
        if value is not None
    ]
