"""The kernel door: numbers are right, errors carry errno and name, arguments keep their 64 bits."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from kooi.linux import libc

X86 = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
GENERIC = Path("/usr/include/asm-generic/unistd.h")


def header(path: Path) -> dict[str, int]:
    if not path.exists():
        pytest.skip(f"{path} is not installed (linux-libc-dev)")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text(), re.M)
    return {name: int(number) for name, number in found}


@pytest.mark.parametrize(("path", "column"), [(X86, 0), (GENERIC, 1)])
def test_numbers_equal_the_kernel_headers(path: Path, column: int) -> None:
    known = header(path)
    ours = {name: pair[column] for name, pair in libc._NUMBERS.items()}
    assert ours == {name: known[name] for name in ours}


def test_a_failed_call_raises_with_errno_and_name() -> None:
    with pytest.raises(OSError) as caught:
        libc.syscall(libc.nr("setns"), -1, 0)
    assert caught.value.errno == errno.EBADF
    assert caught.value.filename == "setns"
    assert libc.try_syscall(libc.nr("setns"), -1, 0) == -errno.EBADF
    assert isinstance(caught.value, OSError)


def test_results_pointers_and_wide_integers_arrive() -> None:
    assert libc.syscall(libc.nr("gettid")) == os.getpid()
    fd = libc.syscall(libc.nr("openat"), -100, b"/dev/null\0", os.O_RDONLY | os.O_CLOEXEC)
    os.close(fd)
    # An address above 4 GiB that was cut to 32 bits would be a different one: the kernel must see all of it.
    with pytest.raises(OSError) as caught:
        libc.syscall(libc.nr("openat"), -100, 0xFFFF_8000_0000_0000, os.O_RDONLY)
    assert caught.value.errno == errno.EFAULT


def test_an_unknown_number_has_a_name_too() -> None:
    assert libc.name_of(99999) == "syscall 99999"
    assert libc.name_of(libc.nr("mount")) == "mount"
