"""The blocking side: from a running loop, from many threads, after a fork, and under Ctrl-C."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kooi._portal import portal
from kooi.blocking import Sandbox
from kooi.blocking import run as run_once
from kooi.contract.errors import InvalidRequest, SandboxClosed
from tests.engine.fakes import FakeBackend

ROOT = Path(__file__).resolve().parents[2]


def test_a_sandbox_without_await(fake: FakeBackend) -> None:
    with Sandbox("fake", files={"x": "content"}) as box:
        assert box.run("out hi").stdout == "hi"
        assert box.files.read("x") == "content"
        assert box.files.write("y", b"1") == 1
        assert [entry.name for entry in box.files.list()][:1] == ["."]
        assert box.commands.run(["exit", "3"]).exit_code == 3
        assert box.usage().memory_peak_bytes == 1000
        assert box.posture().mounts == ()
        assert box.spec.level == box.enforcement.level == "fake"
    with pytest.raises(SandboxClosed):
        box.run("ok")
    assert run_once("out once", level="fake").stdout == "once"


def test_it_works_inside_a_running_loop(fake: FakeBackend) -> None:
    async def notebook() -> str:
        return run_once("out inside", level="fake").stdout

    assert asyncio.run(notebook()) == "inside"


def test_from_many_threads_at_once(fake: FakeBackend) -> None:
    seen: list[str] = []
    threads = [
        threading.Thread(target=lambda n=number: seen.append(run_once(f"out {n}", level="fake").stdout))
        for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, seen)) == list(range(20))


def test_exceptions_keep_their_type_and_say_where(fake: FakeBackend) -> None:
    with Sandbox("fake") as box:
        with pytest.raises(InvalidRequest, match="timeout") as caught:
            box.run("ok", timeout=-1)
        assert caught.value.key == "timeout"
        with pytest.raises(FileNotFoundError):
            box.files.read("nothing")


def test_callbacks_run_in_the_calling_thread(fake: FakeBackend) -> None:
    threads: list[int] = []
    with Sandbox("fake") as box:
        box.run("out a\nerr b\nitem c", on_stdout=lambda _: threads.append(threading.get_ident()),
                on_result=lambda _: threads.append(threading.get_ident()))  # fmt: skip
    assert threads == [threading.get_ident()] * 2


def test_a_callback_may_use_the_sandbox_api(fake: FakeBackend) -> None:
    inner: list[str] = []
    with Sandbox("fake") as box:
        box.run("out a", on_stdout=lambda text: inner.append(run_once(f"out {text}b", level="fake").stdout))
    assert inner == ["ab"]


def test_a_callback_that_raises_ends_the_run_first(fake: FakeBackend) -> None:
    def tap(text: str) -> None:
        raise LookupError(text)

    with Sandbox("fake") as box:
        with pytest.raises(LookupError, match="boom"):
            box.run("out boom\nhang", on_stdout=tap)
        assert box.run("out fine", timeout=5).stdout == "fine"


def test_a_slow_callback_holds_up_nobody_else(fake: FakeBackend) -> None:
    release = threading.Event()

    def slow() -> None:
        with Sandbox("fake") as box:
            box.run("out a", on_stdout=lambda _: release.wait(10))

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        assert run_once("out quick", level="fake").stdout == "quick"
    finally:
        release.set()
        thread.join()


def test_the_loops_own_thread_is_refused(fake: FakeBackend) -> None:
    async def wrong() -> None:
        run_once("ok", level="fake")

    with pytest.raises(RuntimeError, match="use AsyncSandbox"):
        portal().call(wrong)


def test_a_stream_without_await(fake: FakeBackend) -> None:
    with Sandbox("fake") as box:
        stream = box.stream("out a\nitem b\nout c")
        assert [event.kind for event in stream] == ["stdout", "result", "stdout"]
        assert stream.result.stdout == "ac"
        for _ in box.stream("out a\nhang"):
            break
        assert box.run("out next", timeout=5).stdout == "next"
        with box.stream("out a\nhang") as left:
            next(left)
        assert box.run("out next", timeout=5).stdout == "next"


def test_a_forgotten_sandbox_is_closed_and_named(fake: FakeBackend) -> None:
    box = Sandbox("fake")
    box.run("ok")
    with pytest.warns(ResourceWarning, match="level 'fake' was never closed"):
        del box
    deadline = time.monotonic() + 5
    while fake.boxes[0].thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not fake.boxes[0].thread.is_alive()


PRELUDE = """
import os, signal, threading, time
from kooi.blocking import Sandbox, run
from kooi.contract.errors import SandboxClosed
from kooi.engine import registry
from tests.engine.fakes import FakeBackend

fake = registry._mine().backends["fake"] = FakeBackend()

def interrupted(call, *after):
    for seconds in after:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        call()
    except KeyboardInterrupt:
        return True
    return False
"""

CTRL_C = """
with Sandbox("fake") as box:
    for call in (
        lambda: box.run("hang"),
        lambda: box.run("out a\\nhang", on_stdout=lambda text: None),
        lambda: list(box.stream("out a\\nhang")),
        lambda: box.commands.run("hang"),
    ):
        assert interrupted(call, 0.1)
        assert box.run("out next", timeout=5).stdout == "next"
    assert fake.boxes[0].killed == 0
"""

ONCE = """
assert interrupted(lambda: run("hang", level="fake"), 0.1)
assert not fake.boxes[0].thread.is_alive()
"""

AGAIN = """
began = time.monotonic()
assert interrupted(lambda: run("deaf", level="fake"), 0.1, 0.2, 0.3, 0.4)
assert time.monotonic() - began > 0.5
assert not fake.boxes[0].thread.is_alive()
"""

FORK = """
box = Sandbox("fake")
assert box.run("out before").stdout == "before"
pid = os.fork()
if pid == 0:
    try:
        box.run("out child")
        os._exit(2)
    except SandboxClosed as error:
        assert "forked" in str(error)
    registry._mine().backends["fake"] = FakeBackend()
    assert run("out own", level="fake").stdout == "own"
    box.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert box.run("out after").stdout == "after"
box.close()
"""

FORGOTTEN_AT_EXIT = """
box = Sandbox("fake")
box.run("ok")
"""


@pytest.mark.parametrize("program", [CTRL_C, ONCE, AGAIN, FORK, FORGOTTEN_AT_EXIT])
def test_in_a_process_of_its_own(program: str) -> None:
    """Ctrl-C returns when the run is dead, however often it comes; after a fork each side has its own."""
    code = PRELUDE + program + "\nprint('fine')\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")
