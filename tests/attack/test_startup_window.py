"""A child of the agent shows itself to the code's other processes only when it holds nothing of the agent any more.

Code that runs in the box can stop a child that has its id at any moment, and once that is dumpable read its memory and
descriptors in /proc. Before, the stream to the host was among these.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kooi.blocking import Sandbox
from kooi.guest.children import Nursery, Setup
from tests.levels import need


@pytest.mark.parametrize("executes", [False, True])
def test_nothing_of_the_agent_is_left_when_a_child_becomes_dumpable(executes: bool) -> None:
    stream, told = os.pipe()
    held = os.open("/dev/null", os.O_RDONLY)
    nursery = Nursery(Setup(home="/", env=dict(os.environ)))

    def prctl(option: int, on: int, *rest: int) -> int:
        open_now = sorted(int(name) for name in os.listdir("/proc/self/fd"))
        os.write(told, f"{option} {on} {held in open_now} {stream in open_now}\n".encode())
        return 0

    nursery._prctl = prctl
    body: Callable[[], None] = lambda: None  # noqa: E731
    pid = nursery.start([(told, told)], body, executes=executes)
    os.waitpid(pid, 0)
    os.close(told)
    with open(stream, "rb") as said:
        assert said.read() == b"4 1 False False\n"
    os.close(held)


@pytest.mark.parametrize("level", ["process", "jail"])
def test_all_code_is_offered_to_the_oom_killer_before_the_agent(level: str) -> None:
    need(level)
    with Sandbox(level=level) as box:
        ran = box.run("print(open('/proc/self/oom_score_adj').read(), end='')").stdout
        assert (ran, box.commands.run("cat /proc/self/oom_score_adj").stdout) == ("1000\n", "1000\n")
    with Sandbox(level=level, fresh=True) as box:
        assert box.run("print(open('/proc/self/oom_score_adj').read(), end='')").stdout == "1000\n"
