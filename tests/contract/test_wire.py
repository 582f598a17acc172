from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kooi.contract import wire
from kooi.contract.backend import BoxEvent, Posture
from kooi.contract.errors import InvalidPolicy, InvalidRequest
from kooi.contract.result import Enforcement, ErrorInfo, Result, RichItem, RunEvent, Usage
from kooi.contract.spec import Spec

from . import strategies as own

EVERY = {
    Spec: own.specs,
    Result: own.results,
    RunEvent: own.run_events,
    Enforcement: own.enforcements,
    Usage: own.usages,
    Posture: own.postures,
    BoxEvent: own.box_events,
}
RESULT = Result(
    status="error",
    exit_code=1,
    signal=None,
    stdout_bytes=b"caf\xc3\xa9 \xff\x00\x1b[31m",
    stderr_bytes=b"",
    stdout_total_bytes=100,
    stderr_total_bytes=0,
    results=(RichItem({"text/plain": "1\u202e"}),),
    error=ErrorInfo("ValueError", "no", "Traceback"),
    events=("pids_limit",),
    usage=Usage(wall_seconds=0.25),
    level="jail",
    strength="kernel-shared",
    policy_digest="00",
    enforcement=Enforcement("jail", "kernel-shared", (), ("kill",)),
    decided_by="host",
)


def test_every_type_is_tried() -> None:
    assert set(EVERY) == set(wire.WIRE_TYPES)


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)
def test_round_trip(cls: type) -> None:
    @given(EVERY[cls])
    def check(value: Any) -> None:
        data = wire.dumps(value)
        assert data.isascii() and b"\x1b" not in data and b"\n" not in data
        back: Any = wire.loads(cls, data)
        assert back == value and wire.dumps(back) == data
        assert [type(item) for item in _leaves(back)] == [type(item) for item in _leaves(value)]

    check()


def _leaves(value: Any) -> list[Any]:
    if dataclasses.is_dataclass(value):
        return [leaf for field in dataclasses.fields(value) for leaf in _leaves(getattr(value, field.name))]
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def test_a_result_carries_exact_bytes_and_text_for_readers() -> None:
    document = json.loads(wire.dumps(RESULT))
    assert document["stdout_bytes"] == "Y2Fmw6kg/wAbWzMxbQ=="
    assert document["stdout"] == "caf\u00e9 \ufffd\x00\x1b[31m" and document["stderr"] == ""
    assert document["truncated"] is True and document["ok"] is False and document["waivers"] == ["kill"]
    assert wire.loads(Result, wire.dumps(RESULT)).stdout_bytes == RESULT.stdout_bytes
    event = wire.to_json(RunEvent("stdout", b"\xffa"))
    assert event["text"] == "\ufffda" and event["data"] == "/2E="


def test_derived_keys_may_be_left_out_but_must_agree() -> None:
    document = wire.to_json(RESULT)
    for name in ("stdout", "stderr", "truncated", "ok", "waivers"):
        assert wire.from_json(Result, {key: value for key, value in document.items() if key != name}) == RESULT
    for name, value in [("stdout", "other"), ("truncated", False), ("ok", True), ("waivers", []), ("ok", None)]:
        with pytest.raises(InvalidRequest) as caught:
            wire.from_json(Result, {**document, name: value})
        assert caught.value.key == f"result.{name}"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"status": "fine"}, "result.status"),
        ({"status": None}, "result.status"),
        ({"status": ["ok"]}, "result.status"),
        ({"exit_code": True}, "result.exit_code"),
        ({"exit_code": 1.0}, "result.exit_code"),
        ({"exit_code": "1"}, "result.exit_code"),
        ({"stdout_bytes": "Y2Fmw6k"}, "result.stdout_bytes"),
        ({"stdout_bytes": "YR=="}, "result.stdout_bytes"),
        ({"stdout_bytes": "YQ==\n"}, "result.stdout_bytes"),
        ({"stdout_bytes": "Y Q=="}, "result.stdout_bytes"),
        ({"stdout_bytes": "_w=="}, "result.stdout_bytes"),
        ({"stdout_bytes": "é"}, "result.stdout_bytes"),
        ({"stdout_bytes": None}, "result.stdout_bytes"),
        ({"stdout_bytes": [1]}, "result.stdout_bytes"),
        ({"results": {}}, "result.results"),
        ({"results": [3]}, "result.results[0]"),
        ({"results": [{"data": []}]}, "result.results[0].data"),
        ({"results": [{"data": {"text/plain": 3}}]}, "result.results[0].data.text/plain"),
        ({"error": {"name": "x", "value": "y"}}, "result.error.traceback"),
        ({"error": {"name": "x", "value": "y", "traceback": "z", "extra": 1}}, "result.error.extra"),
        ({"events": "oom"}, "result.events"),
        ({"events": [None]}, "result.events[0]"),
        ({"usage": None}, "result.usage"),
        ({"usage": {"wall_seconds": "1"}}, "result.usage.wall_seconds"),
        ({"usage": {"wall_seconds": True}}, "result.usage.wall_seconds"),
        ({"usage": {"shared": 0}}, "result.usage.shared"),
        ({"strenght": "none"}, "result.strenght"),
        ({3: "none"}, "result.3"),
    ],
)
def test_wrong_documents_are_refused_by_key(change: dict[Any, Any], key: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wire.from_json(Result, {**wire.to_json(RESULT), **change})
    assert caught.value.key == key and len(str(caught.value)) < 500


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("data", [b"[]", b"null", b"3", b'"x"', b'{"zzz":1}', b"{"])
def test_no_type_accepts_another_shape(cls: type, data: bytes) -> None:
    with pytest.raises((InvalidRequest, InvalidPolicy)):
        wire.loads(cls, data)


def test_nothing_required_may_be_missing() -> None:
    document = wire.to_json(RESULT)
    needed = {field.name for field in dataclasses.fields(Result)} - {"files_changed"}
    for name in needed:
        with pytest.raises(InvalidRequest) as caught:
            wire.from_json(Result, {key: value for key, value in document.items() if key != name})
        assert caught.value.key == f"result.{name}"
    assert wire.from_json(Usage, {}) == Usage()


def test_a_spec_is_checked_like_any_other() -> None:
    assert wire.loads(Spec, b"{}") == Spec()
    for data, key in [
        (b'{"limits":{"files":0}}', "limits.files"),
        (b'{"policy":{"network":["*"]}}', "policy.network"),
        (b'{"levle":"jail"}', "levle"),
        (b'{"limits":{"wall_seconds":1e300}}', "limits.wall_seconds"),
    ]:
        with pytest.raises(InvalidPolicy) as caught:
            wire.loads(Spec, data)
        assert caught.value.key == key
    with pytest.raises(InvalidRequest, match="twice"):
        wire.loads(Spec, b'{"level":"microvm","level":"process"}')


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (Usage(wall_seconds=math.nan), "usage.wall_seconds"),
        (Usage(cpu_seconds=math.inf), "usage.cpu_seconds"),
        (Usage(memory_peak_bytes=2**64), "usage.memory_peak_bytes"),
        (RunEvent("result", item=RichItem({"text/plain": "\ud800"})), "runevent.item.data.text/plain"),
        (BoxEvent("failed", detail="\udcff"), "boxevent.detail"),
    ],
)
def test_what_cannot_be_carried_is_refused_when_written(value: object, key: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wire.dumps(value)
    assert caught.value.key == key


def test_only_known_types_travel() -> None:
    write: list[Callable[[], object]] = [
        lambda: wire.dumps({"a": 1}),
        lambda: wire.dumps(ErrorInfo("a", "b", "c")),
        lambda: wire.loads(dict, b"{}"),
    ]
    for attempt in write:
        with pytest.raises(TypeError, match="does not travel"):
            attempt()


def test_size_is_capped() -> None:
    with pytest.raises(InvalidRequest, match="at most 10"):
        wire.loads(Result, wire.dumps(RESULT), max_bytes=10)


@given(st.binary(max_size=40), st.integers(0, 10_000))
def test_damaged_documents_never_raise_anything_else(junk: bytes, where: int) -> None:
    data = wire.dumps(RESULT)
    where %= len(data)
    try:
        wire.loads(Result, data[:where] + junk + data[where + len(junk) :])
    except InvalidRequest:
        pass
