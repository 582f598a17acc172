"""JSON Schema (2020-12) of what travels, generated from the dataclasses and the tables that check their values."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal, Union

from kooi.contract import policy
from kooi.contract.limits import RANGES, Limits, Range
from kooi.contract.policy import Dataset, Policy
from kooi.contract.result import Result
from kooi.contract.spec import LEVEL_NAME, MAX_PRELOAD, MODULE_NAME, Spec
from kooi.contract.wire import DERIVED, hints, required

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "contentEncoding": "base64"},
}


def spec_schema() -> dict[str, Any]:
    """Return the schema of a `Spec`, as `Spec.from_mapping` and `wire.loads` accept it."""
    return schema(Spec)


def result_schema() -> dict[str, Any]:
    """Return the schema of a `Result`, as `wire.dumps` writes it."""
    return schema(Result)


def schema(cls: type) -> dict[str, Any]:
    """Return the schema of one of `wire.WIRE_TYPES`."""
    return {"$schema": DIALECT, "title": cls.__name__, **_object(cls)}


def _object(cls: type) -> dict[str, Any]:
    properties = {name: _property(cls, name, hint) for name, hint in hints(cls).items()}
    for name in DERIVED.get(cls, ()):
        properties[name] = {**_of(typing.get_type_hints(_getter(cls, name))["return"]), "readOnly": True}
    found: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    if required(cls):
        found["required"] = sorted(required(cls))
    return found


def _getter(cls: type, name: str) -> Any:
    return cls.__dict__[name].fget


def _property(cls: type, name: str, hint: Any) -> dict[str, Any]:
    if cls is Limits:
        return _limit(RANGES[name])
    special = _SPECIAL.get((cls, name))
    return _of(hint) if special is None else special()


def _of(hint: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(hint):
        return _object(typing.cast(type, hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(arguments[0]), {"type": "null"}]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _of(arguments[0])}
    if origin is not None:
        return {"type": "object", "additionalProperties": _of(arguments[1])}
    return dict(_SCALARS[hint])


# --- what the types alone do not say


def _limit(allowed: Range) -> dict[str, Any]:
    number = {"type": "integer" if allowed.whole else "number", "minimum": allowed.low, "maximum": allowed.high}
    return {"anyOf": [number, {"type": "null"}, {"const": "none"}]}


def _names(known: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "array", "items": {"enum": list(known)}}


def _whole_match(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


def _datasets() -> dict[str, Any]:
    listed = {"type": "array", "items": {**_object(Dataset)}}
    name = {**_whole_match(policy.DATASET_NAME), "not": {"enum": [".", ".."]}}
    named = {"type": "object", "propertyNames": name, "additionalProperties": _source()}
    return {"anyOf": [listed, named]}


def _source() -> dict[str, Any]:
    return {"type": "string", "pattern": "^/", "maxLength": 4096}


def _preload() -> dict[str, Any]:
    names = {"type": "array", "maxItems": MAX_PRELOAD, "items": {**_whole_match(MODULE_NAME), "maxLength": 255}}
    return {"anyOf": [names, {"type": "null"}]}


_SPECIAL: dict[tuple[type, str], Any] = {
    (Spec, "level"): lambda: _whole_match(LEVEL_NAME),
    (Spec, "image"): lambda: {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 4096}, {"type": "null"}]},
    (Spec, "preload"): _preload,
    (Policy, "datasets"): _datasets,
    (Policy, "waive"): lambda: _names(policy.CLAUSES),
    (Policy, "require"): lambda: _names(policy.LAYERS),
    (Dataset, "name"): lambda: {**_whole_match(policy.DATASET_NAME), "not": {"enum": [".", ".."]}},
    (Dataset, "source"): _source,
}
