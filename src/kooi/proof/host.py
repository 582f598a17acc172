"""What the host offers and what weakens it: read from /proc and /sys, nothing tried, nothing changed."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kooi.contract.backend import HostFacts

Verdict = Literal["good", "doubt", "bad", ""]


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing known about the host: what it is, whether it is good, and what to do about it."""

    group: str
    name: str
    value: str
    verdict: Verdict = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Sysctl:
    """A kernel setting: the values that are good, and why another one matters."""

    name: str
    good: Callable[[str], bool]
    advice: str


def _at_least(low: int) -> Callable[[str], bool]:
    return lambda value: value.lstrip("-").isdigit() and int(value) >= low


def _is(*values: str) -> Callable[[str], bool]:
    return lambda value: value in values


# Absent settings are left out: older and newer kernels have different ones.
SYSCTLS: tuple[Sysctl, ...] = (
    Sysctl("dev.tty.legacy_tiocsti", _is("0"), "TIOCSTI types into the terminal; our filter refuses it too"),
    Sysctl("kernel.io_uring_disabled", _is("1", "2"), "io_uring is much attacked; our filter refuses it too"),
    Sysctl("kernel.unprivileged_bpf_disabled", _is("1", "2"), "unprivileged BPF is much attacked; set it to 1"),
    Sysctl("vm.unprivileged_userfaultfd", _is("0"), "userfaultfd helps exploits; set it to 0"),
    Sysctl("kernel.perf_event_paranoid", _at_least(2), "perf counters leak; set it to 2 or more"),
    Sysctl("kernel.yama.ptrace_scope", _at_least(1), "processes of one user can trace each other"),
    Sysctl("kernel.unprivileged_userns_clone", _is("1"), "an ordinary user needs user namespaces for jail"),
    Sysctl(
        "kernel.apparmor_restrict_unprivileged_userns", _is("0"),
        "AppArmor lets an ordinary user make a namespace but not mount in it: give python a profile or set it to 0",
    ),
    Sysctl("user.max_user_namespaces", _at_least(100), "too few user namespaces for an ordinary user's jails"),
    Sysctl("kernel.randomize_va_space", _is("2"), "address space randomisation is off; set it to 2"),
    Sysctl("kernel.kptr_restrict", _at_least(1), "kernel addresses are readable; set it to 1"),
    Sysctl("kernel.dmesg_restrict", _is("1"), "the kernel log is readable by every user; set it to 1"),
    Sysctl("fs.protected_symlinks", _is("1"), "links in shared folders are followed; set it to 1"),
    Sysctl("fs.protected_hardlinks", _is("1"), "links to files of others can be made; set it to 1"),
    Sysctl("kernel.core_pattern", lambda v: not v.startswith("|"), "a program on the host reads every core dump"),
)  # fmt: skip


def facts(host: HostFacts) -> list[Fact]:
    """Return everything known about the host, group by group."""
    found = [*_system(host), *_features(host)]
    if sys.platform == "linux":
        found += [*_sysctls(), *_memory(), *_processors()]
    return found


def _system(host: HostFacts) -> list[Fact]:
    return [
        Fact("system", "kernel", f"{host.system} {host.kernel} {host.machine}"),
        Fact("system", "processors", str(host.cpus)),
        Fact("system", "memory", _total_memory()),
        Fact("system", "user", "root" if host.euid == 0 else f"uid {host.euid}"),
        Fact("system", "python", f"{host.python} ({platform.python_version()})"),
    ]


def _features(host: HostFacts) -> list[Fact]:
    yes = _yes_or_no
    return [
        yes("user namespaces", host.user_namespaces, "needed for jail; see the settings below for what refuses them"),
        yes("mounts in a user namespace", host.mount_in_userns, "needed for jail as an ordinary user"),
        yes("a fresh /proc in a user namespace", host.proc_in_userns, "in a container: unmask /proc"),
        _landlock(host.landlock_abi),
        Fact("features", "control groups", _cgroup(host), "good" if host.cgroup_writable else "doubt",
             "" if host.cgroup_writable else "limits are polled; delegate a group, or run in a systemd user session"),
        yes("newuidmap with a range of ids", host.newuidmap and host.subuid_count >= 2,
            "an ordinary user then has two ids per box: apt install uidmap, and a line in /etc/subuid", host.euid != 0),
        yes("seccomp filters", Path("/proc/sys/kernel/seccomp/actions_avail").exists(), "CONFIG_SECCOMP_FILTER"),
        yes("/dev/kvm", os.access("/dev/kvm", os.R_OK | os.W_OK), "microvm falls back to emulation", False),
    ]  # fmt: skip


def _yes_or_no(name: str, there: bool, advice: str, matters: bool = True) -> Fact:
    if there:
        return Fact("features", name, "yes", "good")
    return Fact("features", name, "no", "bad" if matters else "", advice if matters else "")


def _landlock(abi: int) -> Fact:
    if abi == 0:
        return Fact(
            "features", "Landlock", "no", "doubt", "a second layer of jail is missing: Linux 5.13, lsm=landlock"
        )
    advice = "" if abi >= 6 else "from ABI 6 it scopes signals and abstract sockets too (Linux 6.12)"
    return Fact("features", "Landlock", f"ABI {abi}", "good" if abi >= 6 else "doubt", advice)


def _cgroup(host: HostFacts) -> str:
    return f"{host.cgroup}, {'writable' if host.cgroup_writable else 'not writable'}"


def _sysctls() -> list[Fact]:
    found = []
    for setting in SYSCTLS:
        value = _read("/proc/sys/" + setting.name.replace(".", "/"))
        if value is not None:
            good = setting.good(value)
            found.append(
                Fact("settings", setting.name, value, "good" if good else "doubt", "" if good else setting.advice)
            )
    return found


def _memory() -> list[Fact]:
    found = []
    huge = _read("/sys/kernel/mm/transparent_hugepage/enabled")
    if huge is not None:
        found.append(Fact("memory", "transparent huge pages", _chosen(huge)))
    ksm = _read("/sys/kernel/mm/ksm/run")
    if ksm is not None:
        advice = (
            "" if ksm == "0" else "merging pages across boxes leaks what they hold: echo 0 > /sys/kernel/mm/ksm/run"
        )
        found.append(
            Fact(
                "memory",
                "same-page merging (KSM)",
                "off" if ksm == "0" else "on",
                "good" if ksm == "0" else "bad",
                advice,
            )
        )
    swaps = (_read("/proc/swaps") or "").splitlines()[1:]
    found.append(Fact("memory", "swap", f"{len(swaps)} areas", "doubt" if swaps else "good",
                      "what a box held may stay on the disk" if swaps else ""))  # fmt: skip
    expedited = _read("/sys/kernel/rcu_expedited")
    if expedited is not None:
        found.append(Fact("memory", "rcu_expedited", expedited))
    return found


def _processors() -> list[Fact]:
    found = []
    smt = _read("/sys/devices/system/cpu/smt/active")
    if smt is not None:
        on = smt == "1"
        advice = "boxes on one core share its caches: nosmt where boxes do not trust each other" if on else ""
        value = "on" if on else "off"
        found.append(Fact("processor", "hyper-threading", value, "doubt" if on else "good", advice))
    try:
        names = sorted(os.listdir("/sys/devices/system/cpu/vulnerabilities"))
    except OSError:
        names = []
    for name in names:
        value = _read(f"/sys/devices/system/cpu/vulnerabilities/{name}") or "unknown"
        bad = value.startswith("Vulnerable")
        found.append(
            Fact("processor", name, value, "bad" if bad else "good", "update the microcode and kernel" if bad else "")
        )
    return found


def _total_memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB"
    except (ValueError, OSError):
        return "unknown"


def _chosen(text: str) -> str:
    return text[text.find("[") + 1 : text.find("]")] if "[" in text else text


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return None
