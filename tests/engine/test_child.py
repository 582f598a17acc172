"""The child process of the level `process`, with real processes: what it gets, what it leaves, and how it ends."""

from __future__ import annotations

import asyncio
import os
import random
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kooi.backends import _child
from kooi.contract.backend import Snapshot
from kooi.contract.policy import Dataset, Policy
from kooi.contract.result import Clause, Result
from kooi.contract.spec import Spec
from kooi.engine import openbox, registry
from kooi.sandbox import AsyncSandbox
from kooi.sandbox import run as run_once
from tests.engine.fakes import FakeBackend

Run = Callable[..., Any]


class ChildBackend(FakeBackend):
    """Opens children, whatever strategy the level itself would choose here."""

    name: ClassVar[str] = "child"

    def __init__(self) -> None:
        super().__init__(clauses=(Clause("disk_bytes", "RLIMIT_FSIZE", "per_process"),))
        self.children: list[_child.ChildBox] = []

    async def open(self, spec: Spec, snapshot: Snapshot | None = None) -> Any:
        box = _child.spawn(spec)
        self.children.append(box)
        return box


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ChildBackend]:
    """The level `child`; when a test ends, its processes and folders must be gone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    backend = ChildBackend()
    monkeypatch.setitem(registry._mine().backends, "child", backend)
    openbox._prepared.clear()
    yield backend
    openbox._prepared.clear()
    assert os.listdir(tmp_path) == []
    marks = [box._mark for box in backend.children]
    assert not [pid for pid in _pids() if any(mark in _environ(pid) for mark in marks)]


def _pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdecimal()]


def _environ(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


async def _once(code: str, **limits: Any) -> Result:
    return await run_once(code, level="child", limits=limits)


def test_state_is_kept_between_runs(child: ChildBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("child", files={"deep/data.txt": "12"}) as box:
            assert (await box.run("x = int(open('deep/data.txt').read())")).ok
            result = await box.run("print(x); x + 1")
            assert (result.stdout, result.results[0].text) == ("12\n", "13")
            assert result.usage.cpu_seconds is not None and result.usage.wall_seconds is not None
            assert (await box.run("print(input())", stdin="said\n")).stdout == "said\n"
            failed = await box.run("1/0")
            assert (failed.status, failed.decided_by) == ("error", "code")
            assert failed.error is not None and failed.error.name == "ZeroDivisionError"
            assert (await box.run("import sys; sys.exit(3)")).exit_code == 3
            assert (await box.commands.run("echo $A; pwd", env={"A": "b"}, cwd="deep")).stdout.startswith("b\n/")

    run(main())


def test_it_inherits_nothing_but_its_stream(child: ChildBackend, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    leak = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leak, True)
    code = """
import os, json
fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
links = sorted(os.readlink(fd) for fd in fds if os.path.lexists(fd))
print(json.dumps([dict(os.environ), links, os.getsid(0) == os.getsid(os.getppid()), os.getcwd()]))
"""
    try:
        result = run(run_once(code, level="child", env={"OWN": "1"}))
    finally:
        os.close(leak)
    environ, links, same_session, cwd = __import__("json").loads(result.stdout)
    assert environ["OWN"] == "1" and environ["HOME"] == cwd
    assert set(environ) <= {
        "OWN", "HOME", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "KOOI_DATA", "KOOI_BOX",
    }  # fmt: skip
    assert not same_session
    assert not [link for link in links if not link.startswith(("pipe:", "socket:", "/dev/null", "/proc"))], links


def test_its_limits_hold_in_each_process(child: ChildBackend, run: Run) -> None:
    too_large = run(_once("open('x', 'wb').write(b'x' * 3_000_000)", disk_bytes=1_000_000))
    assert too_large.status == "disk_limit"
    assert run(_once("x = bytearray(2**30)", memory_bytes=2**28)).error.name == "MemoryError"
    assert run(_once("fds = [open('/dev/null') for _ in range(100)]", open_files=64)).error.name == "OSError"


def test_daemons_die_with_the_box(child: ChildBackend, run: Run) -> None:
    code = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(100)
        os._exit(0)
print("started")
"""
    assert run(_once(code)).stdout == "started\n"


def test_orphans_of_a_killed_agent_die_too(child: ChildBackend, run: Run) -> None:
    code = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    time.sleep(100)
time.sleep(0.1)
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(100)
"""
    result = run(_once(code))
    assert (result.status, result.decided_by) == ("lost", "host")


def test_programs_that_will_not_die_by_themselves(child: ChildBackend, run: Run) -> None:
    stubborn = (
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\n"
    )
    for body in ("while True: pass", "import os; os.kill(os.getpid(), signal.SIGSTOP)", "import time; time.sleep(100)"):
        result = run(_once(f"print('before', flush=True)\n{stubborn}{body}", wall_seconds=0.3))
        assert (result.status, result.stdout) == ("timeout", "before\n"), body


def test_cpu_time_is_bounded(child: ChildBackend, run: Run) -> None:
    result = run(_once("while True: pass", cpu_seconds=0.3, wall_seconds=20))
    assert result.status == "cpu_limit"
    assert 0.3 <= result.usage.cpu_seconds < 1.0


def test_a_flood_ends_at_the_cap_and_keeps_it(child: ChildBackend, run: Run) -> None:
    result = run(_once("while True: print('x' * 100)", output_bytes=10_000))
    assert (result.status, len(result.stdout_bytes)) == ("output_limit", 10_000)
    assert result.stdout_total_bytes > 10_000


def test_the_folder_goes_whatever_the_code_did_to_it(child: ChildBackend, run: Run) -> None:
    code = """
import os
os.makedirs("a/b"); open("a/b/c", "w").close(); os.symlink("/etc", "a/link"); os.mkfifo("a/fifo")
os.chmod("a/b", 0); os.chmod("a", 0)
open(os.environ["TMPDIR"] + "/t", "w").close()
"""
    assert run(_once(code)).ok
    assert run(_once("import os, shutil; shutil.rmtree(os.getcwd())")).status in ("ok", "error")
    assert stat.S_IMODE(os.stat("/etc").st_mode) == 0o755


def test_datasets_are_at_the_place_that_kooi_data_names(child: ChildBackend, run: Run, tmp_path_factory: Any) -> None:
    source = tmp_path_factory.mktemp("data") / "sales.csv"
    source.write_text("a,b\n")
    policy = Policy(datasets=(Dataset("sales.csv", str(source)),))
    code = "import os; print(open('data/sales.csv').read() + open(os.environ['KOOI_DATA'] + '/sales.csv').read())"
    assert run(run_once(code, level="child", policy=policy)).stdout == "a,b\na,b\n\n"
    assert source.read_text() == "a,b\n"


def test_fresh_is_a_new_interpreter(child: ChildBackend, run: Run) -> None:
    result = run(
        run_once(
            "import sys; print(sys.executable); print(open('/proc/self/cmdline').read())", level="child", fresh=True
        )
    )
    assert result.stdout.startswith(sys.executable)


def test_cancelled_at_any_moment_nothing_is_left(child: ChildBackend, run: Run) -> None:
    chance = random.Random(5)

    async def main() -> None:
        async def one(number: int) -> None:
            task = asyncio.ensure_future(_once("import subprocess; subprocess.run(['sleep', '100'])"))
            await asyncio.sleep(chance.random() * 0.15)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        for _ in range(6):
            await asyncio.gather(*(one(number) for number in range(4)))

    run(main())
    assert len(child.children) == 24 and all(box._over.done() for box in child.children)


def test_an_idle_agent_that_dies_is_noticed(child: ChildBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("child") as box:
            assert (await box.run("x = 1")).ok
            os.kill(child.children[0]._child.pid, 9)
            deadline = time.monotonic() + 5
            held = await box._ready()
            while held.lost is None and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            assert held.lost is not None

    run(main())
