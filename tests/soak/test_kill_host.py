"""The host process dies by SIGKILL at any moment: within seconds nothing of it is left, and the next start works.

`KOOI_KILLS` says how often (default 8).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kooi.settings import load_settings
from tests.levels import need

KILLS = int(os.environ.get("KOOI_KILLS", "8"))
SECONDS = 5.0
# Boxes that do nothing, that ignore everything, that daemonise, that are just starting: three at a time.
HOST = """
import random, sys, threading, time
import kooi
DAEMON = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.fork() or os.setsid(); time.sleep(30)"
PROGRAMS = ["print(1)", "import time; time.sleep(30)", "while True: pass", DAEMON]
def work():
    while True:
        kooi.run(random.choice(PROGRAMS), level=sys.argv[1])
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
print("started", flush=True)
time.sleep(60)
"""


def left(token: str) -> list[str]:
    """Return what is left: processes that carry the token or descend from our code's start, groups, journals."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                line = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if token.encode() in line:
                found.append(f"process {process.name}")
    run_dir = load_settings().run_dir
    journals = {path.stem for path in run_dir.glob("kooi-*.journal") if owner(path) == token}
    found += sorted(journals)
    found += [f"folders {path.name}" for path in Path("/tmp").glob("kooi-*.homes") if path.stem in journals]
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{directory}/{name}" for name in names if name in journals]
    return found


def owner(journal: Path) -> str:
    """Return the token of the host that a journal's spawner works for; empty when that is somebody else's."""
    try:
        text = journal.read_text(errors="replace").split("\n", 1)[0]
    except OSError:
        return ""
    return next((token for token, pid in OWNERS.items() if f'"owner":[{pid},' in text), "")


OWNERS: dict[str, int] = {}


@pytest.mark.parametrize("level", ["jail", "confined", "process"])
def test_sigkill_of_the_host_leaves_nothing(level: str) -> None:
    need(level)
    rng, worst = random.Random(), 0.0
    for number in range(KILLS):
        token = f"kooi-killed-{os.getpid()}-{number}"
        host = subprocess.Popen(
            [sys.executable, "-c", HOST, level, token], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        OWNERS[token] = host.pid
        assert host.stdout is not None and host.stderr is not None
        assert host.stdout.readline() == b"started\n"
        time.sleep(rng.uniform(0, 1.0))
        spawners = descendants(host.pid)
        host.kill()
        host.wait()
        host.stdout.close()
        host.stderr.close()
        began = time.monotonic()
        while (still := [pid for pid in spawners if alive(pid)] or left(token)) and time.monotonic() - began < SECONDS:
            time.sleep(0.02)
        worst = max(worst, time.monotonic() - began)
        assert not still, f"{still} after {SECONDS} s"
    print(f"{level}: {KILLS} kills, the slowest clean-up took {worst:.2f} s")
    check = [sys.executable, "-c", f"import kooi; print(kooi.run('print(7)', level={level!r}).stdout)"]
    assert subprocess.run(check, capture_output=True, check=True).stdout.strip() == b"7"


def descendants(pid: int) -> list[tuple[int, str]]:
    """Return all descendants of a process, each with its start time: a number used again is not taken for it."""
    found, ahead = [], [pid]
    while ahead:
        for task in Path(f"/proc/{ahead.pop()}/task").glob("*/children"):
            try:
                below = [int(child) for child in task.read_text().split()]
            except OSError:
                continue
            ahead += below
            found += [(child, started(child)) for child in below]
    return found


def started(pid: int) -> str:
    """Return when a process started; empty when it is gone or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def alive(known: tuple[int, str]) -> bool:
    """Return whether exactly this process still runs."""
    return known[1] != "" and started(known[0]) == known[1]
