"""Start a child of the agent: fork, then become the code's user in an order that leaves nothing behind.

Theory of operation: the agent may hold capabilities and descriptors that the code must not have. So a child first
leaves the agent's signal handling and session, then its ids, then takes on what the caller confines it with, then
closes every descriptor that was not planted for it; only then may the code's other processes look into it, and does its
body run. It never returns into the agent's stack: whatever happens ends in `_exit`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` wraps every call in enums, at dozens of page faults
import fcntl
import gc
import os
import resource
import signal
import sys
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from kooi.guest import fresh
from kooi.guest.streams import prepare_streams

_PR_SET_DUMPABLE = 4
_ABOVE = 64
_SPAN = 4096
#: what a Python process ignores, and what a program that it executes must find at its default
_IGNORED = (_signal.SIGPIPE, _signal.SIGXFSZ)

Planted = Sequence[Tuple[int, int]]


class Setup(NamedTuple):
    """What the agent is told about its box by whoever starts it.

    `cwd` is `home` unless given; `alias` is what a host calls it that does not know where it is; `env` is the base that
    CONFIG adds to. `code_uid`, `code_gid`: who the code runs as, `None` to stay. `confine_code` is called in every
    child once it has those ids. `python_argv` is the interpreter that `sys.executable` names and that contexts execute,
    instead of forking, if they are `fresh`; `sys_path` is appended to every context's `sys.path`. `program` is what
    `fresh.program()` returns, called while the guest's own files can be read. `write_fd` is the other half of a stream
    that is not one socket. `fork` replaces `os.fork`: one that runs no hooks of Python has nothing to mend after a
    single-threaded parent, and leaves about 200 pages uncopied.
    """

    home: str = "/home/user"
    cwd: Optional[str] = None
    alias: Optional[str] = None
    env: Mapping[str, str] = {}
    code_uid: Optional[int] = None
    code_gid: Optional[int] = None
    confine_code: Optional[Callable[[], None]] = None
    python_argv: Tuple[str, ...] = ()
    sys_path: Tuple[str, ...] = ()
    fresh: bool = False
    program: bytes = b""
    write_fd: int = -1
    fork: Optional[Callable[[], int]] = None


class Nursery:
    """Starts children as `setup` says. `environment` and `cwd` are what CONFIG made of the base.

    It may be made ahead, in the process that forks agents. Makes the environment of this process the base. `null` is a
    descriptor that reads as empty; `streams` are what a warm interpreter inherits.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._env = setup.env
        self.environment: Dict[str, str] = dict(setup.env)
        self.null = -1
        self.streams = prepare_streams()
        self._reset = (int(signal.SIGCHLD), *_odd_signals())
        self._reset_to_run = (*self._reset, int(signal.SIGINT), *map(int, _IGNORED))
        self._end_of_fds = _highest_fd() + 1 + _SPAN
        self._prctl = _prctl() if setup.code_uid is not None or "ctypes" in sys.modules else None
        self._cwd: Optional[str] = None
        self._sealed = False
        os.environ.clear()
        os.environ.update(setup.env)

    def suits(self, setup: Setup) -> bool:
        """Return whether what was made ahead is right for `setup`, which may differ in all that is looked up later."""
        return self._env is setup.env or self._env == setup.env

    def configure(self, env: Mapping[str, str], cwd: str) -> None:
        """Set what children find beyond the base: `env`, and the directory `cwd`."""
        self.environment.update(env)
        self._cwd = cwd
        for key, value in env.items():
            os.environ[key] = value

    @property
    def program(self) -> bytes:
        """What a fresh interpreter is sent first."""
        return self.setup.program or fresh.program()

    @property
    def cwd(self) -> str:
        """Where children start."""
        return self._cwd or self.setup.cwd or self.setup.home

    def configuration(self) -> bytes:
        """Return the same for an interpreter that is running already (see `interpreter`)."""
        pairs = (f"{key}={value}" for key, value in self.environment.items())
        return b"".join(os.fsencode(text) + b"\0" for text in (self.cwd, *pairs))

    def start(
        self,
        planted: Planted,
        body: Callable[[], None],
        *,
        executes: bool = False,
        boots: bool = False,
        dumpable: bool = True,
        failed: int = -1,
    ) -> int:
        """Fork, and return the child's pid. In the child `body` runs, and where it ends the child ends.

        `planted`: pairs of a descriptor here and its number in the child. `executes`: `body` executes a program;
        `boots`: one that sets its directory, mask and place with the OOM killer itself (`interpreter.begin`), and is
        made dumpable by the kernel as it is executed.
        `dumpable`: the child belongs to the code, which may trace it. An error is written to the descriptor `failed` as
        `NAME NUL text`. Raises `OSError` when there can be no more processes.
        """
        pid = (self.setup.fork or os.fork)()
        if pid:
            return pid
        try:
            failed = self._become(planted, executes, dumpable and not boots, failed)
            if not boots:
                self._settle(dumpable)
            body()
        except BaseException as error:
            _tell(failed, error)
        finally:
            os._exit(127)

    def _become(self, planted: Planted, executes: bool, dumpable: bool, failed: int) -> int:
        """Become the code's process, with nothing of the agent's; return the number that `failed` has now."""
        if not executes:
            gc.freeze()
        self._reset_signals(executes)
        os.setsid()
        failed = _plant(planted, executes, failed)
        self._take_ids()
        if self.setup.confine_code is not None:
            self.setup.confine_code()
        self._close_others({failed, *(target for _, target in planted)})
        if dumpable:
            # Not before: the code may stop this process at any moment and take what it holds, the stream for one.
            if self._prctl is not None:
                self._prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        return failed

    def _settle(self, dumpable: bool) -> None:
        if dumpable:
            _offer_to_oom_killer()
        os.umask(0o022)
        try:
            os.chdir(self.cwd)
        except OSError:
            os.chdir("/")

    def spawn(self, command: List[str], planted: Planted) -> int:
        """Execute a program that `boots`, without forking where that is possible. Return its pid; raise `OSError`.

        A fork of this process and its end by `execve` cost 1 to 2 ms, which `posix_spawn` does not. But it can neither
        change ids nor confine, nor find another number for a descriptor that is in the way of another.
        """
        numbers = {number for _, number in planted}
        if not self._may_spawn() or any(fd in numbers for fd, _ in planted):
            execute = lambda: os.execve(command[0], command, self.environment)  # noqa: E731
            return self.start(planted, execute, executes=True, boots=True)
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for fd, number in planted]
        return os.posix_spawn(
            command[0], command, self.environment, file_actions=actions, setsid=True, setsigmask=(),
            setsigdef=self._reset_to_run,
        )  # fmt: skip

    def _may_spawn(self) -> bool:
        """Return whether `posix_spawn` leaves nothing undone; make sure that it passes on no descriptor of ours."""
        setup = self.setup
        if (setup.code_uid, setup.code_gid, setup.confine_code) != (None, None, None):
            return False
        if not self._sealed:
            self._sealed = sys.platform.startswith("linux") and _close_all_on_exec()
        return self._sealed

    def _reset_signals(self, executes: bool) -> None:
        _signal.set_wakeup_fd(-1)
        for number in self._reset_to_run if executes else self._reset:
            _signal.signal(number, _signal.SIG_DFL)
        if not executes:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())

    def _take_ids(self) -> None:
        uid, gid = self.setup.code_uid, self.setup.code_gid
        if gid is not None:
            if os.getgroups():
                os.setgroups([])
            if hasattr(os, "setresgid"):
                os.setresgid(gid, gid, gid)
            else:
                os.setregid(gid, gid)
        if uid is not None:
            if hasattr(os, "setresuid"):
                os.setresuid(uid, uid, uid)
            else:
                os.setreuid(uid, uid)

    def _close_others(self, keep: Set[int]) -> None:
        start = 0
        for fd in sorted(keep):
            if fd > start:
                os.closerange(start, fd)
            start = max(start, fd + 1)
        os.closerange(start, max(start, self._end_of_fds))


def _odd_signals() -> Tuple[int, ...]:
    """Return the signals whose disposition here is not what a new Python process has.

    Looked up once, in the zygote where there is one: nobody changes them between it and an agent.
    """
    usual = (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGCHLD, *_IGNORED)
    return tuple(
        number
        for number in range(1, signal.NSIG)
        if number not in usual and signal.getsignal(number) not in (signal.SIG_DFL, None)
    )


def _highest_fd() -> int:
    """Return the highest open descriptor. Later ones get the lowest free number, so they stay within `_SPAN` of it."""
    for path in ("/proc/self/fd", "/dev/fd"):
        try:
            return max(int(name) for name in os.listdir(path))
        except OSError:
            continue
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _close_all_on_exec() -> bool:
    """Mark every descriptor above 2, as Python marks those that it opens; return whether they could be listed."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return False
    for name in names:
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                continue  # the one that the listing itself used
    return True


def _prctl() -> Optional[Callable[..., int]]:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    prctl: Any = ctypes.CDLL(None).prctl
    return prctl  # type: ignore[no-any-return]


def _offer_to_oom_killer() -> None:
    """Let the kernel kill the code before the agent. Where /proc refuses, the host's own limits decide alone."""
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, b"1000")
    except OSError:
        pass
    finally:
        os.close(fd)


def _plant(planted: Planted, inheritable: bool, failed: int) -> int:
    """Give each descriptor its number; return what became of `failed`."""
    targets = {target for _, target in planted}
    if failed in targets:
        failed = fcntl.fcntl(failed, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
    moved = [
        (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE) if fd in targets and fd != target else fd, target)
        for fd, target in planted
    ]
    for fd, target in moved:
        if fd == target:
            os.set_inheritable(fd, inheritable or target <= 2)
        else:
            os.dup2(fd, target, inheritable or target <= 2)
    return failed


def _tell(fd: int, error: BaseException) -> None:
    if fd >= 0:
        try:
            os.write(fd, f"{type(error).__name__}\0{error}".encode("utf-8", "backslashreplace")[:4096])
        except OSError:
            pass
