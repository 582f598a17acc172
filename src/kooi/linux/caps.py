"""Capabilities: read them, set them, empty the bounding set, and fix what survives a change of uid.

A set is an integer with one bit a capability, as in /proc/PID/status. All calls act on the calling thread; use them in
a single-threaded process. The usual order: `drop_bounding` (needs CAP_SETPCAP), change of uid, `set_caps`.
"""

from __future__ import annotations

import functools
import struct
from typing import Dict, Iterable, List

from kooi.contract.errors import InvalidRequest
from kooi.linux import libc

NAMES = (
    "chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service "
    "net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin "
    "sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override "
    "mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore"
).split()

SETS = ("inheritable", "permitted", "effective", "bounding", "ambient")
_STATUS = {
    "CapInh": "inheritable",
    "CapPrm": "permitted",
    "CapEff": "effective",
    "CapBnd": "bounding",
    "CapAmb": "ambient",
}

_VERSION_3 = 0x20080522
_PR_SET_KEEPCAPS, _PR_CAPBSET_READ, _PR_CAPBSET_DROP = 8, 23, 24


def mask(names: Iterable[str]) -> int:
    """Return the set of the capabilities named (lower case, no CAP_ prefix). Raises `InvalidRequest`."""
    found = 0
    for name in names:
        if name not in NAMES:
            raise InvalidRequest(f"no capability is called {name!r}", key=name)
        found |= 1 << NAMES.index(name)
    return found


def names(set_: int) -> List[str]:
    """Return the names in a set; those newer than this list come as `capability N`."""
    bits = [bit for bit in range(set_.bit_length()) if set_ >> bit & 1]
    return [NAMES[bit] if bit < len(NAMES) else f"capability {bit}" for bit in bits]


def read(pid: int = 0) -> Dict[str, int]:
    """Return the five sets of a process, default the caller. Raises `OSError`."""
    with open(f"/proc/{pid or 'self'}/status", "rb") as file:
        return parse(file.read().decode("utf-8", "replace"))


def parse(status: str) -> Dict[str, int]:
    """Return the five sets in the text of a /proc/PID/status file."""
    pairs = (line.split(":", 1) for line in status.splitlines() if line.startswith("Cap"))
    return {_STATUS[key]: int(value, 16) for key, value in pairs}


def set_caps(permitted: int = 0, effective: int = 0, inheritable: int = 0) -> None:
    """Set the caller's three sets; the ambient set empties itself with them. Raises `OSError` when one would grow."""
    low = 0xFFFFFFFF
    header = struct.pack("=Ii", _VERSION_3, 0)
    data = struct.pack(
        "=6I",
        effective & low,
        permitted & low,
        inheritable & low,
        effective >> 32,
        permitted >> 32,
        inheritable >> 32,
    )
    libc.syscall(libc.nr("capset"), header, data)


def drop_bounding(keep: int = 0) -> None:
    """Take everything but `keep` out of the caller's bounding set. Needs CAP_SETPCAP; raises `OSError`."""
    prctl = libc.nr("prctl")
    for capability in range(last() + 1):
        if not keep >> capability & 1:
            libc.syscall(prctl, _PR_CAPBSET_DROP, capability, 0, 0, 0)


def set_keepcaps(keep: bool) -> None:
    """Keep the permitted set across the next change from uid 0 to another, or not. Raises `OSError`."""
    libc.syscall(libc.nr("prctl"), _PR_SET_KEEPCAPS, int(keep), 0, 0, 0)


@functools.lru_cache(maxsize=None)
def last() -> int:
    """Return the highest capability this kernel has."""
    prctl = libc.nr("prctl")
    capability = 63
    while libc.try_syscall(prctl, _PR_CAPBSET_READ, capability, 0, 0, 0) < 0:
        capability -= 1
    return capability
