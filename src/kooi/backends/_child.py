"""A box that is a child process: executed, limited by setrlimit, killed by its tree. Any POSIX system.

The child runs the guest's agent in a new interpreter over one end of a socket pair. It is a new session, has a clean
environment, a private folder as its home, and no descriptor of the host but its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kooi.backends import _tree
from kooi.contract.backend import BoxEvent, Posture, Snapshot, Stream
from kooi.contract.errors import SetupFailed, Unsupported
from kooi.contract.limits import Limits
from kooi.contract.result import Usage
from kooi.contract.spec import Spec
from kooi.settings import host_env
from kooi.spawn.stream import SocketStream

GUEST = str(Path(__file__).resolve().parents[1] / "guest" / "__main__.py")
REAP_SECONDS = 0.0005
DEATH_SECONDS = 2.0
LOOK_SECONDS = 0.2
_PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_MARK = "KOOI_BOX"

# Where limits cannot be set from outside, the child sets them and then becomes the agent, in one execution.
_LIMITED = """import sys, resource
for each in sys.argv[1].split(","):
    which, soft, hard = map(int, each.split(":"))
    resource.setrlimit(which, (soft, hard))
del sys.argv[1], which, soft, hard, each, resource
__file__ = sys.argv[0] = sys.argv.pop(1)
exec(compile(open(__file__).read(), __file__, "exec"))
"""


class _ExitWatch:
    """Calls `told` once when a child has ended: by its pidfd where there is one, else by looking now and then."""

    def __init__(self, child: subprocess.Popen[bytes], told: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._told = told
        self._timer: asyncio.TimerHandle | None = None
        self._pidfd = -1
        with contextlib.suppress(AttributeError, OSError):
            self._pidfd = os.pidfd_open(child.pid)
        if self._pidfd >= 0:
            self._loop.add_reader(self._pidfd, self._ended)
        else:
            self._look()

    def stop(self) -> None:
        """Watch no more; safe twice."""
        if self._timer is not None:
            self._timer.cancel()
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _look(self) -> None:
        if self._child.poll() is not None:
            self._ended()
        else:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _ended(self) -> None:
        self.stop()
        self._told()


class ChildBox:
    """One child process, its descendants and its folder."""

    def __init__(self, child: subprocess.Popen[bytes], stream: Stream, folder: str, mark: str) -> None:
        self.stream = stream
        self.home = f"{folder}/home"
        self.when_gone: Callable[[ChildBox], None] = _nothing
        self._child = child
        self._folder = folder
        self._mark = mark
        self._owner = os.getpid()
        self._peak = 0
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[Usage] = self._loop.create_future()
        self._killing: asyncio.Task[None] | None = None
        self._watch: _ExitWatch | None = None

    async def kill(self) -> None:
        """Kill the tree and remove the folder; safe twice. In a forked child of the host it does nothing."""
        if self._owner != os.getpid() or self._over.done():
            return
        if self._killing is None or self._killing.done():
            self._killing = self._loop.create_task(self._kill())
        await asyncio.shield(self._killing)

    async def usage(self) -> Usage:
        """Return CPU time, the most resident memory that a look found, and the processes of the tree."""
        return self._over.result() if self._over.done() else self._measure()

    async def events(self) -> AsyncIterator[BoxEvent]:
        """Yield `exited` when it is dead and cleaned up, whether it was killed or ended by itself."""
        if self._killing is None:
            self._watch = _ExitWatch(self._child, self._ended)
        await asyncio.wait([self._over])
        yield BoxEvent("exited", usage=self._over.result())

    async def freeze(self) -> None:
        """Refuse: a tree that can fork away cannot be stopped as one."""
        raise Unsupported("the level process cannot be frozen", fix="use the level jail")

    async def thaw(self) -> None:
        """Refuse, like `freeze`."""
        raise Unsupported("the level process cannot be frozen", fix="use the level jail")

    async def snapshot(self) -> Snapshot:
        """Refuse: a process cannot be stored."""
        raise Unsupported("the level process cannot be stored", fix="use the level microvm")

    async def posture(self) -> Posture:
        """Refuse: a process without a boundary has the posture of its user."""
        raise Unsupported("the level process has no posture of its own", fix="use the level jail")

    def _ended(self) -> None:
        """The agent is gone; what it left behind goes too."""
        if self._killing is None:
            self._killing = self._loop.create_task(self._kill())

    async def _kill(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        usage = self._measure()
        killed = _tree.kill(self._child.pid, self._mark, orphans=self._child.poll() is not None)
        # No longer than this: a number that was given to somebody else meanwhile is not waited for.
        end = self._loop.time() + DEATH_SECONDS
        while self._child.poll() is None or (_tree.any_alive(killed) and self._loop.time() < end):
            await asyncio.sleep(REAP_SECONDS)
        await _remove(self._folder)
        self.when_gone(self)
        self._over.set_result(replace(usage, processes_now=0))

    def _measure(self) -> Usage:
        living = [process for process in _tree.tree(self._child.pid) if self._child.returncode is None]
        self._peak = max(self._peak, sum(process.resident_bytes for process in living))
        cpu = sum(process.cpu_seconds for process in living)
        alive = sum(process.alive for process in living)
        return Usage(cpu_seconds=cpu, memory_peak_bytes=self._peak, processes_now=alive)


def spawn(spec: Spec) -> ChildBox:
    """Start a child for `spec`; raise `SetupFailed`, with nothing left of it."""
    mark = f"{_MARK}={secrets.token_hex(16)}"
    folder = tempfile.mkdtemp(prefix="kooi-process-")
    ours, theirs = socket.socketpair()
    try:
        _furnish(folder, spec)
        environment = _environment(folder, mark)
        child = _execute(theirs.fileno(), _rlimits(spec.limits), environment, _setup(folder, environment, spec))
    except OSError as error:
        ours.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise SetupFailed(f"the child process could not be started: {error}") from error
    finally:
        theirs.close()
    return ChildBox(child, SocketStream(ours), folder, mark)


def _execute(
    fd: int, limits: Sequence[tuple[int, int, int]], environment: Mapping[str, str], setup: Mapping[str, object]
) -> subprocess.Popen[bytes]:
    """Execute the agent on `fd`. It reads its set-up from standard input."""
    python = [sys.executable, "-I", "-S", "-B"]
    if sys.platform == "linux":
        argv = [*python, GUEST, str(fd)]
    else:
        argv = [
            *python,
            "-c",
            _LIMITED,
            ",".join(f"{which}:{soft}:{hard}" for which, soft, hard in limits),
            GUEST,
            str(fd),
        ]
    reading, writing = os.pipe()
    try:
        os.write(writing, json.dumps(setup).encode())  # it is small: a pipe takes it whole
        child = subprocess.Popen(
            argv,
            env=environment,
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(fd,),
            start_new_session=True,
        )
    finally:
        os.close(reading)
        os.close(writing)
    if sys.platform == "linux":
        # Before the guest hears its first frame, and at no cost to it.
        for which, soft, hard in limits:
            resource.prlimit(child.pid, which, (soft, hard))
    return child


def _furnish(folder: str, spec: Spec) -> None:
    os.mkdir(f"{folder}/home", 0o700)
    os.mkdir(f"{folder}/tmp", 0o700)
    if spec.policy.datasets:
        os.mkdir(f"{folder}/home/data", 0o700)
    for dataset in spec.policy.datasets:
        if not os.path.exists(dataset.source):
            raise FileNotFoundError(2, "the dataset is not there", dataset.source)
        os.symlink(dataset.source, f"{folder}/home/data/{dataset.name}")


def _environment(folder: str, mark: str) -> dict[str, str]:
    own = {"HOME": f"{folder}/home", "TMPDIR": f"{folder}/tmp", "KOOI_DATA": f"{folder}/home/data"}
    name, _, value = mark.partition("=")
    return {"PATH": _PATH, "LANG": "C.UTF-8", **host_env(*_PASSED_ON), **own, name: value}


def _setup(folder: str, environment: Mapping[str, str], spec: Spec) -> dict[str, object]:
    """Return what the agent is told: see `guest.children.Setup`."""
    site = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    return {
        "home": f"{folder}/home",
        "env": environment,
        "python_argv": [sys.executable],
        "sys_path": [path for path in site if os.path.isdir(path)],
        "fresh": spec.fresh,
    }


def _rlimits(limits: Limits) -> list[tuple[int, int, int]]:
    """Return (which, soft, hard): per process, and never above what this process may set."""
    wanted = {
        # At 0 the kernel still feeds a core handler that is a pipe; 1 makes it drop the dump.
        resource.RLIMIT_CORE: 1,
        resource.RLIMIT_FSIZE: limits.disk_bytes,
        resource.RLIMIT_DATA: limits.memory_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
    }
    found = []
    for which, value in wanted.items():
        _, most = resource.getrlimit(which)
        if value is not None:
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            found.append((which, value, value))
    return found


async def _remove(folder: str) -> None:
    """Remove a folder and all in it; a large one outside the loop's thread."""
    with contextlib.suppress(OSError):
        for part in ("home", "tmp", ""):
            os.rmdir(f"{folder}/{part}")
        return
    try:
        await asyncio.to_thread(_remove_all, folder)
    except RuntimeError:
        _remove_all(folder)  # the interpreter is ending and takes no more work for its threads


def _remove_all(folder: str) -> None:
    try:
        shutil.rmtree(folder)
    except OSError:
        # Folders that the code made unreadable; nothing runs in there any more, so no look can be outrun.
        for path, folders, _ in os.walk(folder):
            for name in folders:
                if stat.S_ISDIR(os.lstat(f"{path}/{name}").st_mode):
                    os.chmod(f"{path}/{name}", 0o700)
        shutil.rmtree(folder, ignore_errors=True)


def _nothing(_: object) -> None:
    pass
