"""The only serialisation: strict JSON for specs, results, events and reports, and their JSON Schema.

A dataclass is an object with its fields as keys; the form follows from the type hints alone. Bytes are base64 under
their own name, so they come back exact. For readers a `Result` also carries `stdout` and `stderr` as text, `truncated`,
`ok` and `waivers`, and a `RunEvent` carries `text`; on the way back these must agree with what they derive from.
What is written is ASCII (everything else as `\\u` escapes), so a document never steers a terminal.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union

from kooi.contract import checks
from kooi.contract.backend import BoxEvent, Posture
from kooi.contract.errors import InvalidRequest, KooiError
from kooi.contract.result import Enforcement, Result, RunEvent, Usage
from kooi.contract.spec import Spec
from kooi.contract.strictjson import MAX_BYTES, MAX_INT, MIN_INT
from kooi.contract.strictjson import strict_loads as strict_loads

WIRE_TYPES: tuple[type, ...] = (Spec, Result, RunEvent, Enforcement, Usage, Posture, BoxEvent)

# Written for readers; checked, not read, on the way back.
DERIVED: Mapping[type, tuple[str, ...]] = types.MappingProxyType(
    {Result: ("stdout", "stderr", "truncated", "ok", "waivers"), RunEvent: ("text",)}
)

T = TypeVar("T")


def dumps(value: object) -> bytes:
    """Return the JSON document of a value of one of `WIRE_TYPES`, in one line of ASCII."""
    return json.dumps(to_json(value), separators=(",", ":"), allow_nan=False).encode("ascii")


def loads(cls: type[T], data: bytes, *, max_bytes: int = MAX_BYTES) -> T:
    """Return the `cls` (one of `WIRE_TYPES`) of a JSON document of at most `max_bytes`.

    Raises `InvalidRequest` naming the key, or `InvalidPolicy` for a `Spec`; see also `strict_loads`.
    """
    return from_json(cls, strict_loads(data, max_bytes=max_bytes))


def to_json(value: object) -> dict[str, Any]:
    """Return the JSON object of a value of one of `WIRE_TYPES`.

    Raises `InvalidRequest` for what JSON cannot carry: lone surrogates, NaN, infinity, numbers beyond 64 bits.
    """
    _refuse_other(type(value))
    encoded: dict[str, Any] = _encode(value, type(value).__name__.lower())
    return encoded


def from_json(cls: type[T], data: object) -> T:
    """Return the `cls` (one of `WIRE_TYPES`) of a JSON object; errors as for `loads`.

    Keys whose field has a default may be missing. An unknown key is an error.
    """
    _refuse_other(cls)
    decoded: T = _decode_dataclass(cls, data, cls.__name__.lower())
    return decoded


def _refuse_other(cls: type) -> None:
    if cls not in WIRE_TYPES:
        raise TypeError(f"{cls.__name__} does not travel; {', '.join(one.__name__ for one in WIRE_TYPES)} do")


# --- writing


def _encode(value: object, key: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _carried(value, checks.is_unicode(value), key, "valid Unicode, without lone surrogates")
    if isinstance(value, int):
        return _carried(value, MIN_INT <= value <= MAX_INT, key, "a whole number of 64 bits")
    if isinstance(value, float):
        return _carried(value, math.isfinite(value), key, "a finite number")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    return _encode_many(value, key)


def _encode_many(value: object, key: str) -> Any:
    if isinstance(value, Spec):
        return value.to_mapping()  # checked when it was made
    if isinstance(value, Mapping):
        return {_encode(name, key): _encode(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_encode(item, f"{key}[{index}]") for index, item in enumerate(value)]
    cls: Any = type(value)
    names = [*hints(cls), *DERIVED.get(cls, ())]
    return {name: _encode(getattr(value, name), f"{key}.{name}") for name in names}


def _carried(value: T, possible: bool, key: str, accepted: str) -> T:
    if not possible:
        raise checks.refusal(key, value, accepted, error=InvalidRequest)
    return value


# --- reading


@functools.lru_cache(maxsize=64)
def hints(cls: type) -> Mapping[str, Any]:
    """Return the field types of a dataclass by name, in order. Resolving them is slow, so they are kept."""
    resolved = typing.get_type_hints(cls)
    return types.MappingProxyType({one.name: resolved[one.name] for one in dataclasses.fields(cls)})


@functools.lru_cache(maxsize=64)
def required(cls: type) -> frozenset[str]:
    """Return the names of the fields of a dataclass that have no default."""
    missing = dataclasses.MISSING
    fields = dataclasses.fields(cls)
    return frozenset(one.name for one in fields if one.default is missing and one.default_factory is missing)


def _decode_dataclass(cls: Any, data: object, key: str) -> Any:
    if cls is Spec:
        return Spec.from_mapping(checks.table("", data, hints(Spec)))
    derived = DERIVED.get(cls, ())
    given = checks.table(key, data, [*hints(cls), *derived], error=InvalidRequest)
    absent = sorted(required(cls) - given.keys())
    if absent:
        raise InvalidRequest(f"{key}.{absent[0]}: missing", key=f"{key}.{absent[0]}")
    fields = {name: _decode(hint, given[name], f"{key}.{name}") for name, hint in hints(cls).items() if name in given}
    value = cls(**fields)
    for name in derived:
        if name in given and _encode(getattr(value, name), f"{key}.{name}") != given[name]:
            raise InvalidRequest(f"{key}.{name}: disagrees with the fields it derives from", key=f"{key}.{name}")
    return value


def _decode(hint: Any, data: object, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, data, key)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):  # here always: something or None
        return None if data is None else _decode(arguments[0], data, key)
    if origin is Literal:
        if not isinstance(data, str) or data not in arguments:
            raise _wrong(key, data, " or ".join(arguments))
        return data
    if origin is tuple:
        return _decode_tuple(arguments, data, key)
    if origin is not None:  # here always: Mapping[str, something]
        if not isinstance(data, dict):
            raise _wrong(key, data, "an object")
        return {name: _decode(arguments[1], item, f"{key}.{name}") for name, item in data.items()}
    return _decode_bytes(data, key) if hint is bytes else _decode_scalar(hint, data, key)


def _decode_tuple(arguments: tuple[Any, ...], data: object, key: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise _wrong(key, data, "a list")
    return tuple(_decode(arguments[0], item, f"{key}[{index}]") for index, item in enumerate(data))


def _decode_bytes(data: object, key: str) -> bytes:
    try:
        value = base64.b64decode(data, validate=True) if isinstance(data, str) else None
    except (binascii.Error, ValueError):
        value = None
    # One document for one value: the unused last bits of base64 must be zero.
    if value is None or base64.b64encode(value).decode("ascii") != data:
        raise _wrong(key, data, "bytes in base64")
    return value


def _decode_scalar(hint: type, data: object, key: str) -> Any:
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, hint) or (isinstance(data, bool) and hint is not bool):
        raise _wrong(key, data, {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[hint])
    return data


def _wrong(key: str, data: object, accepted: str) -> KooiError:
    return checks.refusal(key, data, accepted, error=InvalidRequest)
