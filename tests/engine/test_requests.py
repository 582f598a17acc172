"""Bad input is a clear error that names its argument; good input of any size passes."""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kooi.contract.errors import InvalidRequest
from kooi.engine import requests


def _refused(key: str, words: str, call: Any, *args: Any) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        call(*args)
    assert caught.value.key == key


def test_code_may_be_anything_that_is_bytes() -> None:
    assert requests.code_bytes("print('\u00e4')", None) == ("print('\u00e4')".encode(), b"")
    assert requests.code_bytes(b"\xff\0", "in") == (b"\xff\0", b"in")
    big = "#" * 100_000_000
    assert len(requests.code_bytes(big, None)[0]) == 100_000_000


def test_code_that_cannot_be_sent() -> None:
    _refused("code", r"lone surrogate '\\ud800' at 3", requests.code_bytes, "a=1\ud800", None)
    _refused("code", "is int", requests.code_bytes, 5, None)
    _refused("stdin", "lone surrogate", requests.code_bytes, "", "\udfff")


@pytest.mark.parametrize("bad", [0, -1, 0.0, -0.5, math.nan, math.inf, -math.inf])
def test_timeouts_that_mean_nothing(bad: float) -> None:
    _refused("timeout", "above 0", requests.seconds, bad, 30.0)


@pytest.mark.parametrize("bad", ["5", True, [1]])
def test_timeouts_of_another_type(bad: object) -> None:
    _refused("timeout", "number of seconds", requests.seconds, bad, 30.0)


@given(st.floats(min_value=1e-6, max_value=1e9), st.none() | st.floats(min_value=0.001, max_value=1e6))
def test_a_timeout_only_narrows(timeout: float, limit: float | None) -> None:
    assert requests.seconds(timeout, limit) == (timeout if limit is None else min(timeout, limit))
    assert requests.seconds(None, limit) == limit


def test_commands() -> None:
    assert requests.command("ls | wc") == {"shell": "ls | wc"}
    assert requests.command(("ls", "", "-l")) == {"argv": ["ls", "", "-l"]}
    assert requests.command(["x"] * 50_000) == {"argv": ["x"] * 50_000}
    _refused("command", "has no arguments", requests.command, [])
    _refused("command", "is empty", requests.command, "")
    _refused("command[0]", "is empty", requests.command, [""])
    _refused("command[1]", "NUL character at 1", requests.command, ["a", "b\0"])
    _refused("command[1]", "is bytes", requests.command, ["a", b"b"])
    _refused("command", "is bytes", requests.command, b"ls")
    _refused("command", "takes 400001 bytes", requests.command, ["x"] * 100_000)


def test_environments() -> None:
    assert requests.environment(None) == {}
    assert requests.environment({"A": "", "B": "=\n"}) == {"A": "", "B": "=\n"}
    _refused("env", "at most 131072 bytes", requests.environment, {"A": "x" * 1_000_000})
    _refused("env", "takes 600008 bytes", requests.environment, {"A": "\x01" * 100_000})
    for bad in ({"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "\ud800"}, {"A": 5}, {5: "A"}, [("A", "B")]):
        with pytest.raises(InvalidRequest) as caught:
            requests.environment(bad)  # type: ignore[arg-type]
        assert str(caught.value.key).startswith("env")


def test_paths() -> None:
    assert requests.path("a b/\u00e4") == "a b/\u00e4"
    assert requests.path(PurePosixPath("a/b")) == "a/b"
    _refused("path", "is empty", requests.path, "")
    _refused("path", "NUL", requests.path, "a\0b")
    _refused("path", "lone surrogate", requests.path, "a\udc80")
    _refused("path", "is int", requests.path, 5)
    _refused("path", "is bytes", requests.path, b"a")


def test_content() -> None:
    assert requests.content("\u00e4") == b"\xc3\xa4"
    assert requests.content(bytearray(b"x")) == b"x"
    _refused("data", "is NoneType", requests.content, None)
