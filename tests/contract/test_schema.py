from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given

from kooi.contract import schema, wire
from kooi.contract.errors import InvalidPolicy, InvalidRequest
from kooi.contract.result import Result
from kooi.contract.spec import Spec

from . import strategies as own
from .test_wire import EVERY, RESULT

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,), "null": (type(None),),
}  # fmt: skip
ANNOTATIONS = {"$schema", "title", "readOnly", "contentEncoding"}


def fits(value: Any, form: dict[str, Any]) -> bool:
    """Whether `value` fits a schema: a small validator; a keyword it does not know is an error, not a pass."""
    return all(keyword in ANNOTATIONS or CHECKS[keyword](value, argument, form) for keyword, argument in form.items())


def _is_type(value: Any, name: str, form: dict[str, Any]) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _properties(value: Any, known: dict[str, Any], form: dict[str, Any]) -> bool:
    return not isinstance(value, dict) or all(fits(value[name], known[name]) for name in known if name in value)


def _additional(value: Any, other: Any, form: dict[str, Any]) -> bool:
    if not isinstance(value, dict):
        return True
    rest = [item for name, item in value.items() if name not in form.get("properties", {})]
    return not rest if other is False else all(fits(item, other) for item in rest)


CHECKS: dict[str, Any] = {
    "type": _is_type,
    "properties": _properties,
    "additionalProperties": _additional,
    "enum": lambda value, known, form: value in known,
    "const": lambda value, known, form: value == known,
    "anyOf": lambda value, forms, form: any(fits(value, one) for one in forms),
    "not": lambda value, other, form: not fits(value, other),
    "required": lambda value, names, form: not isinstance(value, dict) or set(names) <= set(value),
    "items": lambda value, each, form: not isinstance(value, list) or all(fits(item, each) for item in value),
    "propertyNames": lambda value, each, form: not isinstance(value, dict) or all(fits(name, each) for name in value),
    "pattern": lambda value, regex, form: not isinstance(value, str) or re.search(regex, value) is not None,
    "minimum": lambda value, low, form: not isinstance(value, (int, float)) or value >= low,
    "maximum": lambda value, high, form: not isinstance(value, (int, float)) or value <= high,
    "minLength": lambda value, low, form: not isinstance(value, str) or len(value) >= low,
    "maxLength": lambda value, high, form: not isinstance(value, str) or len(value) <= high,
    "maxItems": lambda value, high, form: not isinstance(value, list) or len(value) <= high,
}


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)
def test_what_is_written_fits_its_schema(cls: type) -> None:
    form = schema.schema(cls)
    assert json.loads(json.dumps(form)) == form and form["$schema"] == schema.DIALECT

    @given(EVERY[cls])
    def check(value: Any) -> None:
        assert fits(json.loads(wire.dumps(value)), form)

    check()


SPECS: list[Any] = [
    {},
    {"level": "jail", "limits": {"wall_seconds": 3, "cpu_seconds": "none", "files": None}},
    {"policy": {"datasets": {"sales": "/x"}, "env": {"A": "1"}, "waive": ["kill"], "require": ["landlock"]}},
    {"policy": {"datasets": [{"name": "sales", "source": "/x"}]}, "preload": ["numpy.linalg"], "image": "x"},
    {"levl": 3}, {"level": "Jail"}, {"level": None}, {"limits": {"files": 0}}, {"limits": {"files": 1.5}},
    {"limits": {"wall_seconds": 0}}, {"limits": {"wall_seconds": 1e10}}, {"limits": {"wall_seconds": True}},
    {"limits": {"file": 3}}, {"limits": []}, {"policy": {"waive": ["all"]}}, {"policy": {"strict": "yes"}},
    {"policy": {"datasets": {"..": "/x"}}}, {"policy": {"datasets": {"a": "x"}}},
    {"policy": {"datasets": [{"name": "a"}]}}, {"policy": {"env": {"A": 3}}},
    {"preload": ["a b"]}, {"preload": "numpy"}, {"image": ""}, {"fresh": 1}, [],
]  # fmt: skip


@pytest.mark.parametrize("document", SPECS, ids=json.dumps)
def test_the_schema_and_the_checks_agree_on_specs(document: Any) -> None:
    try:
        wire.from_json(Spec, document)
        accepted = True
    except InvalidPolicy:
        accepted = False
    assert fits(document, schema.spec_schema()) is accepted


@pytest.mark.parametrize(
    "change", [{"status": "fine"}, {"ok": 1}, {"signal": "9"}, {"usage": {"x": 1}}, {"results": [3]}]
)
def test_the_schema_and_the_reader_agree_on_results(change: dict[str, Any]) -> None:
    document = {**wire.to_json(RESULT), **change}
    assert not fits(document, schema.result_schema())
    with pytest.raises(InvalidRequest):
        wire.from_json(Result, document)
    assert not fits({}, schema.result_schema())


@given(own.specs)
def test_the_small_validator_sees_unknown_keys(spec: Spec) -> None:
    assert not fits({**spec.to_mapping(), "extra": 1}, schema.spec_schema())
