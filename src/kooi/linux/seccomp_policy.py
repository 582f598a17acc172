"""Which kernel calls a box may make, as data.

`OPERATIONS` lists what is allowed; names joined by `/` are old and new twins of one operation. None of it can create a
namespace, mount, key, ring or BPF program, or trace another process. `RULES` narrows some of them by argument:
ordered lines, of which the first whose tests all hold gives the answer. `REFUSALS` gives the errno of refused calls
that programs try and for which the default, ENOSYS, is the wrong word. `RESTRICTIONS` takes more away, by name.

Arguments that the kernel itself cuts to 32 bits are compared by their low half, exactly as the kernel will read
them; `wide` tests compare both halves.
"""

from __future__ import annotations

import errno
from typing import Dict, FrozenSet, Mapping, NamedTuple, Tuple

from kooi.contract.errors import InvalidRequest

# The budget: 150 operations, 170 names. `open lstat pipe fork nanosleep` are there for C libraries and runtimes that
# use nothing newer, `gettimeofday` for hosts whose clock cannot be read without a call. No room was left for
# rt_sigpending (signal.sigpending), tkill (raise in musl), timerfd_*, select and sched_get_priority_*.
OPERATIONS = """
read write readv writev pread64 pwrite64 preadv2 pwritev2 lseek sendfile
open/creat/openat/openat2 close close_range dup dup2/dup3 fcntl ioctl flock fsync fdatasync fadvise64 fallocate
stat/lstat/newfstatat/statx fstat access/faccessat2 readlink/readlinkat getdents64 getcwd chdir fchdir
mkdir/mkdirat rmdir unlink/unlinkat rename/renameat/renameat2 link/linkat symlink/symlinkat mknodat umask
chmod/fchmodat fchmod chown/lchown/fchownat fchown truncate ftruncate utimensat statfs fstatfs
poll/ppoll pselect6 epoll_create1 epoll_ctl epoll_wait/epoll_pwait eventfd2 signalfd4 pipe/pipe2 memfd_create
brk mmap munmap mprotect mremap madvise msync
clone/fork/vfork execve exit exit_group wait4 waitid set_tid_address futex restart_syscall arch_prctl prctl
kill tgkill pidfd_open rt_sigaction rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait sigaltstack pause
getpid getppid gettid getpgrp/getpgid setpgid getsid setsid
getuid geteuid getgid getegid getgroups getresuid getresgid setresuid setresgid capset
nanosleep/clock_nanosleep gettimeofday/clock_gettime clock_getres alarm getitimer setitimer times
timer_create timer_settime timer_delete
uname sysinfo getrusage prlimit64 getrandom getpriority setpriority
sched_yield sched_getparam sched_getscheduler sched_setscheduler sched_getaffinity sched_setaffinity
socket socketpair connect accept/accept4 bind listen shutdown getsockname getpeername getsockopt setsockopt
sendto sendmsg recvfrom recvmsg
"""

# The newer architectures have no older twin, and the C library reaches for this one.
MORE = {"aarch64": ("faccessat",)}


class Test(NamedTuple):
    """Holds when `argument` (from 0), its low half masked, is one of `values`; when negated, if it is not."""

    argument: int
    values: FrozenSet[int]
    mask: int = 0xFFFFFFFF
    wide: bool = False
    negated: bool = False


class Line(NamedTuple):
    """When every test holds, the answer: 0 allows the call, else an errno."""

    answer: int
    tests: Tuple[Test, ...] = ()


Policy = Mapping[str, Tuple[Line, ...]]


def _is(argument: int, *values: int, mask: int = 0xFFFFFFFF, wide: bool = False) -> Test:
    return Test(argument, frozenset(values), mask, wide)


def _not(argument: int, *values: int, wide: bool = False) -> Test:
    return Test(argument, frozenset(values), wide=wide, negated=True)


def _only(answer: int, *tests: Test) -> Tuple[Line, ...]:
    return Line(0, tests), Line(answer)


def _but(answer: int, *tests: Test) -> Tuple[Line, ...]:
    return Line(answer, tests), Line(0)


_NAMESPACES = 0x7E020000
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_TYPE = 0x0F
_TTY = (0x5401, 0x5402, 0x5403, 0x5404, 0x5409, 0x540A, 0x540B, 0x540E, 0x540F, 0x5410, 0x5411, 0x5413, 0x5414)
_PTY = (0x5422, 0x5429, 0x5441, 0x80045430, 0x40045431, 0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D)
_ANY_FILE = (0x541B, 0x5421, 0x5450, 0x5451, 0x5452)
_RLIMIT_CORE = 4

RULES: Policy = {
    # Terminal and descriptor requests; so no TIOCSTI, TIOCLINUX, TIOCSETD, FICLONE, SIOC*, nor any device's own.
    "ioctl": _only(errno.ENOTTY, _is(1, *_TTY, *_PTY, *_ANY_FILE)),
    # No F_NOTIFY, which is inotify by signals, and no leases, which make others wait for their own files.
    "fcntl": _only(errno.EINVAL, _is(1, *range(12), 15, 16, 36, 37, 38, 1027, *range(1030, 1035))),
    "clone": _only(errno.EPERM, _is(0, 0, mask=_NAMESPACES, wide=True)),
    # TCP and UDP (no MPTCP, SCTP, ICMP, raw), unix, and routing netlink to read the interfaces.
    "socket": (
        Line(0, (_is(0, _UNIX), _is(2, 0, 1))),
        Line(0, (_is(0, _INET, _INET6), _is(2, 0, 6, 17), _is(1, 1, 2, mask=_TYPE))),
        Line(0, (_is(0, _NETLINK), _is(2, 0), _is(1, 2, 3, mask=_TYPE))),
        Line(errno.EPERM, (_is(0, _INET, _INET6), _is(1, 3, mask=_TYPE))),
        Line(errno.EPROTONOSUPPORT, (_is(0, _UNIX, _INET, _INET6, _NETLINK),)),
        Line(errno.EAFNOSUPPORT),
    ),
    "socketpair": _only(errno.EAFNOSUPPORT, _is(0, _UNIX)),
    # SO_ATTACH_FILTER and its kin put a BPF program into the kernel; TCP_ULP loads protocol modules.
    "setsockopt": (
        Line(errno.ENOPROTOOPT, (_is(1, 1), _is(2, 26, 50, 51, 52))),
        Line(errno.ENOPROTOOPT, (_is(1, 6), _is(2, 31))),
        Line(0),
    ),
    # Out-of-band data on unix sockets has been a way out of other sandboxes (CVE-2025-38236).
    "sendto": _but(errno.EOPNOTSUPP, _is(3, 1, mask=1)),
    "sendmsg": _but(errno.EOPNOTSUPP, _is(2, 1, mask=1)),
    "prctl": _only(errno.EINVAL, _is(0, 1, 2, 3, 4, 15, 16, 23, 36, 37, 38, 39, 0x53564D41)),
    "arch_prctl": _only(errno.EINVAL, _is(0, 0x1002, 0x1003, 0x1021, 0x1022, 0x1023, 0x3001)),
    # Itself only, for it reaches every process of the same uid; the core limit stays at what drops every dump.
    "prlimit64": (
        Line(errno.EPERM, (_not(0, 0),)),
        Line(errno.EINVAL, (_is(1, _RLIMIT_CORE), _not(2, 0, wide=True))),
        Line(0),
    ),
    "sched_setscheduler": _only(errno.EPERM, _is(1, 0, 3, 5)),
    # Huge pages are outside what a memory limit counts; merged pages tell one box what another has in memory.
    "mmap": _but(errno.ENOMEM, _is(3, 0x40000, mask=0x40000)),
    "memfd_create": _but(errno.EINVAL, _is(1, 4, mask=4)),
    "madvise": _but(errno.EINVAL, _is(2, 12)),
}

_XATTR = (
    "setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr "
    "removexattr lremovexattr fremovexattr"
)
REFUSALS: Mapping[str, int] = dict.fromkeys(_XATTR.split(), errno.EOPNOTSUPP)

# restriction: lines put before a call's own; they only refuse, so a restriction can never allow anything
RESTRICTIONS: Mapping[str, Policy] = {
    # Where nothing counts a sandbox's memory but a watchdog.
    "memfd": {
        "memfd_create": (Line(errno.ENOSYS),),
        # It counts sockets, each for as much as one holds whose buffers nobody enlarged.
        "setsockopt": (Line(errno.ENOPROTOOPT, (_is(1, 1), _is(2, 7, 8, 32, 33))),),
    },
    # Where there is no network namespace: no sockets but unix ones.
    "inet": {"socket": (Line(errno.EAFNOSUPPORT, (_is(0, _INET, _INET6, _NETLINK),)),)},
    # Where pathname sockets of the host are in reach: only inherited sockets and pairs.
    "unix": {"socket": (Line(errno.EACCES, (_is(0, _UNIX),)),)},
    # Where the processes of others are in reach by number.
    "strangers": {
        "setpriority": (Line(errno.EPERM, (_not(0, 0),)), Line(errno.EPERM, (_not(1, 0),))),
        "sched_setaffinity": (Line(errno.EPERM, (_not(0, 0),)),),
        "sched_setscheduler": (Line(errno.EPERM, (_not(0, 0), _not(1, 0))),),
    },
}

# What neither a zygote nor what becomes of it ever needs: it has no allow list, for it makes namespaces and mounts and
# imports whatever an image holds. Sockets are narrowed as in a box: vsock, for one, knows no network namespace.
ZYGOTE_REFUSED = """
add_key request_key keyctl bpf perf_event_open io_uring_setup io_uring_enter io_uring_register userfaultfd
ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp setns name_to_handle_at open_by_handle_at
fanotify_init fanotify_mark inotify_init inotify_init1 inotify_add_watch init_module finit_module delete_module
kexec_load kexec_file_load reboot swapon swapoff acct quotactl syslog iopl ioperm modify_ldt vmsplice
""".split()

# What one needs least of all that has no cell around it, and makes none: the world that it is in is the host's.
OPEN_ZYGOTE_REFUSED = """
unshare mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr mknod
sethostname setdomainname shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl
mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify personality vhangup
""".split()

# What an agent does to its children, besides what they may do: bind them closer than itself.
AGENT_MORE: Policy = {
    "landlock_restrict_self": (Line(0, (_is(1, 0),)), Line(errno.EINVAL)),
    "seccomp": (Line(0, (_is(0, 1), _is(1, 0))), Line(errno.EINVAL)),
}


def zygote_policy(in_cell: bool = True) -> Policy:
    """Return the calls that a zygote is refused or has narrowed; all others it may make."""
    found = {name: RULES[name] for name in ("socket", "setsockopt", "sendto", "sendmsg", "fcntl")}
    refused = list(ZYGOTE_REFUSED)
    if not in_cell:
        refused += OPEN_ZYGOTE_REFUSED
        found["clone"], found["clone3"] = RULES["clone"], (Line(errno.ENOSYS),)
        for restriction in ("inet", "unix", "strangers"):
            for name, lines in RESTRICTIONS[restriction].items():
                found[name] = lines + found.get(name, (Line(0),))
    return {**found, **{name: (Line(errno.EPERM),) for name in refused}}


def policy(restrictions: FrozenSet[str] = frozenset(), machine: str = "x86_64") -> Policy:
    """Return every call that is not simply refused with ENOSYS, with its lines. Raises `InvalidRequest`."""
    unknown = sorted(restrictions - set(RESTRICTIONS))
    if unknown:
        raise InvalidRequest(f"no seccomp restriction is called {unknown[0]!r}; there are {', '.join(RESTRICTIONS)}")
    found: Dict[str, Tuple[Line, ...]] = {
        name: RULES.get(name, (Line(0),)) for name in allowed_names() + MORE.get(machine, ())
    }
    for restriction in sorted(restrictions):
        for name, lines in RESTRICTIONS[restriction].items():
            found[name] = lines + found[name]
    found.update({name: (Line(code),) for name, code in REFUSALS.items()})
    return found


def operations() -> Tuple[Tuple[str, ...], ...]:
    """Return the allowed operations, each as its twins."""
    return tuple(tuple(operation.split("/")) for operation in OPERATIONS.split())


def allowed_names() -> Tuple[str, ...]:
    """Return the names of all calls that are allowed at all."""
    return tuple(name for twins in operations() for name in twins)
