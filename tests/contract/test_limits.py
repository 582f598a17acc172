from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kooi.contract.errors import InvalidPolicy
from kooi.contract.limits import MAX_BYTES, MAX_PROCESSES, MAX_SECONDS, RANGES, Limits

from .strategies import limits

WHOLE = [name for name, allowed in RANGES.items() if allowed.whole]
FRACTIONAL = [name for name, allowed in RANGES.items() if not allowed.whole]


def refused(name: str, value: object) -> InvalidPolicy:
    with pytest.raises(InvalidPolicy) as caught:
        Limits(**{name: value})  # type: ignore[arg-type]
    assert caught.value.key == f"limits.{name}"
    assert str(caught.value).startswith(f"limits.{name}: ")
    assert "given; accepted: " in str(caught.value)
    return caught.value


def test_every_field_has_a_range_and_a_good_default() -> None:
    import dataclasses

    assert tuple(RANGES) == tuple(field.name for field in dataclasses.fields(Limits))
    assert Limits().wall_seconds == 30.0 and Limits().memory_bytes == 512 * 2**20 and Limits().ttl_seconds is None


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize(
    "value",
    [True, False, -1, "30", b"30", [1], {}, math.nan, math.inf, -math.inf, pytest.param(10**5000, id="huge"), 1j],
)
def test_wrong_values_are_refused_by_name(name: str, value: object) -> None:
    refused(name, value)


@pytest.mark.parametrize("name", [name for name in RANGES if name != "output_bytes"])
def test_zero_is_refused_where_it_is_senseless(name: str) -> None:
    refused(name, 0)


def test_no_output_at_all_is_a_sensible_limit() -> None:
    assert Limits(output_bytes=0).output_bytes == 0


@pytest.mark.parametrize("name", WHOLE)
def test_fractions_are_refused_where_things_are_counted(name: str) -> None:
    assert "a whole number" in refused(name, 64.0).message


@pytest.mark.parametrize("name", RANGES)
def test_the_ends_of_each_range_are_accepted_and_what_lies_beyond_is_not(name: str) -> None:
    allowed = RANGES[name]
    for value in (allowed.low, allowed.high, None):
        assert getattr(Limits(**{name: value}), name) == value  # type: ignore[arg-type]
    refused(name, allowed.high + 1)
    refused(name, allowed.low - 1 if allowed.whole else allowed.low / 2)


def test_absurd_values_are_refused() -> None:
    assert (RANGES["memory_bytes"].high, RANGES["wall_seconds"].high) == (MAX_BYTES, MAX_SECONDS) == (2**50, 315360000)
    assert RANGES["processes"].high == MAX_PROCESSES == 4_194_304


@pytest.mark.parametrize("name", FRACTIONAL)
def test_whole_numbers_are_accepted_for_seconds_and_make_an_equal_value(name: str) -> None:
    made = Limits(**{name: 7})
    assert type(getattr(made, name)) is float
    assert made == Limits(**{name: 7.0}) and hash(made) == hash(Limits(**{name: 7.0}))  # type: ignore[arg-type]


def test_a_huge_value_makes_a_short_message() -> None:
    assert len(str(refused("files", 10**5000))) < 300
    assert len(str(refused("files", "x" * 10_000))) < 300


def test_mapping_names_no_limit_and_unknown_keys() -> None:
    assert Limits.from_mapping({"wall_seconds": "none", "processes": None, "files": 5}) == Limits(
        wall_seconds=None, processes=None, files=5
    )
    with pytest.raises(InvalidPolicy) as caught:
        Limits.from_mapping({"wall_second": 3})
    assert caught.value.key == "limits.wall_second" and "`wall_seconds`" in str(caught.value)
    with pytest.raises(InvalidPolicy) as caught:
        Limits.from_mapping({"zzzzqqqq": 3})
    assert "wall_seconds" in str(caught.value)
    values: tuple[Any, ...] = ([], None, 3, "files = 3", {3: 4}, {"files": "None"}, {"wall_seconds": ""})
    for wrong in values:
        with pytest.raises(InvalidPolicy):
            Limits.from_mapping(wrong)


def test_limits_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Limits().files = 3  # type: ignore[misc]


@given(limits)
def test_mapping_and_pickle_give_the_value_back(value: Limits) -> None:
    assert Limits.from_mapping(value.to_mapping()) == value
    assert pickle.loads(pickle.dumps(value)) == value


@given(limits, limits)
def test_within_is_never_above_either(a: Limits, b: Limits) -> None:
    narrowed = a.within(b)
    assert narrowed == b.within(a) == narrowed.within(b) == narrowed.within(a)
    for name in RANGES:
        both = {getattr(a, name), getattr(b, name)}
        assert getattr(narrowed, name) == min((one for one in both if one is not None), default=None)


@given(st.sampled_from(sorted(RANGES)), st.one_of(st.floats(), st.integers(), st.booleans(), st.text(), st.none()))
def test_any_value_is_kept_within_range_or_refused(name: str, value: object) -> None:
    try:
        kept = getattr(Limits(**{name: value}), name)  # type: ignore[arg-type]
    except InvalidPolicy as error:
        assert error.key == f"limits.{name}"
    else:
        assert kept is None if value is None else RANGES[name].low <= kept <= RANGES[name].high
