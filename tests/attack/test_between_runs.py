"""Code that goes on while no run is on: what it meets then is not told of the next run."""

from __future__ import annotations

import time

import pytest

from kooi.blocking import Sandbox
from tests.levels import need

#: the interpreter itself, while it waits for a run, in a handler; nothing of that is left at the end
REFUSED = """
import os, signal, time
def handler(*_):
    children = []
    try:
        while True:
            child = os.fork()
            if not child:
                time.sleep(5)
                os._exit(0)
            children.append(child)
    except OSError:
        open("met", "w").close()
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.1)
"""
#: a process that its interpreter left behind before it ended
EATEN = """
import os, time
if not os.fork():
    if not os.fork():
        os.setsid()
        time.sleep(0.1)
        open("met", "w").close()
        bytearray(300 << 20)
    os._exit(0)
os._exit(0)
"""


@pytest.mark.parametrize("code", [REFUSED, EATEN], ids=["pids_limit", "oom"])
def test_a_limit_met_between_two_runs_is_not_the_second_ones(code: str) -> None:
    need("jail")
    with Sandbox("jail", limits={"processes": 8, "memory_bytes": 128 << 20}) as box:
        box.run(code)
        for _ in range(200):
            if any(entry.name == "met" for entry in box.files.list()):
                break
            time.sleep(0.02)
        time.sleep(0.3)
        result = box.run("1/0")
        assert (result.status, result.decided_by, result.events) == ("error", "code", ())
