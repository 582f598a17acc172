"""Every field of every message is looked at: one wrong, missing or unknown field is a violation."""

from __future__ import annotations

from typing import Any

import pytest

from kooi.guest import shapes
from kooi.guest.frames import FrameError

ENTRY = {"name": "a", "path": "b/a", "type": "file", "size": 1, "mode": 0o644, "mtime": 1.5, "target": None}
ERROR = {"name": "ValueError", "value": "bad", "traceback": "..."}
ENDED = {"status": "ok", "exit_code": None, "signal": None, "error": None, "left": 0}

GOOD_ENDS: list[tuple[str, dict[str, Any]]] = [
    ("run", ENDED),
    ("run", {**ENDED, "left": None}),
    ("run", {**ENDED, "status": "error", "error": ERROR}),
    ("exec", {**ENDED, "status": "exit", "exit_code": 255}),
    ("exec", {**ENDED, "status": "signal", "signal": 9}),
    ("file.read", {"size": 0}),
    ("file.write", {"errno": 28, "message": "full"}),
    ("file.list", {"count": 3}),
    ("file.stat", {"entry": ENTRY}),
    ("file.stat", {"entry": {**ENTRY, "exact": False, "type": "link", "target": "x", "mtime": 3}}),
    ("file.mkdir", {}),
    ("ping", {}),
]
BAD_ENDS: list[tuple[str, dict[str, Any]]] = [
    ("run", {**ENDED, "status": "fine"}),
    ("run", {**ENDED, "status": "error"}),
    ("run", {**ENDED, "error": ERROR}),
    ("run", {**ENDED, "exit_code": 0}),
    ("run", {**ENDED, "status": "exit"}),
    ("run", {**ENDED, "status": "exit", "exit_code": 256}),
    ("run", {**ENDED, "status": "exit", "exit_code": True}),
    ("run", {**ENDED, "status": "exit", "exit_code": 1.0}),
    ("run", {**ENDED, "status": "signal", "signal": 0}),
    ("run", {**ENDED, "left": -1}),
    ("run", {**ENDED, "left": 2**80}),
    ("run", {**ENDED, "more": 1}),
    ("run", {key: value for key, value in ENDED.items() if key != "left"}),
    ("run", {**ENDED, "status": "error", "error": {**ERROR, "name": 1}}),
    ("run", {**ENDED, "status": "error", "error": {"name": "x"}}),
    ("run", {"errno": 1, "message": "no file operation"}),
    ("file.read", {}),
    ("file.read", {"size": -1}),
    ("file.read", {"size": "1"}),
    ("file.read", {"errno": "2", "message": ""}),
    ("file.read", {"errno": 2}),
    ("file.stat", {"entry": {**ENTRY, "type": "socket"}}),
    ("file.stat", {"entry": {**ENTRY, "mode": 0o10000}}),
    ("file.stat", {"entry": {**ENTRY, "exact": True}}),
    ("file.stat", {"entry": []}),
    ("ping", {"errno": 1, "message": ""}),
    ("ping", {"x": 1}),
]


@pytest.mark.parametrize(("op", "value"), GOOD_ENDS)
def test_good_ends(op: str, value: dict[str, Any]) -> None:
    shapes.check_end(op, value)


@pytest.mark.parametrize(("op", "value"), BAD_ENDS)
def test_bad_ends(op: str, value: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        shapes.check_end(op, value)


def test_events() -> None:
    shapes.check_event("run", {"type": "result", "data": {"text/plain": "1"}})
    shapes.check_event("file.list", {"type": "entries", "entries": [ENTRY] * 500})
    bad: list[tuple[str, dict[str, Any]]] = [
        ("run", {"type": "result", "data": {"text/plain": 1}}),
        ("run", {"type": "result", "data": {"": "x"}}),
        ("run", {"type": "result", "data": {str(index): "" for index in range(65)}}),
        ("run", {"type": "entries", "entries": []}),
        ("run", {"type": ["result"], "data": {}}),
        ("run", {}),
        ("exec", {"type": "result", "data": {}}),
        ("file.list", {"type": "entries", "entries": [ENTRY] * 501}),
        ("file.list", {"type": "entries", "entries": [{}]}),
        ("file.list", {"type": "entries", "entries": {}}),
    ]
    for op, value in bad:
        with pytest.raises(FrameError):
            shapes.check_event(op, value)


RUN = {"op": "run", "context": "", "code_bytes": 1, "stdin": False, "limits": {}}
EXEC = {"op": "exec", "argv": ["x"], "cwd": None, "env": {}, "stdin": False}


@pytest.mark.parametrize(
    "value",
    [
        {}, {"op": "nope"}, {"op": ["run"]}, {"op": None}, {**RUN, "code_bytes": -1}, {**RUN, "code_bytes": True},
        {**RUN, "code_bytes": 2**70}, {**RUN, "stdin": 0}, {**RUN, "context": None}, {**RUN, "limits": {"x": 1}},
        {**RUN, "limits": []}, {**RUN, "extra": 1}, {"op": "run"}, {**EXEC, "argv": []}, {**EXEC, "argv": ["a\0"]},
        {**EXEC, "argv": "ls"}, {**EXEC, "shell": "x"}, {**EXEC, "env": {"A=B": "x"}}, {**EXEC, "env": {"": "x"}},
        {**EXEC, "env": {"A": "\0"}}, {**EXEC, "env": []}, {**EXEC, "cwd": "a\0b"}, {"op": "file.read", "path": "a\0"},
        {"op": "file.read", "path": 3}, {"op": "file.write", "path": "x", "append": False, "mode": 0o10000},
        {"op": "file.write", "path": "x", "append": 1, "mode": None}, {"op": "ping", "x": 1},
    ],
)  # fmt: skip
def test_bad_opens(value: dict[str, Any]) -> None:
    with pytest.raises(FrameError):
        shapes.check_open(value)


def test_good_opens() -> None:
    shapes.check_open(RUN)
    shapes.check_open(EXEC)
    shapes.check_open({**{key: value for key, value in EXEC.items() if key != "argv"}, "shell": "ls"})
    shapes.check_open({"op": "file.write", "path": "x", "append": False, "mode": 0o600})
    assert not shapes.takes_input(RUN)
    assert shapes.takes_input({**RUN, "stdin": True})
    assert shapes.takes_input({"op": "file.write"})


def test_configuration_and_control() -> None:
    shapes.check_config({"env": {"A": "b"}, "cwd": "/"})
    shapes.check_control({"signal": 64})
    shapes.check_hello({"protocol": 1, "python": "3.11", "pid": 1})
    for bad in ({"signal": 0}, {"signal": 65}, {"signal": "9"}, {}, {"signal": 9, "x": 1}):
        with pytest.raises(FrameError):
            shapes.check_control(bad)
    for bad in ({"env": {}, "cwd": "\0"}, {"env": {"A": 1}, "cwd": ""}, {"cwd": ""}):
        with pytest.raises(FrameError):
            shapes.check_config(bad)
    for bad in ({"protocol": 2, "python": "", "pid": 1}, {"protocol": 1, "python": "", "pid": -1}):
        with pytest.raises(FrameError):
            shapes.check_hello(bad)
