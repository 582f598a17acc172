"""The level `confined` where it is meant for: in a container without capabilities, new privileges or namespaces."""

from __future__ import annotations

import json
from typing import Any

from tests.hardened.conftest import Inside

DOOR = "import sys; from kooi.doors.cli.main import main; sys.exit(main(sys.argv[1:]))"
CONFORMANCE = """
import asyncio, json
from kooi.engine import registry
from kooi.proof import conformance
async def main():
    for name in conformance.names():
        checked = await conformance.check_one("confined", name)
        print(json.dumps([name, checked.holds, checked.detail]), flush=True)
    await registry.close_all()
asyncio.run(main())
"""
# A process of the same id, outside of the box, is the canary of kill(-1), by the code and by the warden after it.
CANARY = """
import os, subprocess, time
import kooi
canary = subprocess.Popen(["/usr/bin/sleep", "60"])
code = '''
import os, signal
for pid in ({pid}, os.getppid(), -1):
    try:
        os.kill(pid, signal.SIGKILL if pid != -1 else 0)
        print(pid, "reached")
    except PermissionError:
        print(pid, "refused")
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
        os.close(0), os.close(1), os.close(2)
        import time
        time.sleep(60)
'''
result = kooi.run(code.format(pid=canary.pid), level="confined")
print(result.status, result.stdout.split())
print("canary", canary.poll())
canary.kill()
"""


def door(inside: Inside, *words: str, flags: tuple[str, ...] = ()) -> Any:
    done = inside("-c", DOOR, *words, "--json", flags=flags)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_the_doctor_says_where_it_is_and_what_would_help(inside: Inside) -> None:
    said = door(inside, "doctor")
    works = {level["level"]: level["ok"] for level in said["levels"]}
    assert works["confined"] and not works["jail"]
    around = said["container"]
    assert (around["kind"], around["strongest"]) == ("docker", "confined")
    flags = around["flags_for_jail"].split()
    assert flags[::2] == ["--security-opt"] * (len(flags) // 2)
    # And it is true: with these flags and no other, there is a jail.
    granted = door(inside, "doctor", flags=tuple(flags))
    assert granted["container"]["strongest"] == "jail" and granted["container"]["flags_for_jail"] is None


def test_the_classic_six_are_prevented(inside: Inside) -> None:
    said = door(inside, "attack", "--suite", "classic", "--level", "confined")
    outcomes = {finding["program"]: finding["outcome"] for finding in said["findings"]}
    assert len(outcomes) == 6 and set(outcomes.values()) == {"prevented"}, outcomes


def test_every_promise_holds_there(inside: Inside) -> None:
    done = inside("-c", CONFORMANCE)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) > 30, done.stderr
    assert [each for each in found if each[1] is False] == []


def test_it_reaches_nobody_outside(inside: Inside) -> None:
    done = inside("-c", CANARY)
    lines = done.stdout.splitlines()
    # Its canary and its own agent by number; -1 is whoever it may signal, and that is nobody but itself.
    assert lines[0].count("refused") == 2 and lines[0].count("reached") == 1, done.stdout + done.stderr
    assert lines[1] == "canary None", done.stdout
