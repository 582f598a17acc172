"""Resource limits of one process, from simple numbers: soft and hard are set equal, so nothing inside can raise them.

A limit counts per process (open_files, file_bytes, data_bytes, cpu_seconds) or per user and user namespace
(processes, pending_signals, queue_bytes, locked_bytes). `processes` never binds kernel uid 0. At `cpu_seconds` the
kernel sends SIGKILL, because soft equals hard. `core_bytes` is 1, not 0: at 0 the kernel still runs a core handler
that the host configured as a pipe, with the program's memory as its input; 1 makes it drop the dump. The stack is
left as it is: its limit shapes the address space, and data_bytes holds what matters.
"""

from __future__ import annotations

import math
import resource
from typing import Dict, List, Mapping, Optional, Tuple, Union

from kooi.contract.errors import InvalidRequest, Unsupported

Number = Union[int, float, None]
Table = Tuple[Tuple[int, int], ...]

# our name: (the C library's name, unit)
NAMES = {
    "open_files": ("RLIMIT_NOFILE", "descriptors"),
    "processes": ("RLIMIT_NPROC", "processes and threads"),
    "file_bytes": ("RLIMIT_FSIZE", "bytes"),
    "data_bytes": ("RLIMIT_DATA", "bytes"),
    "address_bytes": ("RLIMIT_AS", "bytes"),
    "stack_bytes": ("RLIMIT_STACK", "bytes"),
    "cpu_seconds": ("RLIMIT_CPU", "seconds"),
    "core_bytes": ("RLIMIT_CORE", "bytes"),
    "locked_bytes": ("RLIMIT_MEMLOCK", "bytes"),
    "queue_bytes": ("RLIMIT_MSGQUEUE", "bytes"),
    "pending_signals": ("RLIMIT_SIGPENDING", "signals"),
    "realtime_priority": ("RLIMIT_RTPRIO", "priority"),
    "nice": ("RLIMIT_NICE", "priority"),
}

# What every box gets whatever its limits say.
BASE: Mapping[str, Number] = {
    "core_bytes": 1,
    "locked_bytes": 0,
    "queue_bytes": 0,
    "pending_signals": 1024,
    "realtime_priority": 0,
    "nice": 0,
}


def table(numbers: Mapping[str, Number]) -> Table:
    """Return what `apply` takes. A value of None leaves that limit as it is; fractions are rounded up.

    Raises `InvalidRequest` for an unknown name or a negative or non-finite value, `Unsupported` where the system
    lacks the limit.
    """
    return tuple((_id(name), _whole(name, value)) for name, value in numbers.items() if value is not None)


def apply(limits: Table) -> None:
    """Set soft and hard of each limit, for this process and all it starts.

    Where the caller may not raise a hard limit that is already lower, the lower one stays and soft equals it.
    """
    for kind, value in limits:
        try:
            resource.setrlimit(kind, (value, value))
        except ValueError:  # the interpreter's form of EPERM
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (hard, hard))


def apply_to(pid: int, limits: Table) -> None:
    """Set soft and hard of each limit of another process. Needs its ids or CAP_SYS_RESOURCE over them; `OSError`."""
    for kind, value in limits:
        resource.prlimit(pid, kind, (value, value))


def report(pid: int = 0) -> Dict[str, Tuple[Optional[int], Optional[int]]]:
    """Return (soft, hard) of every limit of a process (default: this one); None means no limit. Raises `OSError`."""
    found = {}
    for name, (constant, _) in NAMES.items():
        kind = getattr(resource, constant, None)
        if kind is not None:
            soft, hard = resource.prlimit(pid, kind) if pid else resource.getrlimit(kind)
            found[name] = (_finite(soft), _finite(hard))
    return found


def describe(found: Mapping[str, Tuple[Optional[int], Optional[int]]]) -> List[str]:
    """Return `report` as one readable line a limit."""
    lines = []
    for name, (soft, hard) in found.items():
        bound = "no limit" if soft is None else f"{soft:,} {NAMES[name][1]}"
        upper = "" if soft == hard else f" (may be raised to {'any value' if hard is None else format(hard, ',')})"
        lines.append(f"{name}: {bound}{upper}")
    return lines


def _id(name: str) -> int:
    if name not in NAMES:
        raise InvalidRequest(f"no resource limit is called {name!r}; there are {', '.join(NAMES)}", key=name)
    kind = getattr(resource, NAMES[name][0], None)
    if kind is None:
        raise Unsupported(f"this system has no limit for {name} ({NAMES[name][0]})", key=name)
    return int(kind)


def _whole(name: str, value: Union[int, float]) -> int:
    if not math.isfinite(value) or value < 0:
        raise InvalidRequest(f"the limit {name} is {value!r}; it must be a finite number >= 0, or None", key=name)
    return min(math.ceil(value), 2**63 - 1)


def _finite(value: int) -> Optional[int]:
    return None if value == resource.RLIM_INFINITY else value
