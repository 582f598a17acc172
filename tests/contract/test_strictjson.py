from __future__ import annotations

import json
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kooi.contract.errors import InvalidRequest
from kooi.contract.wire import strict_loads


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth(item) for item in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth(item) for item in value), default=0)
    return 0


_texts = st.text(st.characters(codec="utf-8") | st.sampled_from('\\"[]{}'), max_size=12)
_floats = st.floats(allow_nan=False, allow_infinity=False)
documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | _floats | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(documents, st.booleans(), st.sampled_from([None, 1]))
def test_what_json_writes_comes_back(value: Any, ascii_only: bool, indent: int | None) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert strict_loads(data) == value


@given(documents, st.integers(0, 4))
def test_the_depth_cap_is_exact(value: Any, most: int) -> None:
    data = json.dumps(value).encode()
    if depth(value) <= most:
        assert strict_loads(data, max_depth=most) == value
    else:
        with pytest.raises(InvalidRequest, match="nested"):
            strict_loads(data, max_depth=most)


@given(st.binary(max_size=60) | st.text('[]{}",:\\u0d8e1 -.NaItruefls', max_size=60).map(str.encode))
def test_anything_else_is_one_kind_of_error(data: bytes) -> None:
    try:
        value = strict_loads(data)
    except InvalidRequest as error:
        assert len(str(error)) < 400
    else:
        assert json.loads(data) == value
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b" ", b"{", b"nul", b"'a'", b"[1,]", b"{a:1}", b"[1] x", b"\xef\xbb\xbf[]", b"\xff", b'"\xed\xa0\x80"',
        b"[\x00]", '"\u00e9"'.encode("latin-1"), "[]".encode("utf-16"), b'"a\nb"', b"01", b"+1", b".5", b"0x1", b"1_0",
        b'{"a":1,"a":1}', b'[{"x":{"b":1,"c":2,"b":3}}]', b'{"a":1,"\\u0061":2}',
        b"NaN", b"Infinity", b"-Infinity", b"[NaN]", b"1e999", b"-1e999", b"1" + b"0" * 400 + b".0",
        b"18446744073709551616", b"-9223372036854775809", b"1" * 5000, b"-" + b"9" * 100_000, b"0." + b"1" * 100,
        b'"\\ud800"', b'"\\uDFFF"', b'{"\\udc00":1}', b'["\\ud83d\\ud83d\\ude00"]', b'"\\ude00\\ud83d"',
    ],
    ids=lambda data: repr(data[:24]),
)  # fmt: skip
def test_documents_that_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        strict_loads(data)
    assert str(caught.value).startswith("JSON: ") and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\\\ud800"', "\\ud800"),
        (b"18446744073709551615", 2**64 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"1e5", 1e5),
        (b' {"a": [1, {}]} ', {"a": [1, {}]}),
        (b'"]]]]\\"[[[["', ']]]]"[[[['),
        (b'{"a\\\\":"[","b":"\\\\\\""}', {"a\\": "[", "b": '\\"'}),
    ],
)
def test_documents_that_are_accepted(data: bytes, value: Any) -> None:
    assert strict_loads(data) == value


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"[{", b'["x",'])
@pytest.mark.parametrize("closed", [True, False])
def test_no_nesting_recurses(opening: bytes, closed: bool) -> None:
    closing = opening[::-1].translate(bytes.maketrans(b"[{", b"]}"), b'"a:x,') if closed else b""
    times = 200_000
    data = opening * times + (b"1" + closing * times if closed else b"")
    limit = sys.getrecursionlimit()
    with pytest.raises(InvalidRequest, match="nested deeper than 32"):
        strict_loads(data)
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(
    "data", [b"[" * 33 + b"]" * 33, b'["\\\\",' * 33 + b"1" + b"]" * 33, b'["\\"",' * 33 + b"1" + b"]" * 33]
)
def test_strings_do_not_hide_nesting(data: bytes) -> None:
    assert strict_loads(data, max_depth=33) is not None
    with pytest.raises(InvalidRequest, match="nested"):
        strict_loads(data)


def test_size_is_checked_before_anything_else() -> None:
    with pytest.raises(InvalidRequest, match="at most 4"):
        strict_loads(b"\xff" * 5, max_bytes=4)
    assert strict_loads(b"[1] ", max_bytes=4) == [1]


@pytest.mark.parametrize("unit", [b'"', b'\\"', b"\\", b"[]", b"[],", b"{}", b"}{", b'"\\\\"', b'"a":', b'"[', b'"[['])
def test_hostile_shapes_cost_memory_in_proportion_only(unit: bytes) -> None:
    data = b"[" + unit * (262_144 // len(unit))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            strict_loads(data)
        assert tracemalloc.get_traced_memory()[1] < 32 * len(data)
    finally:
        tracemalloc.stop()
