"""Mutated conversations, with a small budget; `tests/fuzz_frames.py` runs them with any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kooi.guest import frames, shapes
from kooi.guest.answers import Answers, BadAnswer
from kooi.guest.frames import FrameError
from tests import fuzz_frames

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    ["op", "status", "exit_code", "signal", "error", "left", "size", "count", "entry", "errno", "message", "type",
     "data", "entries", "context", "code_bytes", "stdin", "limits", "path", "append", "mode", "argv", "env", "cwd"]
)  # fmt: skip
OBJECTS = st.dictionaries(FIELDS | st.text(max_size=4), JSON | st.sampled_from(list(fuzz_frames.ODD)), max_size=8)
OPS = st.sampled_from([op for op, _, _ in fuzz_frames.CALLS])


@pytest.mark.parametrize(("target", "budget"), [("client", 6000), ("parser", 6000), ("answers", 3000)])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_mutated_conversations(target: str, budget: int, seed: int) -> None:
    assert fuzz_frames.fuzz(target, budget // 4, 10**9 + seed) >= budget // 4


def test_mutated_conversations_with_an_agent() -> None:
    """In a process of its own, because the agent's children are stubbed out there."""
    script = Path(fuzz_frames.__file__)
    command = [sys.executable, str(script), "--target", "agent", "--frames", "1500", "--seed", "77"]
    env = {"PYTHONPATH": str(Path(frames.__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0 and "no failure" in done.stdout, done.stderr


@given(OPS, OBJECTS)
@settings(max_examples=300, deadline=None)
def test_checks_raise_nothing_but_their_error(op: str, value: dict[str, Any]) -> None:
    checks = (
        lambda: shapes.check_end(op, value), lambda: shapes.check_event(op, value), lambda: shapes.check_open(value),
        lambda: shapes.check_config(value), lambda: shapes.check_control(value), lambda: shapes.check_hello(value),
        lambda: shapes.check_open({**value, "op": op}),
    )  # fmt: skip
    for check in checks:
        try:
            check()
        except FrameError:
            pass


@given(st.binary(max_size=200) | JSON.map(fuzz_frames.encoded))
@settings(max_examples=500, deadline=None)
def test_json_is_an_object_or_a_violation(payload: bytes) -> None:
    try:
        assert type(frames.loads(payload)) is dict
    except FrameError:
        pass


@given(st.lists(st.binary(max_size=60), max_size=8))
@settings(max_examples=300, deadline=None)
def test_an_interpreter_may_say_anything(pieces: list[bytes]) -> None:
    answers = Answers()
    try:
        for piece in pieces:
            for kind, number, texts in answers.feed(piece):
                assert len(kind) == 1 and 0 <= number < 2**32 and all(type(text) is str for text in texts)
    except BadAnswer:
        pass
