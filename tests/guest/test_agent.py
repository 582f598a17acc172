"""The agent, frame by frame: what it says, and that a host that breaks the protocol ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kooi.guest import frames
from kooi.guest.frames import frame, json_frame
from tests.guest.harness import MAIN, SECONDS, Raw, agent, alive, opening, running


def config(home: Path, **env: str) -> bytes:
    return json_frame(frames.CONFIG, 0, {"env": env, "cwd": str(home)})


def kinds(found: list[tuple[int, int, bytes]]) -> list[int]:
    return [kind for kind, _, _ in found]


def test_hello_comes_first_whether_a_frame_waits_or_not(tmp_path: Path) -> None:
    with agent(tmp_path) as (process, ours):
        raw = Raw(ours)
        kind, channel, payload = raw.receive()
        assert (kind, channel) == (frames.HELLO, 0)
        assert json.loads(payload) == {
            "protocol": 1, "python": "{}.{}.{}".format(*sys.version_info), "pid": process.pid
        }  # fmt: skip
        raw.send(running(1, b"print(1)"))
        assert kinds(raw.until_end(1)) == [frames.OUT, frames.END]
    with agent(tmp_path) as (process, ours):
        raw = Raw(ours)
        raw.send(config(tmp_path, A="b"), running(1, b"import os; print(os.environ['A']); 5"))
        found = raw.until_end(1)
        assert kinds(found) == [frames.HELLO, frames.OUT, frames.EVENT, frames.END]
        assert found[1][2] == b"b\n"
        assert json.loads(found[2][2]) == {"type": "result", "data": {"text/plain": "5"}}
        assert json.loads(found[3][2]) == {"status": "ok", "exit_code": None, "signal": None, "error": None, "left": 0}


def test_frames_may_come_byte_by_byte(tmp_path: Path) -> None:
    with agent(tmp_path) as (_, ours):
        raw = Raw(ours)
        for byte in config(tmp_path) + running(1, b"print(input())", stdin=True):
            raw.send(bytes([byte]))
        raw.send(frame(frames.DATA, 1, b"li"))
        time.sleep(0.02)
        raw.send(frame(frames.DATA, 1, b"ne\n"), frame(frames.EOF, 1))
        assert b"line\n" in [payload for kind, _, payload in raw.until_end(1) if kind == frames.OUT]


def test_many_frames_may_come_at_once(tmp_path: Path) -> None:
    with agent(tmp_path) as (_, ours):
        raw = Raw(ours)
        raw.send(*(running(2 * index + 1, b"print(%d)" % index, f"c{index % 3}") for index in range(60)))
        ended = set()
        said = {}
        while len(ended) < 60:
            kind, channel, payload = raw.receive()
            if kind == frames.OUT:
                said[channel] = payload
            elif kind == frames.END:
                ended.add(channel)
        assert said == {2 * index + 1: b"%d\n" % index for index in range(60)}


def test_a_run_goes_on_when_the_one_before_it_is_given_up_before_its_code_came(tmp_path: Path) -> None:
    with agent(tmp_path) as (_, ours):
        raw = Raw(ours)
        raw.open(1, "run", context="", code_bytes=10, stdin=False, limits={})
        raw.send(running(3, b"print(3)"), frames.json_frame(frames.CONTROL, 1, {"signal": 9}))
        assert json.loads(raw.until_end(1)[-1][2])["signal"] == 9
        assert raw.until_end(3)[0][2] == b"3\n"


def test_late_frames_are_dropped(tmp_path: Path) -> None:
    with agent(tmp_path) as (_, ours):
        raw = Raw(ours)
        raw.send(running(1, b"input()", stdin=True), frame(frames.EOF, 1))
        raw.until_end(1)
        late = json_frame(frames.CONTROL, 1, {"signal": 9})
        raw.send(frame(frames.DATA, 1, b"late"), frame(frames.EOF, 1), frames.credit_frame(1, 5), late)
        for number in range(frames.LATE_OPENS - 1):
            raw.send(opening(3 + 2 * number, "ping"))
            raw.until_end(3 + 2 * number)
        raw.send(late, opening(5001, "ping"))
        raw.until_end(5001)
        raw.send(late)
        assert raw.is_over()


VIOLATIONS: list[bytes] = [
    b"\0" * 9,
    b"\xff" * 9,
    b"GET / HTTP/1.1\r\n\r\n",
    frame(frames.HELLO, 0, b'{"protocol":1,"python":"3","pid":1}'),
    frame(frames.OUT, 1, b"x"),
    frame(99, 1, b"x"),
    frame(frames.DATA, 1, b"x"),
    frame(frames.EOF, 7),
    frame(frames.DATA, 0, b"x"),
    frame(frames.CREDIT, 1, b"\0\0\0\1"),
    opening(0, "ping"),
    opening(2, "ping"),
    opening(3, "ping") + opening(1, "ping"),
    opening(3, "ping") + opening(3, "ping"),
    opening(1, "nope"),
    opening(1, "ping", more=1),
    frame(frames.OPEN, 1, b'{"op":"ping","op":"ping"}'),
    frame(frames.OPEN, 1, b"[]"),
    frame(frames.OPEN, 1, b'{"op":"\xff"}'),
    opening(1, "ping") + json_frame(frames.CONFIG, 0, {"env": {}, "cwd": "/"}),
    json_frame(frames.CONFIG, 0, {"env": {"A": "\0"}, "cwd": "/"}),
    json_frame(frames.CONFIG, 0, {"env": {}}),
    running(1, b"import time; time.sleep(9)") + frame(frames.DATA, 1, b"more"),
    running(1, b"import time; time.sleep(9)") + frame(frames.EOF, 1),
    running(1, b"import time; time.sleep(9)") + json_frame(frames.CONTROL, 1, {"signal": 0}),
    running(1, b"import time; time.sleep(9)") + frames.credit_frame(1, 0),
    running(1, b"import time; time.sleep(9)") + frames.credit_frame(1, frames.WINDOW),
    opening(1, "run", context="", code_bytes=9, stdin=True, limits={}) + frame(frames.EOF, 1),
    opening(1, "file.read", path="x") + frame(frames.DATA, 1, b"x"),
    opening(1, "file.write", path="x", append=False, mode=None) + frame(frames.EOF, 1) + frame(frames.EOF, 1),
    opening(1, "exec", argv=["sleep", "9"], cwd=None, env={}, stdin=False) + frame(frames.DATA, 1, b"x"),
    b"".join(running(2 * index + 1, b"import time; time.sleep(9)", "busy") for index in range(257)),
    opening(1, "exec", argv=["sleep", "9"], cwd=None, env={}, stdin=True)
    + frame(frames.DATA, 1, bytes(frames.WINDOW)) * 2,
]


@pytest.mark.parametrize("wrong", VIOLATIONS, ids=range(len(VIOLATIONS)))
def test_a_host_that_breaks_the_protocol_ends_everything(tmp_path: Path, wrong: bytes) -> None:
    with agent(tmp_path) as (process, ours):
        raw = Raw(ours)
        assert raw.receive()[0] == frames.HELLO
        below = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        try:
            raw.send(wrong)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert raw.is_over()
        assert process.wait(SECONDS) == 1
        deadline = time.monotonic() + 5
        while any(alive(int(pid)) for pid in below) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(alive(int(pid)) for pid in below)


def test_credit_is_given_back_as_code_takes_it_and_no_sooner(tmp_path: Path) -> None:
    with agent(tmp_path) as (_, ours):
        raw = Raw(ours)
        assert raw.receive()[0] == frames.HELLO
        code = b"import sys, time\nsys.stdin.buffer.read(100_000)\ntime.sleep(.3)\nsys.stdin.buffer.read()"
        raw.send(running(1, code, stdin=True))
        left = frames.WINDOW - len(code)
        while left:
            size = min(left, frames.MAX_PAYLOAD)
            raw.send(frame(frames.DATA, 1, bytes(size)))
            left -= size
        found = raw.until_end_or_credit(1)
        assert found[0] == frames.CREDIT
        granted = int.from_bytes(found[2], "big")
        while granted < frames.WINDOW // 2:
            kind, _, payload = raw.receive()
            assert kind == frames.CREDIT
            granted += int.from_bytes(payload, "big")
        assert granted <= frames.WINDOW
        raw.send(frame(frames.EOF, 1))
        assert raw.until_end(1)


def test_what_is_sent_is_within_credit(tmp_path: Path) -> None:
    """The host grants nothing: exactly one window arrives, and after a grant exactly that much more."""
    with agent(tmp_path) as (_, ours):
        raw = Raw(ours)
        assert raw.receive()[0] == frames.HELLO
        raw.send(running(1, b"import os\nwhile True: os.write(1, b'x' * 50_000)"))
        total = 0
        while total < frames.WINDOW:
            total += len(raw.receive()[2])
        assert total == frames.WINDOW
        raw.send(opening(3, "ping"))
        assert raw.receive()[:2] == (frames.END, 3)
        raw.send(frames.credit_frame(1, 77))
        while total < frames.WINDOW + 77:
            total += len(raw.receive()[2])
        raw.send(opening(5, "ping"))
        assert raw.receive()[:2] == (frames.END, 5)


def test_a_host_that_does_not_read_is_waited_for(tmp_path: Path) -> None:
    with agent(tmp_path) as (process, ours):
        raw = Raw(ours)
        assert raw.receive()[0] == frames.HELLO
        for index in range(8):
            raw.send(running(2 * index + 1, b"print('x' * 900_000)", f"c{index}"))
        time.sleep(0.6)
        resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert resident < 60 << 20
        total, ended = 0, 0
        while ended < 8:
            kind, channel, payload = raw.receive()
            if kind == frames.OUT:
                total += len(payload)
                if len(payload) > 1000:
                    raw.send(frames.credit_frame(channel, len(payload)))
            ended += kind == frames.END
        assert total == 8 * 900_001


def test_it_idles_without_waking_up(tmp_path: Path) -> None:
    with agent(tmp_path) as (process, ours):
        raw = Raw(ours)
        raw.send(running(1, b"1"))
        raw.until_end(1)
        time.sleep(0.2)
        ticks = Path(f"/proc/{process.pid}/status").read_text().split("voluntary_ctxt_switches:")[1].split()[0]
        time.sleep(0.5)
        after = Path(f"/proc/{process.pid}/status").read_text().split("voluntary_ctxt_switches:")[1].split()[0]
        assert int(after) - int(ticks) <= 1


def test_it_is_not_traceable_and_deaf_to_interrupts(tmp_path: Path) -> None:
    with agent(tmp_path) as (process, ours):
        raw = Raw(ours)
        assert raw.receive()[0] == frames.HELLO
        ignored = int(Path(f"/proc/{process.pid}/status").read_text().split("SigIgn:")[1].split()[0], 16)
        assert ignored & (1 << (2 - 1)), "an interrupt of the terminal is for the host"
        assert Path(f"/proc/{process.pid}/environ").stat().st_uid == 0
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                Path(f"/proc/{process.pid}/environ").read_bytes()


def test_it_starts_with_no_setup_at_all(tmp_path: Path) -> None:
    import socket

    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", "-S", "-B", str(MAIN), str(theirs.fileno())]
    with ours, subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        raw = Raw(ours)
        raw.send(running(1, b"import os; print(os.getcwd(), len(os.environ))"))
        assert (frames.OUT, 1, b"/ 0\n") in raw.until_end(1)
        ours.close()
        assert process.wait(SECONDS) == 1


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_it_runs_on_other_pythons(tmp_path: Path, version: str) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    if not found:
        pytest.skip(f"no Python {version} here")
    with agent(tmp_path, python=str(found[-1])) as (_, ours):
        raw = Raw(ours)
        raw.send(config(tmp_path), running(1, b"import sys; print('%d.%d' % sys.version_info[:2]); 1 / 0"))
        found_frames = raw.until_end(1)
        assert (frames.OUT, 1, version.encode() + b"\n") in found_frames
        assert json.loads(found_frames[-1][2])["error"]["name"] == "ZeroDivisionError"
        raw.send(running(3, b"input()", stdin=True), frame(frames.DATA, 3, b"hi\n"), frame(frames.EOF, 3))
        assert b"'hi'" in raw.until_end(3)[-2][2]
        raw.send(
            opening(5, "file.write", path="f", append=False, mode=None),
            frame(frames.DATA, 5, b"x"),
            frame(frames.EOF, 5),
        )
        assert json.loads(raw.until_end(5)[-1][2]) == {"size": 1}
        raw.send(opening(7, "file.list", path=".", recursive=True))
        assert json.loads(raw.until_end(7)[-1][2]) == {"count": 1}
        raw.send(opening(9, "exec", shell="echo $0", cwd=None, env={}, stdin=False))
        assert (frames.OUT, 9, b"/bin/sh\n") in raw.until_end(9)
        raw.send(running(11, b"raise SystemExit(3)"))
        assert json.loads(raw.until_end(11)[-1][2])["exit_code"] == 3
