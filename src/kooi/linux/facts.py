"""What this host offers, tried rather than looked up where trying is the only proof.

Theory of operation: namespaces are tried in a fresh interpreter, a process of its own that may be spoilt: it makes a
user namespace, mounts a tmpfs and a fresh /proc in it, and prints what failed. Some hosts let the first succeed and
refuse the next (a confined user namespace, a masked /proc in a container), so every step counts for itself. A control
group counts as writable where one was made and removed, as the spawner will. Everything else is read from /proc and
/sys. What is missing comes with the reason and, where there is one, the fix.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import subprocess
import sys
from typing import Any, Dict, Optional

from kooi.linux import cgroup, landlock, libc, subids

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_OTHERS = 0x02000000 | 0x04000000 | 0x08000000 | 0x40000000  # cgroup, uts, ipc, net
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000
_TRY_SECONDS = 20.0
_PROBE = "import sys; sys.path.insert(0, sys.argv[1]); from kooi.linux.facts import print_steps; print_steps()"

SYSCTLS = (
    "dev.tty.legacy_tiocsti",
    "fs.protected_symlinks",
    "kernel.apparmor_restrict_unprivileged_userns",
    "kernel.core_pattern",
    "kernel.io_uring_disabled",
    "kernel.perf_event_paranoid",
    "kernel.unprivileged_bpf_disabled",
    "kernel.unprivileged_userns_clone",
    "kernel.yama.ptrace_scope",
    "net.ipv4.ip_unprivileged_port_start",
    "user.max_user_namespaces",
    "vm.overcommit_memory",
    "vm.unprivileged_userfaultfd",
)


def gather() -> Dict[str, Any]:
    """Return the fields of `HostFacts`. Starts an interpreter (tens of milliseconds); never raises for a lack."""
    return dict(report()["host"])


def report() -> Dict[str, Any]:
    """Return `{"host": what gather() returns, "reasons": field -> why not and the fix, "detail": ...}`.

    Every field that says no has a reason. `detail` has `sysctls`, `cpu_vulnerabilities`, `security_modules` and
    `apparmor_profile`.
    """
    host = _everywhere()
    if not sys.platform.startswith("linux"):
        return _absent(host)
    reasons: Dict[str, str] = {}
    host["landlock_abi"] = _landlock(reasons)
    host.update(_namespaces(reasons))
    host.update(_cgroup(reasons))
    host.update(_subuids(reasons))
    return {"host": host, "reasons": reasons, "detail": _detail()}


def _everywhere() -> Dict[str, Any]:
    system = platform.uname()
    return {
        "system": system.system,
        "machine": system.machine,
        "kernel": system.release,
        "euid": os.geteuid(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "python": sys.executable,
        "python_version": (sys.version_info[0], sys.version_info[1]),
    }


def _absent(host: Dict[str, Any]) -> Dict[str, Any]:
    reason = f"{host['system']} does not have it; use a Linux host"
    missing: Dict[str, Any] = {
        "landlock_abi": 0,
        "user_namespaces": False,
        "mount_in_userns": False,
        "proc_in_userns": False,
        "cgroup": "none",
        "cgroup_writable": False,
        "subuid_count": 0,
        "newuidmap": False,
    }
    return {"host": {**host, **missing}, "reasons": dict.fromkeys(missing, reason), "detail": {}}


def _landlock(reasons: Dict[str, str]) -> int:
    found = landlock.abi()
    if not found:
        modules = _read("/sys/kernel/security/lsm")
        reasons["landlock_abi"] = (
            "this kernel has no Landlock; use Linux 5.13 or newer"
            if modules is None
            else f"Landlock is not among the active security modules ({modules}); boot with lsm=landlock,{modules}"
        )
    return found


# ---- namespaces


def _namespaces(reasons: Dict[str, str]) -> Dict[str, bool]:
    steps = _tried()
    fields = {"user_namespaces": "user", "mount_in_userns": "mount", "proc_in_userns": "proc"}
    found = {}
    for field, step in fields.items():
        found[field] = steps.get(step) == 0
        if not found[field]:
            reasons[field] = _why(steps, step)
    return found


def _tried() -> Dict[str, Any]:
    """Return step -> errno (0: it worked) as a fresh process found it; `"failed"` says why there is no answer."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROBE, root],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=_TRY_SECONDS,
        )
        return dict(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"failed": str(error)}


def print_steps() -> None:
    """Try the namespaces in this process, which is spoilt by it, and print the outcome as JSON."""
    try:
        steps = try_steps()
    except OSError as error:
        steps = {"user": error.errno or errno.EIO}
    print(json.dumps(steps), flush=True)
    os._exit(0)


def try_steps() -> Dict[str, int]:
    """Make all namespaces, mount a tmpfs and a fresh /proc in them; return step -> errno, 0 when it worked."""
    uid, gid = os.geteuid(), os.getegid()
    steps = {"user": _attempt("unshare", _CLONE_NEWUSER)}
    if steps["user"]:
        return steps
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        steps["user"] = steps["user"] or _written(f"/proc/self/{name}", text)
    steps["mount"] = (
        _attempt("unshare", _CLONE_NEWNS | _CLONE_NEWPID | _OTHERS)
        or _attempt("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
        or _attempt("mount", b"tmpfs", b"/tmp", b"tmpfs", _MS_NOSUID | _MS_NODEV, b"size=64k")
    )
    if not steps["mount"]:
        steps["proc"] = _fresh_proc()
    return steps


def _fresh_proc() -> int:
    os.mkdir("/tmp/proc")
    child = os.fork()  # the first process of the new pid namespace, whose /proc it is
    if child == 0:
        flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
        os._exit(_attempt("mount", b"proc", b"/tmp/proc", b"proc", flags, b"hidepid=4") & 0x7F)
    return os.waitpid(child, 0)[1] >> 8


def _attempt(name: str, *arguments: Any) -> int:
    return max(0, -libc.try_syscall(libc.nr(name), *arguments))


def _written(path: str, text: str) -> int:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _why(steps: Dict[str, Any], step: str) -> str:
    if "failed" in steps:
        return f"it could not be tried: {steps['failed']}"
    earlier = {"mount": "user", "proc": "mount"}.get(step)
    if step not in steps and earlier:
        return _why(steps, earlier)
    texts = {"user": _why_user, "mount": _why_mount, "proc": _why_proc}
    return texts[step](steps[step])


def _why_user(code: int) -> str:
    if sysctl("kernel.unprivileged_userns_clone") == "0":
        return "unprivileged user namespaces are switched off; sysctl kernel.unprivileged_userns_clone=1"
    if sysctl("user.max_user_namespaces") == "0":
        return "no user namespaces are allowed; sysctl user.max_user_namespaces=10000"
    return f"a user namespace is refused ({os.strerror(code)}); {_restrictor()}"


def _why_mount(code: int) -> str:
    return f"mounting in a user namespace is refused ({os.strerror(code)}); {_restrictor()}"


def _why_proc(code: int) -> str:
    return (
        f"a fresh /proc is refused ({os.strerror(code)}), as it is where parts of /proc are masked; "
        "in Docker: --security-opt systempaths=unconfined"
    )


def _restrictor() -> str:
    """Say who most likely refuses, and what to do about it."""
    if sysctl("kernel.apparmor_restrict_unprivileged_userns") == "1":
        return "AppArmor restricts them; give the interpreter a profile with 'userns', or sysctl " + (
            "kernel.apparmor_restrict_unprivileged_userns=0"
        )
    seccomp = [line for line in (_read("/proc/self/status") or "").splitlines() if line.startswith("Seccomp:")]
    if seccomp and not seccomp[0].endswith("0"):
        return "a seccomp filter is in force, as in a container; in Docker: --security-opt seccomp=unconfined"
    return "a security module or an outer sandbox refuses it; run outside of it, or use the level confined"


# ---- control groups


def _cgroup(reasons: Dict[str, str]) -> Dict[str, Any]:
    """Say what the spawner will find: the same question, answered by the same function."""
    try:
        found = cgroup.layout(for_child=True)
    except OSError as error:
        found = cgroup.Layout("none", (), {}, False, f"control groups cannot be looked at: {error}", None)
    said = "; ".join(text for text in (found.reason, found.fix) if text)
    if found.kind == "none":
        reasons["cgroup"] = said
    if not found.available:
        reasons["cgroup_writable"] = said
    return {"cgroup": found.kind, "cgroup_writable": found.available}


# ---- users


def _subuids(reasons: Dict[str, str]) -> Dict[str, Any]:
    counts = {path: subids.first(path)[1] for path in ("/etc/subuid", "/etc/subgid")}
    count = min(counts.values())
    helpers = all(shutil.which(name) for name in ("newuidmap", "newgidmap"))
    if not count:
        missing = " and ".join(path for path in counts if not counts[path])
        reasons["subuid_count"] = f"no range in {missing} is this user's; " + (
            "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 NAME"
        )
    if not helpers:
        reasons["newuidmap"] = "newuidmap and newgidmap are not installed; install the package uidmap"
    return {"subuid_count": count, "newuidmap": helpers}


# ---- detail


def _detail() -> Dict[str, Any]:
    folder = "/sys/devices/system/cpu/vulnerabilities"
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return {
        "sysctls": {name: value for name in SYSCTLS for value in [sysctl(name)] if value is not None},
        "cpu_vulnerabilities": {name: _read(f"{folder}/{name}") or "unknown" for name in names},
        "security_modules": [name for name in (_read("/sys/kernel/security/lsm") or "").split(",") if name],
        "apparmor_profile": _read("/proc/self/attr/apparmor/current"),
    }


def sysctl(name: str) -> Optional[str]:
    """Return the value of a kernel setting; None when the kernel lacks it or it may not be read."""
    return _read("/proc/sys/" + name.replace(".", "/"))


def _read(path: str) -> Optional[str]:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return None
