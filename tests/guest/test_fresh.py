"""Interpreters that are executed anew instead of forked."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from kooi.guest import fresh
from tests.guest.harness import Box, drive

OTHER = "/usr/bin/python3"
FOUND = """
fds = sorted(os.listdir('/proc/self/fd'))
print(open('/proc/self/oom_score_adj').read().strip(), oct(os.umask(0o022)), fds)
"""


def drive_fresh(home: Path, scenario: Any, **setup: Any) -> None:
    drive(home, scenario, fresh=True, **{"python_argv": [OTHER], **setup})


def test_a_fresh_interpreter_does_what_a_forked_one_does(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run("import os, sys\nprint(sys.executable, os.getcwd(), os.environ['KOOI'])\nx = 3; x")
        assert (run.status, run.value) == ("ok", "3")
        assert run.out.decode().split() == [OTHER, str(tmp_path), "yes"]
        error = (await box.run("def f():\n    1 / 0\nf()")).error
        assert error["name"] == "ZeroDivisionError" and "    1 / 0" in error["traceback"]
        assert error["traceback"].count("File ") == 2 and "kooi" not in error["traceback"]
        assert (await box.run("x")).value == "3"
        assert (await box.run("input()", stdin=b"fed\n")).value == "'fed'"
        assert (await box.run("input()")).error["name"] == "EOFError"
        assert (await box.run("input()", context="two", stdin=b"first\n")).value == "'first'"
        assert (await box.run("raise SystemExit(5)")).end["exit_code"] == 5
        assert (await box.run("x")).error["name"] == "NameError"
        big = await box.run(b"y = '" + b"z" * 3_000_000 + b"'\nlen(y)", context="three")
        assert big.value == "3000000"

    drive_fresh(tmp_path, scenario)


def test_nothing_is_imported_that_was_not_asked_for(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run("import sys\nprint(*sorted(sys.modules))")
        bare = await box.command([OTHER, "-I", "-S", "-c", "import sys; print(*sorted(sys.modules))"]).ended()
        extra = set(run.out.decode().split()) - set(bare.out.decode().split())
        assert extra == {f"kooi.guest.{name}" for name in ("code", "intake", "interpreter", "streams")}, extra

    drive_fresh(tmp_path, scenario)


def test_site_packages_without_their_pth_files(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "mine.py").write_text("x = 9")
    (packages / "evil.pth").write_text("import sys; sys.evil = True\n")

    async def scenario(box: Box) -> None:
        run = await box.run("import mine, sys\nmine.x, hasattr(sys, 'evil'), 'site' in sys.modules")
        assert run.value == "(9, False, False)"

    drive_fresh(tmp_path, scenario, sys_path=[str(packages)])
    drive(tmp_path, scenario, sys_path=[str(packages)])


def test_tracebacks_by_the_code_itself_show_its_lines(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run("import traceback\ntry:\n    1 / 0\nexcept Exception:\n    traceback.print_exc()")
        assert b"    1 / 0" in run.err
        warned = await box.run("import warnings\nwarnings.warn('careful')")
        assert b"warnings.warn('careful')" in warned.err

    drive_fresh(tmp_path, scenario)


def test_kill_and_two_at_once(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        endless = box.start("while True: pass")
        assert (await box.run("1", context="other")).value == "1"
        endless.call.signal(signal.SIGKILL)
        assert (await endless.ended()).end["signal"] == signal.SIGKILL
        interrupted = box.start("print('go', flush=True)\nwhile True: pass")
        while not interrupted.out:
            await asyncio.sleep(0.01)
        interrupted.call.signal(signal.SIGINT)
        assert (await interrupted.ended()).error["name"] == "KeyboardInterrupt"

    drive_fresh(tmp_path, scenario)


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run("1")
        assert run.status == "error" and run.error["name"] == "FileNotFoundError"
        assert (await box.command("echo still here").ended()).out == b"still here\n"

    drive_fresh(tmp_path, scenario, python_argv=["/no/such/python"])


def test_the_environment_of_a_waiting_interpreter_is_set_late(tmp_path: Path) -> None:
    """It was started before CONFIG came: os, the C library and what it executes must all see the variables."""

    async def scenario(box: Box) -> None:
        run = await box.run(
            "import os, subprocess\n"
            "print(os.environ['KOOI'], os.getenv('PATH'), os.getcwd())\n"
            "print(subprocess.run(['/bin/sh', '-c', 'echo $KOOI $PATH'], capture_output=True, text=True).stdout)"
        )
        assert run.out.decode().split() == ["yes", "/usr/bin:/bin", str(tmp_path), "yes", "/usr/bin:/bin"]

    drive_fresh(tmp_path, _late(scenario))
    drive(tmp_path, _late(scenario))


def _late(scenario: Any) -> Any:
    async def later(box: Box) -> None:
        await box.client.hello()
        await scenario(box)

    return later


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_an_interpreter_of_another_version_takes_the_sources(tmp_path: Path, version: str) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    if not found or sys.version_info[:2] == tuple(map(int, version.split("."))):
        pytest.skip(f"no other Python {version} here")

    async def scenario(box: Box) -> None:
        run = await box.run("import sys\nprint('{}.{}'.format(*sys.version_info))\n[1, 2]")
        assert run.out.decode().strip() == version and run.value == "[1, 2]"
        assert (await box.run("1 / 0")).error["name"] == "ZeroDivisionError"

    drive_fresh(tmp_path, scenario, python_argv=[str(found[-1])])


def test_the_program_is_made_once() -> None:
    assert fresh.program() is fresh.program()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change ids")
def test_a_fresh_interpreter_as_another_user(open_home: Path) -> None:
    """Not spawned but forked and executed, because ids must be changed in between."""

    async def scenario(box: Box) -> None:
        run = await box.run(
            "import os\nprint(os.getresuid(), os.getgroups(), os.getcwd(), os.getsid(0) == os.getpid())\n" + FOUND
        )
        shown = run.out.decode().splitlines()
        assert shown[0] == f"(65534, 65534, 65534) [] {open_home} True"
        assert shown[1] == "1000 0o22 ['0', '1', '2', '3', '61', '62', '63']"
        assert (await box.run("1 / 0")).error["name"] == "ZeroDivisionError"

    drive_fresh(open_home, scenario, code_uid=65534, code_gid=65533)


def test_a_spawned_interpreter_finds_the_same(tmp_path: Path) -> None:
    async def scenario(box: Box) -> None:
        run = await box.run(
            "import os, signal\n"
            "print(os.getcwd(), os.getsid(0) == os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
            + FOUND
            + "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGCHLD))"
        )
        found = "1000 0o22 ['0', '1', '2', '3', '61', '62', '63']"
        assert run.out.decode().splitlines() == [f"{tmp_path} True set()", found, "True 0"]
        await box.file("write", b"x", path="f", append=False, mode=None)
        assert (await box.run("import os\n" + FOUND, context="later")).out.decode().splitlines()[0] == found
        many = await asyncio.gather(*(box.run("import os; os.getpid()", context=str(number)) for number in range(15)))
        assert len({run.value for run in many}) == 15, "also when descriptors are in each other's way"

    drive_fresh(tmp_path, scenario)
