"""The seccomp filter against its policy, against the golden matrix, and against a list written by hand."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kooi.contract.errors import InvalidRequest, Unsupported
from kooi.linux import bpf, seccomp, seccomp_policy
from kooi.linux.seccomp_numbers import numbers
from kooi.linux.seccomp_policy import Line, policy
from tests.linux.filter_matrix import GOLDEN, SETS, allowed, answer, compute_all, growth, selected_arguments

X86 = numbers("x86_64")
EVERY_SET = [frozenset(c) for n in range(5) for c in itertools.combinations(sorted(seccomp_policy.RESTRICTIONS), n)]

# Kernel calls that could widen what a box reaches. None may be allowed, whatever the arguments.
NEVER = """
unshare setns mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
add_key request_key keyctl io_uring_setup io_uring_enter io_uring_register io_setup io_submit bpf perf_event_open
userfaultfd ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd kcmp clone3
memfd_secret name_to_handle_at open_by_handle_at init_module finit_module delete_module kexec_load kexec_file_load
reboot swapon swapoff acct quotactl quotactl_fd syslog iopl ioperm modify_ldt personality uselib settimeofday
clock_settime clock_adjtime adjtimex sethostname setdomainname setuid setgid setreuid setregid setgroups setfsuid
setfsgid fanotify_init fanotify_mark lookup_dcookie move_pages migrate_pages vmsplice
shmget shmat shmctl semget semop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink mknod seccomp
landlock_create_ruleset landlock_add_rule landlock_restrict_self lsm_set_self_attr statmount listmount open_tree_attr
vhangup _sysctl nfsservctl
inotify_init inotify_init1 inotify_add_watch
""".split()


def reference(lines: tuple[Line, ...], arguments: tuple[int, ...]) -> int:
    """Read a rule the plain way, with none of the compiler's code."""
    for line in lines:
        for test in line.tests:
            value = arguments[test.argument]
            low_is_in = (value & 0xFFFFFFFF & test.mask) in test.values
            is_in = low_is_in and (not test.wide or value < 2**32)
            if is_in == test.negated:
                break
        else:
            return line.answer
    return errno.ENOSYS


def compiled(restrictions: frozenset[str], machine: str = "x86_64") -> list[bpf.Instruction]:
    return bpf.disassemble(seccomp.compile_program(restrictions, machine).code)


def answer_of(name: str, *arguments: int, restrictions: frozenset[str] = frozenset()) -> int:
    return answer(compiled(restrictions), X86[name], arguments, bpf.ARCH_X86_64)


def test_the_budget_of_operations_and_names_holds() -> None:
    names = seccomp_policy.allowed_names()
    assert len(seccomp_policy.operations()) <= 150
    assert len(names) == len(set(names)) <= 170
    assert set(names) <= set(X86)
    assert not set(names) & set(seccomp_policy.REFUSALS)
    assert set(seccomp_policy.RULES) <= set(names)


def test_nothing_dangerous_is_on_the_list() -> None:
    assert set(NEVER) <= set(X86)
    assert not set(NEVER) & set(seccomp_policy.allowed_names())
    for name in NEVER:
        assert answer_of(name) == errno.ENOSYS


@pytest.mark.parametrize(
    ("path", "machine"),
    [("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "x86_64"), ("/usr/include/asm-generic/unistd.h", "aarch64")],
)
def test_the_numbers_equal_the_kernel_headers(path: str, machine: str) -> None:
    if not Path(path).exists():
        pytest.skip("linux-libc-dev is not installed")
    ours = numbers(machine)
    for name, number in re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(path).read_text(), re.M):
        name = {"fstatat": "newfstatat"}.get(name, name)
        if name in ours:
            assert ours[name] == int(number), name
    assert len(set(ours.values())) == len(ours)


def test_the_golden_matrix_is_met_and_nothing_grew() -> None:
    """To change it on purpose: `python -m tests.linux.filter_matrix`, with --grow when more shall be allowed."""
    golden, now = json.loads(GOLDEN.read_text()), compute_all()
    assert growth(golden, now) == [], "the filter allows more than the golden matrix"
    assert now == golden, "the filter differs from the golden matrix"


def test_the_matrix_would_show_growth() -> None:
    """The control: one more number, and one more argument, are both noticed."""
    golden = json.loads(GOLDEN.read_text())
    grown = json.loads(GOLDEN.read_text())
    grown["all"]["x86-64"][-1] = [440, 0]
    grown["all"]["arguments"]["ioctl"]["0"] += " 0,5412"
    found = growth(golden, grown)
    assert "all: x86-64 440" in found and "all: ioctl(0,5412)" in found and len(allowed(golden["all"])) > 300


@pytest.mark.parametrize("restrictions", EVERY_SET, ids=lambda names: " ".join(sorted(names)) or "none")
def test_the_filter_equals_the_policy_for_every_call_and_looked_at_argument(restrictions: frozenset[str]) -> None:
    rules, instructions = policy(restrictions), compiled(restrictions)
    by_number = {X86[name]: lines for name, lines in rules.items()}
    for number in [*range(700), 0xFFFFFFFF, *(bpf.X32_BIT | n for n in range(700))]:
        expected = reference(by_number[number], (0,) * 6) if number in by_number else errno.ENOSYS
        assert answer(instructions, number, (), bpf.ARCH_X86_64) == expected, number
    for name, lines in rules.items():
        for vector in selected_arguments(rules, name):
            assert answer(instructions, X86[name], vector, bpf.ARCH_X86_64) == reference(lines, vector), (name, vector)


@pytest.mark.parametrize("name", sorted(seccomp_policy.RULES))
def test_every_line_of_a_rule_decides_something(name: str) -> None:
    """Allowed arguments are allowed, every constrained one that is changed is refused; no line is dead."""
    lines = policy()[name]
    seen = {answer_of(name, *vector) for vector in selected_arguments(policy(), name)}
    assert seen == {line.answer for line in lines} and 0 in seen and len(seen) > 1


ARGUMENT = st.one_of(
    st.sampled_from([0, 1, 2, 3, 10, 16, 0x5401, 0x5412, 0x40000, 0x7E020000, 0x80045430, 2**32, 2**64 - 1]),
    st.integers(0, 2**64 - 1),
)


@settings(max_examples=400, deadline=None, database=None)
@given(
    number=st.one_of(st.sampled_from(sorted(X86.values())), st.integers(0, 2**32 - 1)),
    arguments=st.tuples(*[ARGUMENT] * 6),
    arch=st.sampled_from([bpf.ARCH_X86_64, bpf.ARCH_X86_64, bpf.ARCH_I386, bpf.ARCH_AARCH64, 0]),
    restrictions=st.sampled_from(EVERY_SET),
)
def test_the_filter_equals_the_policy_anywhere(
    number: int, arguments: tuple[int, ...], arch: int, restrictions: frozenset[str]
) -> None:
    lines = {X86[name]: lines for name, lines in policy(restrictions).items()}.get(number)
    expected = reference(lines, arguments) if lines and arch == bpf.ARCH_X86_64 else errno.ENOSYS
    assert answer(compiled(restrictions), number, arguments, arch) == expected


@pytest.mark.parametrize("restrictions", EVERY_SET, ids=lambda names: " ".join(sorted(names)) or "none")
def test_a_restriction_only_takes_away(restrictions: frozenset[str]) -> None:
    rules = policy()
    for name in rules:
        for vector in selected_arguments(policy(restrictions), name):
            if answer_of(name, *vector, restrictions=restrictions) == 0:
                assert answer_of(name, *vector) == 0, (name, vector)


NEWUSER, NEWNET, NEWPID, NEWNS = 0x10000000, 0x40000000, 0x20000000, 0x20000
THREAD = 0x3D0F00


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("clone", (THREAD,), 0),
        ("clone", (17,), 0),
        ("clone", (0x4111,), 0),  # CLONE_VM, CLONE_VFORK, SIGCHLD
        ("clone", (NEWUSER | 17,), errno.EPERM),
        ("clone", (NEWNET | 17,), errno.EPERM),
        ("clone", (NEWPID | 17,), errno.EPERM),
        ("clone", (NEWNS | 17,), errno.EPERM),
        ("clone", (1 << 32 | 17,), errno.EPERM),
        ("clone3", (0, 0), errno.ENOSYS),
        ("ioctl", (0, 0x5412), errno.ENOTTY),  # TIOCSTI
        ("ioctl", (0, 0x1_0000_5412), errno.ENOTTY),
        ("ioctl", (0, 0x541C), errno.ENOTTY),  # TIOCLINUX
        ("ioctl", (0, 0x5423), errno.ENOTTY),  # TIOCSETD
        ("ioctl", (0, 0x40049409), errno.ENOTTY),  # FICLONE
        ("ioctl", (0, 0x8912), errno.ENOTTY),  # SIOCGIFCONF
        ("ioctl", (0, 0x5401), 0),
        ("ioctl", (0, 0xFFFF_FFFF_8004_5430), 0),  # as a C library with a signed request passes TIOCGPTN
        ("socket", (1, 0x80001, 0), 0),
        ("socket", (2, 1, 6), 0),
        ("socket", (10, 0x802, 17), 0),
        ("socket", (2, 1, 262), errno.EPROTONOSUPPORT),  # MPTCP
        ("socket", (2, 1, 132), errno.EPROTONOSUPPORT),  # SCTP
        ("socket", (2, 2, 1), errno.EPROTONOSUPPORT),  # ICMP
        ("socket", (2, 3, 1), errno.EPERM),  # raw
        ("socket", (16, 3, 0), 0),  # routing netlink, to list interfaces
        ("socket", (16, 3, 12), errno.EPROTONOSUPPORT),  # netfilter netlink
        ("socket", (17, 3, 0), errno.EAFNOSUPPORT),  # packet
        ("socket", (38, 5, 0), errno.EAFNOSUPPORT),  # kernel crypto
        ("socket", (40, 1, 0), errno.EAFNOSUPPORT),  # vsock
        ("socketpair", (1, 1, 0), 0),
        ("socketpair", (2, 1, 0), errno.EAFNOSUPPORT),
        ("setsockopt", (3, 1, 9), 0),
        ("setsockopt", (3, 1, 26), errno.ENOPROTOOPT),  # SO_ATTACH_FILTER
        ("setsockopt", (3, 1, 50), errno.ENOPROTOOPT),  # SO_ATTACH_BPF
        ("setsockopt", (3, 6, 31), errno.ENOPROTOOPT),  # TCP_ULP
        ("setsockopt", (3, 6, 26), 0),
        ("prlimit64", (0, 7, 0, 1), 0),
        ("prlimit64", (1, 7, 0, 1), errno.EPERM),
        ("prlimit64", (0, 4, 0, 1), 0),
        ("prlimit64", (0, 4, 0x7FFF_0000_0000, 0), errno.EINVAL),  # the core limit stays
        ("prctl", (22, 2, 0), errno.EINVAL),  # PR_SET_SECCOMP
        ("prctl", (4, 1), 0),
        ("arch_prctl", (0x1002, 0), 0),
        ("arch_prctl", (0x1012, 0), errno.EINVAL),
        ("mmap", (0, 4096, 3, 0x22), 0),
        ("mmap", (0, 4096, 3, 0x40022), errno.ENOMEM),  # huge pages
        ("memfd_create", (0, 1), 0),
        ("memfd_create", (0, 5), errno.EINVAL),
        ("madvise", (0, 4096, 4), 0),
        ("madvise", (0, 4096, 12), errno.EINVAL),
        ("sendmsg", (3, 0, 0x4000), 0),
        ("sendmsg", (3, 0, 0x4001), errno.EOPNOTSUPP),
        ("getxattr", (), errno.EOPNOTSUPP),
        ("statx", (), 0),
        ("faccessat2", (), 0),
        ("copy_file_range", (), errno.ENOSYS),
        ("kill", (1, 9), 0),
    ],
)
def test_answers_written_by_hand(name: str, arguments: tuple[int, ...], expected: int) -> None:
    assert answer_of(name, *arguments) == expected


@pytest.mark.parametrize(
    ("restriction", "name", "arguments", "expected"),
    [
        ("memfd", "memfd_create", (0, 1), errno.ENOSYS),
        ("inet", "socket", (2, 1, 0), errno.EAFNOSUPPORT),
        ("inet", "socket", (10, 1, 0), errno.EAFNOSUPPORT),
        ("inet", "socket", (16, 3, 0), errno.EAFNOSUPPORT),
        ("inet", "socket", (1, 1, 0), 0),
        ("unix", "socket", (1, 1, 0), errno.EACCES),
        ("unix", "socket", (2, 1, 0), 0),
        ("unix", "socketpair", (1, 1, 0), 0),
        ("strangers", "setpriority", (0, 0, 5), 0),
        ("strangers", "setpriority", (0, 77, 5), errno.EPERM),
        ("strangers", "setpriority", (2, 0, 5), errno.EPERM),
        ("strangers", "sched_setaffinity", (0, 8), 0),
        ("strangers", "sched_setaffinity", (77, 8), errno.EPERM),
        ("strangers", "sched_setscheduler", (77, 0), 0),
        ("strangers", "sched_setscheduler", (77, 5), errno.EPERM),
        ("strangers", "sched_setscheduler", (0, 5), 0),
        ("strangers", "sched_setscheduler", (0, 1), errno.EPERM),
    ],
)
def test_restrictions_by_hand(restriction: str, name: str, arguments: tuple[int, ...], expected: int) -> None:
    assert answer_of(name, *arguments, restrictions=frozenset([restriction])) == expected


@pytest.mark.parametrize("arch", [bpf.ARCH_I386, bpf.ARCH_AARCH64, 0])
def test_other_abis_are_refused_whole(arch: int) -> None:
    instructions = compiled(frozenset())
    assert {answer(instructions, number, (), arch) for number in range(1000)} == {errno.ENOSYS}


def test_the_aarch64_filter_knows_its_own_abi_and_numbers() -> None:
    instructions, known = compiled(frozenset(), "aarch64"), numbers("aarch64")
    assert answer(instructions, known["openat"], (), bpf.ARCH_AARCH64) == 0
    assert answer(instructions, known["faccessat"], (), bpf.ARCH_AARCH64) == 0
    assert answer(instructions, known["clone"], (NEWUSER,), bpf.ARCH_AARCH64) == errno.EPERM
    assert answer(instructions, known["openat"], (), bpf.ARCH_X86_64) == errno.ENOSYS
    for name in NEVER:
        if name in known:
            assert answer(instructions, known[name], (), bpf.ARCH_AARCH64) == errno.ENOSYS


def test_programs_are_cached_and_within_the_kernels_size() -> None:
    for restrictions in SETS:
        first = seccomp.program(*restrictions)
        assert first is seccomp.program(*reversed(restrictions))
        assert 100 < first.length < 400
        assert all(len(instruction) == 4 for instruction in bpf.disassemble(first.code))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        seccomp.program("everything")
    with pytest.raises(Unsupported):
        seccomp.compile_program(frozenset(), "riscv64")


def test_an_agent_may_bind_its_children_closer_and_nothing_else() -> None:
    agent = bpf.disassemble(seccomp.agent_program("inet", "unix", "strangers").code)
    code = bpf.disassemble(seccomp.program("inet", "unix", "strangers").code)
    arch = seccomp._ARCHES[os.uname().machine]
    more = {
        name
        for name, number in numbers(os.uname().machine).items()
        if answer(agent, number, (1, 0, 0, 0, 0, 0), arch) == 0 != answer(code, number, (1, 0, 0, 0, 0, 0), arch)
    }
    assert more == {"landlock_restrict_self", "seccomp"}
    # Only to install a filter, without flags (a listener would be one), and only to restrict itself, without flags.
    seccomp_number, restrict = (numbers(os.uname().machine)[name] for name in ("seccomp", "landlock_restrict_self"))
    assert answer(agent, seccomp_number, (1, 8, 0, 0, 0, 0), arch) == errno.EINVAL
    assert answer(agent, seccomp_number, (0, 0, 0, 0, 0, 0), arch) == errno.EINVAL
    assert answer(agent, restrict, (3, 1, 0, 0, 0, 0), arch) == errno.EINVAL


def test_a_zygote_without_a_cell_makes_no_world_and_no_socket() -> None:
    program = bpf.disassemble(seccomp.zygote_program("x86_64", in_cell=False).code)

    def open_(name: str, *arguments: int) -> bool:
        return answer(program, X86[name], (*arguments, *(0,) * (6 - len(arguments))), bpf.ARCH_X86_64) == 0

    refused = "unshare mount umount2 pivot_root chroot setns ptrace keyctl bpf shmget msgget semget mq_open clone3"
    assert not [name for name in refused.split() if open_(name)]
    for new in (0x10000000, 0x20000000, 0x40000000, 0x00020000):
        assert not open_("clone", new | 17)
    # How it forks blanks (with a pidfd), and what they take.
    assert open_("clone", 0x1000 | 17) and open_("prctl", 38, 1) and open_("seccomp", 1) and open_("socketpair", 1, 5)
    assert not any(open_("socket", family, 1) for family in (1, 2, 10, 16, 40))
    assert open_("socketpair", 1, 1) and not open_("sched_setaffinity", 5)
