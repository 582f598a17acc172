"""Where no control group counts, memory is not hidden from the watchdog in sockets, which no process has mapped."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from kooi.spawn.entries import Cell, Entry
from kooi.spawn.watchdog import Watchdog

PROGRAM = """
import socket, sys
sys.stdin.readline()
held = [socket.socketpair() for _ in range(100)]
for pair in held:
    for end in pair:
        end.setblocking(False)
        try:
            while True:
                end.send(bytes(65536))
        except BlockingIOError:
            pass
print("full", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("code", [(), ("steps",)], ids=["own network", "the host's network"])
def test_sockets_count_as_memory(code: tuple[str, ...]) -> None:
    exceeded: list[Entry] = []
    watchdog = Watchdog(exceeded.append, lambda entry, status: None, {})
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as program,
    ):
        assert program.stdin is not None and program.stdout is not None
        entry = Entry(1, Cell("key", {"zygote": {"guest": {"home": "/nonexistent"}, "code": code}}, ours), theirs)
        entry.pid = program.pid
        watchdog.add(entry, 30 << 20)
        assert watchdog.usage(entry)["memory_peak"] < 30 << 20 and not exceeded
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "full\n"
        assert watchdog.usage(entry)["memory_peak"] > 30 << 20
        assert exceeded == [entry]
        program.stdin.close()
