"""The one door to the kernel: `syscall(number, ...)` through the C library, with errors as `OSError`.

Theory of operation: the C library is loaded and its `syscall` bound on the first call, once for the process and all
its forks; nothing happens at import. Every argument goes through a pointer-sized slot, so integers keep their 64 bits
and `bytes`, ctypes objects, `byref(...)` and None may be passed where the kernel wants an address. The raw number
is used, never a wrapper of the C library: wrappers cache ids, emulate, or do not exist.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any, Callable, Dict, Optional

from kooi.contract.errors import Unsupported

# name: (x86_64, aarch64)
_NUMBERS = {
    "ioctl": (16, 29),
    "ptrace": (101, 117),
    "capget": (125, 90),
    "capset": (126, 91),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "chroot": (161, 51),
    "mount": (165, 40),
    "umount2": (166, 39),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "gettid": (186, 178),
    "getdents64": (217, 61),
    "tgkill": (234, 131),
    "waitid": (247, 95),
    "add_key": (248, 217),
    "keyctl": (250, 219),
    "openat": (257, 56),
    "mknodat": (259, 33),
    "unlinkat": (263, 35),
    "unshare": (272, 97),
    "clone": (56, 220),
    "perf_event_open": (298, 241),
    "prlimit64": (302, 261),
    "syncfs": (306, 267),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "kcmp": (312, 272),
    "seccomp": (317, 277),
    "memfd_create": (319, 279),
    "bpf": (321, 280),
    "execveat": (322, 281),
    "userfaultfd": (323, 282),
    "statx": (332, 291),
    "setgroups": (116, 159),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "pidfd_open": (434, 434),
    "clone3": (435, 435),
    "close_range": (436, 436),
    "openat2": (437, 437),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    "memfd_secret": (447, 447),
}

_raw: Optional[Callable[..., int]] = None
_get_errno = ctypes.get_errno


def _bind() -> Callable[..., int]:
    """Load the C library of this process and keep its `syscall`."""
    global _raw
    if not sys.platform.startswith("linux"):
        raise Unsupported("kernel calls of Linux were asked for on " + sys.platform, fix="use a Linux host")
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.argtypes = [ctypes.c_long] + [ctypes.c_void_p] * 6
    function.restype = ctypes.c_long
    _raw = function
    return function


def syscall(number: int, a: Any = 0, b: Any = 0, c: Any = 0, d: Any = 0, e: Any = 0, f: Any = 0) -> int:
    """Make one kernel call and return its result.

    Arguments are integers, `bytes` (its address is passed), ctypes objects, `byref(...)` or None. Raises `OSError`
    with the call's errno and name. Interrupted calls are not restarted.
    """
    result = (_raw or _bind())(number, a, b, c, d, e, f)
    if result == -1:
        code = _get_errno()
        raise OSError(code, os.strerror(code), name_of(number))
    return result


def try_syscall(number: int, a: Any = 0, b: Any = 0, c: Any = 0, d: Any = 0, e: Any = 0, f: Any = 0) -> int:
    """Make one kernel call and return its result, or minus its errno."""
    result = (_raw or _bind())(number, a, b, c, d, e, f)
    return -_get_errno() if result == -1 else result


@functools.lru_cache(maxsize=None)
def numbers() -> Dict[str, int]:
    """Return the kernel call numbers this package uses on this machine. Raises `Unsupported` on an unknown one."""
    machine = os.uname().machine
    if machine not in ("x86_64", "aarch64") or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise Unsupported(
            "this needs a 64-bit interpreter on x86_64 or aarch64, not " + machine, fix="use a 64-bit interpreter there"
        )
    column = 0 if machine == "x86_64" else 1
    return {name: pair[column] for name, pair in _NUMBERS.items()}


def nr(name: str) -> int:
    """Return the number of the kernel call `name` on this machine."""
    return numbers()[name]


def name_of(number: int) -> str:
    """Return the name of a kernel call this package uses, or `syscall N`."""
    for name, value in numbers().items():
        if value == number:
            return name
    return "syscall " + str(number)
