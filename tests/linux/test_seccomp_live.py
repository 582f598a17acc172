"""The filter installed in a real process: it answers as compiled, and real programs do not notice it.

Every probe has its control: without the filter the same call reaches the kernel and fails there, or succeeds.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kooi.contract.errors import SetupFailed
from kooi.linux import bpf, caps, libc, seccomp
from kooi.linux.seccomp_numbers import numbers
from tests.linux.children import errno_of, in_child
from tests.linux.filter_matrix import SETS, answer

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="tried on x86_64 only")
X86 = numbers("x86_64")
ALL_ONES = 2**64 - 1


def confine(*restrictions: str) -> None:
    libc.syscall(libc.nr("prctl"), 38, 1, 0, 0, 0)
    seccomp.install(seccomp.program(*restrictions))


# name: (arguments that cannot work, the filter's answer)
PROBES = {
    "io_uring_setup": ((0, 0), errno.ENOSYS),
    "keyctl": ((ALL_ONES, 0), errno.ENOSYS),
    "add_key": ((0, 0, 0, 0, 0), errno.ENOSYS),
    "bpf": ((ALL_ONES, 0, 0), errno.ENOSYS),
    "userfaultfd": ((ALL_ONES,), errno.ENOSYS),
    "perf_event_open": ((0, 0, 0, 0, 0), errno.ENOSYS),
    "ptrace": ((ALL_ONES, ALL_ONES, 0, 0), errno.ENOSYS),
    "process_vm_readv": ((ALL_ONES, 0, 1, 0, 1, 0), errno.ENOSYS),
    "pidfd_getfd": ((ALL_ONES, 0, 0), errno.ENOSYS),
    "unshare": ((ALL_ONES,), errno.ENOSYS),
    "setns": ((ALL_ONES, 0), errno.ENOSYS),
    "mount": ((0, 0, 0, 0, 0), errno.ENOSYS),
    "umount2": ((0, 0), errno.ENOSYS),
    "pivot_root": ((0, 0), errno.ENOSYS),
    "fsopen": ((0, ALL_ONES), errno.ENOSYS),
    "open_tree": ((ALL_ONES, 0, 0), errno.ENOSYS),
    "clone3": ((0, 0), errno.ENOSYS),
    "clone": ((0x10000000 | 0x200,), errno.EPERM),  # NEWUSER with FS: the kernel itself calls it invalid
    "memfd_secret": ((ALL_ONES,), errno.ENOSYS),
    "seccomp": ((ALL_ONES, 0, 0), errno.ENOSYS),
    "landlock_create_ruleset": ((0, 0, 0), errno.ENOSYS),
    "shmget": ((0, 0, 0), errno.ENOSYS),
    "mq_open": ((0, 0, 0, 0), errno.ENOSYS),
    "name_to_handle_at": ((ALL_ONES, 0, 0, 0, 0), errno.ENOSYS),
    "ioctl": ((ALL_ONES, 0x5412, 0), errno.ENOTTY),
    "prlimit64": ((ALL_ONES, 7, 0, 0), errno.EPERM),
    "getxattr": ((0, 0, 0, 0), errno.EOPNOTSUPP),
}
REACHES_KERNEL_AS_ENOSYS = {"memfd_secret"}  # off by default on some kernels


def probe(confined: bool) -> dict[str, int]:
    if confined:
        confine()
    return {name: -libc.try_syscall(X86[name], *arguments) for name, (arguments, _) in PROBES.items()}


def test_dangerous_calls_are_refused_with_the_right_errno() -> None:
    assert in_child(lambda: probe(True)) == {name: expected for name, (_, expected) in PROBES.items()}


def test_the_same_calls_reach_the_kernel_without_the_filter() -> None:
    found = in_child(lambda: probe(False))
    for name, (_, refused) in PROBES.items():
        if not (name in REACHES_KERNEL_AS_ENOSYS and found[name] == errno.ENOSYS):
            assert found[name] > 0 and found[name] != refused, (name, found[name])


SOCKETS = {
    "vsock": (40, 1, 0, errno.EAFNOSUPPORT),
    "kernel crypto": (38, 5, 0, errno.EAFNOSUPPORT),
    "packet": (17, 3, 0, errno.EAFNOSUPPORT),
    "multipath tcp": (2, 1, 262, errno.EPROTONOSUPPORT),
    "raw": (2, 3, 1, errno.EPERM),
    "netfilter": (16, 3, 12, errno.EPROTONOSUPPORT),
}


def create(family: int, kind: int, protocol: int) -> int:
    fd = libc.try_syscall(X86["socket"], family, kind, protocol)
    if fd >= 0:
        os.close(fd)
        return 0
    return -fd


def sockets(confined: bool) -> dict[str, int]:
    if confined:
        confine()
    return {name: create(*kind[:3]) for name, kind in SOCKETS.items()}


def test_socket_families_are_refused_at_creation() -> None:
    assert in_child(lambda: sockets(True)) == {name: kind[3] for name, kind in SOCKETS.items()}


def test_the_same_sockets_can_be_created_without_the_filter() -> None:
    found = in_child(lambda: sockets(False))
    allowed = {name for name, code in found.items() if code == 0}
    # An ordinary user gets no packet or raw socket, and a kernel may lack vsock or the crypto sockets.
    assert "multipath tcp" in allowed and "netfilter" in allowed
    assert os.geteuid() != 0 or "raw" in allowed


# uretprobe and uprobe: since 6.14 the kernel lets them past every filter; it kills a caller outside of its trampoline.
PAST_EVERY_FILTER = {335, 336}


@pytest.mark.parametrize("restrictions", SETS, ids=lambda names: " ".join(names) or "none")
def test_every_refused_number_is_refused_by_the_kernel_as_compiled(restrictions: tuple[str, ...]) -> None:
    """Every number below 600 that the interpreter calls refused, made for real: none of them is carried out."""
    instructions = bpf.disassemble(seccomp.program(*restrictions).code)
    expected = {number: answer(instructions, number, (ALL_ONES,) * 6, bpf.ARCH_X86_64) for number in range(600)}
    refused = {number: code for number, code in expected.items() if code and number not in PAST_EVERY_FILTER}

    def make_them() -> list[list[int]]:
        caps.set_caps()
        confine(*restrictions)
        return [[n, -libc.try_syscall(n, *[ALL_ONES] * 6)] for n in refused]

    assert len(refused) > 400
    assert dict(in_child(make_them)) == refused


def test_calls_of_other_abis_are_refused() -> None:
    def x32() -> list[int]:
        confine()
        return [-libc.try_syscall(bpf.X32_BIT | number) for number in (39, 102, 520)]

    assert in_child(x32) == [errno.ENOSYS] * 3


INT80 = bytes.fromhex("53b814000000cd805bc3")  # push rbx; mov eax, 20 (getpid of i386); int 0x80; pop rbx; ret


def test_the_32_bit_gate_is_refused() -> None:
    def through_the_gate(confined: bool) -> int:
        import mmap

        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(INT80)
        function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        if confined:
            confine()
        return int(function())

    def native() -> bool:
        return through_the_gate(False) == os.getpid()

    try:
        has_gate = in_child(native)
    except AssertionError:
        pytest.skip("this kernel has no 32-bit gate")
    assert has_gate
    assert in_child(lambda: through_the_gate(True)) == -errno.ENOSYS


def test_a_filter_without_no_new_privs_is_refused_by_us() -> None:
    """Root could install one; then a set-uid program would run with it."""

    def install() -> str:
        try:
            seccomp.install(seccomp.program())
        except SetupFailed as error:
            return str(error)
        return "installed"

    assert "no_new_privs" in in_child(install)


def test_a_second_filter_can_neither_be_added_nor_the_first_removed() -> None:
    def again() -> list[int]:
        confine()
        return [errno_of(seccomp.install, seccomp.program()), -libc.try_syscall(X86["prctl"], 22, 2, 0)]

    assert in_child(again) == [errno.ENOSYS, errno.EINVAL]


@pytest.mark.skipif(os.geteuid() != 0, reason="reading a filter back needs CAP_SYS_ADMIN")
def test_the_installed_filter_equals_the_compiled_one() -> None:
    attach, detach, get_filter = 16, 17, 0x420C
    ptrace = libc.nr("ptrace")
    child = os.fork()
    if child == 0:
        confine("memfd")
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        os.waitpid(child, os.WUNTRACED)
        libc.syscall(ptrace, attach, child, 0, 0)
        os.waitpid(child, 0)
        length = libc.syscall(ptrace, get_filter, child, 0, 0)
        buffer = ctypes.create_string_buffer(length * 8)
        libc.syscall(ptrace, get_filter, child, 0, buffer)
        assert buffer.raw == seccomp.program("memfd").code
        assert libc.try_syscall(ptrace, get_filter, child, 1, 0) == -errno.ENOENT  # there is exactly one
        libc.syscall(ptrace, detach, child, 0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_restrictions_bind_for_real() -> None:
    def confined() -> list[int]:
        confine("memfd", "inet", "unix", "strangers")
        return [
            errno_of(os.memfd_create, "x"),
            errno_of(socket.socket, socket.AF_INET),
            errno_of(socket.socket, socket.AF_UNIX),
            errno_of(socket.socketpair),
            errno_of(os.setpriority, os.PRIO_PROCESS, os.getppid(), 5),
            errno_of(os.setpriority, os.PRIO_PROCESS, 0, 1),
        ]

    expected = [errno.ENOSYS, errno.EAFNOSUPPORT, errno.EACCES, 0, errno.EPERM, 0]
    assert in_child(confined) == expected


WORKLOADS = sorted((Path(__file__).parent / "workloads").glob("*"))


def run(argv: list[str], folder: Path, confined: bool) -> tuple[int, str, str]:
    folder.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    if "PYENV_ROOT" in os.environ:
        environment["PYENV_ROOT"] = os.environ["PYENV_ROOT"]
    done = subprocess.run(
        argv,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=confine if confined else None,
    )
    return done.returncode, done.stdout, done.stderr.replace(str(folder), "HERE")


def compare(argv: list[str], tmp_path: Path) -> None:
    native, confined = run(argv, tmp_path / "native", False), run(argv, tmp_path / "confined", True)
    assert native[0] in (0, -signal.SIGTERM) and native[1], f"the workload itself does not run: {native}"
    assert confined == native


@pytest.mark.parametrize("script", WORKLOADS, ids=lambda script: script.name)
def test_real_programs_run_as_without_the_filter(script: Path, tmp_path: Path) -> None:
    """A workload is a Python or shell script; a first line `# needs: a b` names the programs it cannot do without."""
    needs = re.match(r"# needs: (.*)", script.read_text())
    absent = [tool for tool in (needs[1].split() if needs else ()) if shutil.which(tool) is None]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    compare([sys.executable if script.suffix == ".py" else "bash", str(script)], tmp_path)


def test_the_clock_and_the_random_numbers_work_where_the_fast_paths_are_missing() -> None:
    """The calls that the vDSO falls back to when a host's TSC is unusable, made directly."""

    def direct() -> list[int]:
        confine()
        buffer = ctypes.create_string_buffer(64)
        return [libc.try_syscall(X86[name], *arguments) for name, arguments in (
            ("gettimeofday", (buffer, 0)),
            ("clock_gettime", (time.CLOCK_REALTIME, buffer)),
            ("clock_getres", (time.CLOCK_REALTIME, buffer)),
            ("getrandom", (buffer, 8, 0)),
            ("nanosleep", (struct.pack("=qq", 0, 1000), 0)),
        )]  # fmt: skip

    assert in_child(direct) == [0, 0, 0, 8, 0]
