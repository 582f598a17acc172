"""Binds a process to a filter that is compiled already: all of seccomp that a process needs that compiles none."""

from __future__ import annotations

import ctypes
import struct

from kooi.contract.errors import SetupFailed
from kooi.linux import libc

_MODE_FILTER, _PR_GET_NO_NEW_PRIVS = 1, 39
_INSTRUCTION_BYTES = 8


def bind(code: bytes) -> None:
    """Bind the calling thread and all it starts, for ever. Raises `SetupFailed` without no_new_privs, `OSError`."""
    if libc.syscall(libc.nr("prctl"), _PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
        raise SetupFailed("a seccomp filter was to be installed without no_new_privs", fix="set no_new_privs first")
    address = ctypes.cast(ctypes.c_char_p(code), ctypes.c_void_p).value
    length = len(code) // _INSTRUCTION_BYTES
    libc.syscall(libc.nr("seccomp"), _MODE_FILTER, 0, struct.pack("=H6xQ", length, address))
