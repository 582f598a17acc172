"""Control groups on layouts that this host does not have, each in an emulated machine; and the harness itself.

Skipped without QEMU or a kernel, unless KOOI_LEVELS_MUST_WORK=1: then that is a failure, and the kernel is fetched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
LINUX = HERE.parent / "linux"
MUST_WORK = os.environ.get("KOOI_LEVELS_MUST_WORK") == "1"


def guest(*arguments: str, seconds: float = 300) -> tuple[int, str]:
    """Run the harness; return its exit code and what it printed. Skips where it says that it cannot start."""
    command = [sys.executable, str(HERE / "run.py"), *(["--fetch-kernel"] if MUST_WORK else []), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    said = done.stdout + done.stderr
    if done.returncode == 77 and not MUST_WORK:
        pytest.skip(done.stderr.strip())
    return done.returncode, said


def program(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text)
    return str(path)


def machines() -> list[str]:
    """The command lines of the harness's machines on this host."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if "qemu-system" in line.split(" ")[0] and "kooi-guest-vm-" in line:
            found.append(line)
    return found


@pytest.mark.parametrize("layout", ["v2", "hybrid", "v1"])
def test_control_groups_as_root(layout: str) -> None:
    code, said = guest("--cgroup", layout, "--", str(LINUX / "test_cgroup_live.py"))
    assert code == 0 and " 0 failed" in said, said


def test_where_trees_may_hang_under_v2() -> None:
    code, said = guest("--", str(LINUX / "test_cgroup_v2_places.py"))
    assert code == 0 and " 0 failed" in said, said


@pytest.mark.parametrize("file", ["test_cgroup_systemd.py", "test_cgroup_live.py"])
def test_control_groups_in_a_users_session_under_systemd(file: str) -> None:
    code, said = guest("--systemd", "--uid", "1000", "--", str(LINUX / file))
    assert code == 0 and " 0 failed" in said, said


@pytest.mark.parametrize("options", [[], ["--systemd", "--uid", "1000"]], ids=["root", "user"])
def test_the_reaper_under_v2(options: list[str]) -> None:
    file = str(HERE.parent / "spawn" / "test_reaper.py")
    code, said = guest("--pytest", *options, "--", file, "-k", "not mutation and not nonsense")
    assert code == 0 and " passed" in said and "no control groups" not in said, said


def test_the_exit_code_is_the_programs(tmp_path: Path) -> None:
    code, said = guest(
        "--script", "--", program(tmp_path, "import os, sys\nprint(os.getuid(), sys.argv[1])\nexit(7)"), "x"
    )
    assert code == 7 and "0 x" in said, said


def test_a_file_can_be_run_with_pytest(tmp_path: Path) -> None:
    file = tmp_path / "test_two.py"
    file.write_text("def test_good(tmp_path):\n    assert tmp_path.is_dir()\ndef test_bad():\n    assert 0\n")
    code, said = guest("--pytest", "--", str(file))
    assert code == 1 and "1 failed, 1 passed" in said, said


def test_a_program_that_hangs_is_ended_with_its_machine(tmp_path: Path) -> None:
    before = len(machines())
    code, said = guest("--script", "--seconds", "2", "--", program(tmp_path, "import time\ntime.sleep(100)"))
    assert code == 124, said
    assert len(machines()) <= before


def test_the_machine_ends_when_the_harness_is_killed(tmp_path: Path) -> None:
    file = program(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(100)")
    command = [sys.executable, str(HERE / "run.py"), "--script", "--", file]
    harness = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert harness.stdout is not None
    said = ""
    for line in harness.stdout:
        said += line
        if line.startswith("up"):
            break
    mine = [line for line in machines() if f"-name kooi-guest-vm-{harness.pid} " in line]
    harness.kill()
    harness.wait()
    harness.stdout.close()
    if "no guest" in said and not MUST_WORK:
        pytest.skip(said.strip())
    assert len(mine) == 1, said
    end = time.monotonic() + 10
    while mine[0] in machines() and time.monotonic() < end:
        time.sleep(0.05)
    assert mine[0] not in machines()
