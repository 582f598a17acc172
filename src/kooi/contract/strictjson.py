"""A JSON reader for hostile input: one meaning for every document, and bounds on size, nesting and numbers.

`json` alone takes the last of two equal keys, reads NaN, makes lone surrogates, recurses as deep as the input says and
converts a number of a million digits. Here each of these is an error.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from kooi.contract.checks import is_unicode, shown
from kooi.contract.errors import InvalidRequest

MAX_DEPTH = 32
MAX_BYTES = 64 * 1024 * 1024
MAX_INT = 2**64 - 1  # capability sets are 64-bit masks
MIN_INT = -(2**63)

_LONGEST_NUMBER = 64
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_MARKS = bytes(set(range(256)) - set(b'[]{}"'))


def strict_loads(data: bytes, *, max_depth: int = MAX_DEPTH, max_bytes: int = MAX_BYTES) -> Any:
    """Return the value of a JSON document in UTF-8.

    Raises `InvalidRequest` for more than `max_bytes` (default 64 MiB), nesting deeper than `max_depth`, equal keys,
    NaN, infinity, whole numbers beyond 64 bits, lone surrogates, and whatever is not JSON.
    """
    if len(data) > max_bytes:
        raise InvalidRequest(f"JSON: {len(data)} bytes given; accepted: at most {max_bytes}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"JSON: not UTF-8 at byte {error.start}")
    if not _is_balanced(data, max_depth):
        raise InvalidRequest(f"JSON: nested deeper than {max_depth}, or its brackets do not match")
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction, parse_constant=_constant
        )
    except ValueError as error:
        raise InvalidRequest(f"JSON: {error}")
    if _SURROGATE_ESCAPE.search(text):
        _refuse_surrogates(value)
    return value


def _is_balanced(data: bytes, max_depth: int) -> bool:
    """Whether all brackets outside strings pair up within `max_depth`; linear, without recursion.

    Up to the first syntax error this sees strings as the parser does, and the parser goes no further than that.
    """
    marks = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_TO_SQUARE, _NOT_MARKS)
    # Two quotes side by side open and close, or close and open: without them fewer pieces, so less memory.
    left = "".join(marks.replace(b'""', b"").decode("ascii").split('"')[::2])
    for _ in range(max_depth):
        if not left:
            break
        left = left.replace("[]", "")  # each pass takes off the innermost level, and only that
    return not left


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidRequest(f"JSON: the key {shown(twice)} is given twice")
    return value


def _integer(digits: str) -> int:
    # The length first: converting is quadratic, and Python refuses more than 4300 digits with an error of its own.
    if len(digits) > 20 or not MIN_INT <= (value := int(digits)) <= MAX_INT:
        raise InvalidRequest(f"JSON: a whole number of {len(digits)} digits is beyond 64 bits")
    return value


def _fraction(digits: str) -> float:
    if len(digits) > _LONGEST_NUMBER or not math.isfinite(value := float(digits)):
        raise InvalidRequest(f"JSON: the number {digits[:_LONGEST_NUMBER]} is too long or too large")
    return value


def _constant(name: str) -> NoReturn:
    raise InvalidRequest(f"JSON: {name} is not a number")


def _refuse_surrogates(value: object) -> None:
    if isinstance(value, str) and not is_unicode(value):
        raise InvalidRequest("JSON: text with a lone surrogate is not Unicode")
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_surrogates(key)
            _refuse_surrogates(item)
    elif isinstance(value, list):
        for item in value:
            _refuse_surrogates(item)
