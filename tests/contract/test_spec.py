from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kooi.contract.errors import InvalidPolicy
from kooi.contract.hosts import parse_rule
from kooi.contract.limits import RANGES, Limits
from kooi.contract.policy import Dataset, Policy
from kooi.contract.spec import Spec, level_within

from .strategies import HOSTS, LEVELS, policies, specs

FULL = Spec(
    level="microvm",
    image="python-data",
    preload=("numpy", "pandas.io"),
    policy=Policy(
        datasets=(Dataset("sales", "/srv/sälés.csv"),),
        network=("*.example.com:443", "api.example.org"),
        env={"LANG": "C.UTF-8", "EMOJI": "\U0001f600"},
        waive=("kill",),
        require=("landlock",),
        strict=True,
    ),
    limits=Limits(wall_seconds=0.1, cpu_seconds=None, memory_bytes=2**30, ttl_seconds=3600),
    fresh=True,
)


def test_golden_digests() -> None:
    """A change here is a change of what every stored digest means: raise the version in the canonical form."""
    assert Spec().digest() == "bb0bb5a0fe5b9fbc844e96b5b3d87812e443f7ab8b6c65d237c20512b7729e18"
    assert FULL.digest() == "c4fa19fe19889662bcb1a9c7ae94d32005d7d677bffba850680ae25ab54a2e23"


def test_canonical_form_has_no_fraction_and_is_ascii() -> None:
    canonical = FULL.canonical()
    assert canonical.isascii()
    assert b'"wall_seconds":"3602879701896397/36028797018963968"' in canonical
    assert b'"ttl_seconds":"3600/1"' in canonical and b'"cpu_seconds":null' in canonical
    assert b'"kooi_spec":1' in canonical and b"." not in canonical.split(b'"policy"')[0]


def test_digest_does_not_depend_on_the_process() -> None:
    root = Path(__file__).resolve().parents[2] / "src"
    code = "from kooi.contract.spec import *; from kooi.contract.policy import *\n"
    code += (
        "print(Spec(policy=Policy(env={'B': '1', 'A': '2'}, network=('b.c', 'a.c'), waive=('kill', 'files'))).digest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(root), "PYTHONHASHSEED": seed, "PATH": os.defpath},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(digests) == 1


@given(specs)
def test_equal_specs_have_equal_digest_and_hash(spec: Spec) -> None:
    before = pickle.dumps(spec)
    digest = spec.digest()
    assert len(digest) == 64 and digest is spec.digest()
    assert pickle.dumps(spec) == before  # the kept digest does not travel
    for other in (Spec.from_mapping(spec.to_mapping()), pickle.loads(before), copy.deepcopy(spec)):
        assert other == spec and hash(other) == hash(spec) and other.digest() == digest


@given(specs, specs)
def test_different_specs_have_different_digests(a: Spec, b: Spec) -> None:
    assert (a == b) == (a.digest() == b.digest())


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"level": ""}, "level"),
        ({"level": "Jail"}, "level"),
        ({"level": "jail\n"}, "level"),
        ({"level": None}, "level"),
        ({"level": "x" * 33}, "level"),
        ({"image": ""}, "image"),
        ({"image": "a\0b"}, "image"),
        ({"image": 3}, "image"),
        ({"image": "\ud800"}, "image"),
        ({"preload": "numpy"}, "preload"),
        ({"preload": ["numpy; import os"]}, "preload"),
        ({"preload": ["a..b"]}, "preload"),
        ({"preload": ["numpy\n"]}, "preload"),
        ({"preload": [3]}, "preload"),
        ({"preload": [f"m{index}" for index in range(257)]}, "preload"),
        ({"policy": {}}, "policy"),
        ({"policy": None}, "policy"),
        ({"limits": {"files": 3}}, "limits"),
        ({"fresh": 1}, "fresh"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        Spec(**fields)
    assert caught.value.key == key and len(str(caught.value)) < 400


def test_from_mapping() -> None:
    table = {"level": "process", "preload": ["numpy", "numpy"], "limits": {"files": 3}, "policy": {"strict": True}}
    assert Spec.from_mapping(table) == Spec(
        level="process", preload=("numpy",), limits=Limits(files=3), policy=Policy(strict=True)
    )
    assert Spec.from_mapping({}) == Spec()
    for wrong, key in [
        ({"levl": "jail"}, "levl"),
        ({"limits": {"filez": 1}}, "limits.filez"),
        ({"policy": []}, "policy"),
        ({"limits": None}, "limits"),
    ]:
        with pytest.raises(InvalidPolicy) as caught:
            Spec.from_mapping(wrong)  # type: ignore[arg-type]
        assert caught.value.key == key


def test_levels_are_ordered_by_strength() -> None:
    assert all(level_within(level, level) for level in LEVELS)
    for stronger, weaker in [
        ("confined", "process"), ("jail", "confined"), ("jail", "container"), ("container", "jail"),
        ("gvisor", "jail"), ("wasm", "gvisor"), ("gvisor", "wasm"), ("microvm", "wasm"), ("microvm", "process"),
    ]:  # fmt: skip
        assert level_within(stronger, weaker)
    for level, ceiling in [
        ("process", "jail"), ("confined", "jail"), ("container", "gvisor"), ("wasm", "microvm"),
        ("e2b", "microvm"), ("e2b", "process"), ("microvm", "e2b"), ("plugin", "process"), ("microvm", "plugin"),
    ]:  # fmt: skip
        assert not level_within(level, ceiling)


PROBES = [(host.strip("[]"), port) for host in (*HOSTS, "z.a.com", "z.x.a.com", "z.b.com") for port in (80, 443, 9)]


def allowed(policy: Policy) -> set[tuple[str, int]]:
    return {probe for probe in PROBES if any(parse_rule(rule).allows(*probe) for rule in policy.network)}


def is_within(a: Spec, b: Spec) -> bool:
    """Whether `a` allows nothing that `b` does not, written anew: on sets, not on the code under test."""
    infinity = float("inf")

    def bound(spec: Spec, name: str) -> float:
        value = getattr(spec.limits, name)
        return infinity if value is None else float(value)

    return (
        level_within(a.level, b.level)
        and a.image == b.image
        and all(bound(a, name) <= bound(b, name) for name in RANGES)
        and is_policy_within(a.policy, b.policy)
        and a.fresh >= b.fresh
    )


def is_policy_within(a: Policy, b: Policy) -> bool:
    return (
        allowed(a) <= allowed(b)
        and set(a.datasets) <= set(b.datasets)
        and a.env.items() <= b.env.items()
        and set(a.waive) <= set(b.waive)
        and set(a.require) >= set(b.require)
        and a.strict >= b.strict
    )


@st.composite
def narrower_pairs(draw: st.DrawFn) -> tuple[Spec, Spec]:
    """A ceiling, and a spec that asks for parts of what the ceiling allows, and sometimes for more."""
    ceiling, other = draw(specs), draw(specs)
    policy, extra = ceiling.policy, draw(policies) if draw(st.booleans()) else Policy()

    def part(values: Any) -> list[Any]:
        return [value for value in values if draw(st.booleans())]

    datasets = {one.name: one for one in [*extra.datasets, *part(policy.datasets)]}
    asked = Policy(
        datasets=tuple(datasets.values()),
        network=(*part(policy.network), *extra.network),
        env={**extra.env, **dict(part(policy.env.items()))},
        waive=tuple(part(policy.waive)),
        strict=draw(st.booleans()),
    )
    preload = ceiling.preload and tuple(part(ceiling.preload))
    level = draw(st.sampled_from([ceiling.level, ceiling.level, "microvm", "jail"]))
    return Spec(level, ceiling.image, preload, asked, other.limits, other.fresh), ceiling


@given(narrower_pairs())
def test_within_is_never_wider_than_either_and_idempotent(pair: tuple[Spec, Spec]) -> None:
    spec, ceiling = pair
    try:
        narrowed = spec.within(ceiling)
    except InvalidPolicy as error:
        beyond = (
            not level_within(spec.level, ceiling.level)
            or not allowed(spec.policy) <= allowed(ceiling.policy)
            or not set(spec.policy.datasets) <= set(ceiling.policy.datasets)
            or not spec.policy.env.items() <= ceiling.policy.env.items()
        )
        assert beyond and error.key in ("level", "policy.network", "policy.datasets", "policy.env")
        return
    assert is_within(narrowed, spec) and is_within(narrowed, ceiling)
    assert narrowed.within(ceiling) == narrowed.within(spec) == narrowed.within(narrowed) == narrowed
    assert narrowed.preload == spec.preload and set(narrowed.preload or ()) <= set(ceiling.preload or ())


@given(specs, specs)
def test_within_of_any_two_is_narrower_or_refused(spec: Spec, ceiling: Spec) -> None:
    assert spec.within(spec) == spec
    try:
        narrowed = spec.within(ceiling)
    except InvalidPolicy as error:
        assert error.key and "ceiling" in error.message
    else:
        assert is_within(narrowed, spec) and is_within(narrowed, ceiling)


@pytest.mark.parametrize(
    ("spec", "ceiling", "key"),
    [
        (Spec(level="process"), Spec(), "level"),
        (Spec(image="x"), Spec(), "image"),
        (Spec(), Spec(image="x"), "image"),
        (Spec(preload=("numpy",)), Spec(), "preload"),
        (Spec(), Spec(preload=("numpy",)), "preload"),
        (Spec(preload=("numpy", "os")), Spec(preload=("numpy",)), "preload"),
        (Spec(policy=Policy(network=("a.com",))), Spec(), "policy.network"),
        (Spec(policy=Policy(network=("a.com",))), Spec(policy=Policy(network=("a.com:443",))), "policy.network"),
        (Spec(policy=Policy(network=("a.com",))), Spec(policy=Policy(network=("*.a.com",))), "policy.network"),
        (Spec(policy=Policy(datasets=(Dataset("a", "/a"),))), Spec(), "policy.datasets"),
        (
            Spec(policy=Policy(datasets=(Dataset("a", "/b"),))),
            Spec(policy=Policy(datasets=(Dataset("a", "/a"),))),
            "policy.datasets",
        ),
        (Spec(policy=Policy(env={"A": "2"})), Spec(policy=Policy(env={"A": "1"})), "policy.env"),
        (Spec(policy=Policy(waive=("kill",))), Spec(policy=Policy(waive=("files",))), "policy.waive"),
    ],
)
def test_what_cannot_be_narrowed_is_named(spec: Spec, ceiling: Spec, key: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        spec.within(ceiling)
    assert caught.value.key == key and "ceiling" in str(caught.value)


def test_within_adds_up_what_is_strict() -> None:
    ceiling = Spec(policy=Policy(strict=True, require=("landlock",)), fresh=True, limits=Limits(files=5))
    assert Spec(limits=Limits(files=None)).within(ceiling) == ceiling
    assert Spec(preload=()).within(Spec(preload=("numpy",))).preload == ()
