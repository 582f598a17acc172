from __future__ import annotations

import copy
import pickle
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given

from kooi.contract.errors import InvalidPolicy, InvalidRequest
from kooi.contract.policy import CLAUSES, MAX_ENV_BYTES, Dataset, Policy, checked_env

from .strategies import policies


def key_of(**fields: Any) -> str | None:
    with pytest.raises(InvalidPolicy) as caught:
        Policy(**fields)
    assert len(str(caught.value)) < 600
    return caught.value.key


def test_the_default_allows_nothing() -> None:
    policy = Policy()
    assert policy.datasets == () and policy.network == policy.waive == policy.require == () and policy.env == {}
    assert policy.strict is False


def test_lists_become_tuples_in_canonical_order() -> None:
    policy = Policy(
        datasets=[Dataset("b", "/b"), Dataset("a", "/a")],  # type: ignore[arg-type]
        network=["B.com", "a.com:443", "b.com"],  # type: ignore[arg-type]
        waive=["network", "kill", "kill"],  # type: ignore[arg-type]
        require=["landlock"],  # type: ignore[arg-type]
    )
    assert policy.datasets == (Dataset("a", "/a"), Dataset("b", "/b"))
    assert policy.network == ("a.com:443", "b.com")
    assert policy.waive == ("kill", "network") and policy.require == ("landlock",)


def test_the_environment_is_a_read_only_copy() -> None:
    env = {"A": "1"}
    policy = Policy(env=env)
    env["A"] = "2"
    assert policy.env == {"A": "1"} and isinstance(policy.env, MappingProxyType)
    with pytest.raises(TypeError):
        policy.env["A"] = "3"  # type: ignore[index]


@given(policies)
def test_equality_hash_pickle_copy_and_mapping(policy: Policy) -> None:
    for other in (
        Policy.from_mapping(policy.to_mapping()),
        pickle.loads(pickle.dumps(policy)),
        copy.deepcopy(policy),
    ):
        assert other == policy and hash(other) == hash(policy)
    assert policy.within(policy) == policy


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "a\0", "a\n", "x" * 65, None, 3, "../x"])
def test_dataset_names(name: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        Dataset(name, "/abs")
    assert caught.value.key == "policy.datasets"


@pytest.mark.parametrize("name", ["a", ".hidden", "...", "-", "x" * 64, "sales.csv"])
def test_good_dataset_names(name: str) -> None:
    assert Dataset(name, "/abs").name == name


@pytest.mark.parametrize(
    "source",
    [
        "", "rel", "./x", "~/x", "/a\0b", "/a\ud800", "/", "//", "/..", "/a/..", "/proc", "/proc/1/root",
        "/sys/kernel", "/dev", "/dev/sda", "/dev/shm/../sda", "/dev/shm", "//proc/self", "/x/../proc/1",
        "/" + "x" * 4096, None, 3, b"/x",
    ],
)  # fmt: skip
def test_dataset_sources(source: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        Dataset("sales", source)
    assert caught.value.key == "policy.datasets.sales"


@pytest.mark.parametrize("source", ["/a", "/home/x/sales data.csv", "/dev/shm/x", "/process", "/devices", "/a/../b"])
def test_good_dataset_sources(source: str) -> None:
    assert Dataset("sales", source).source == source


def test_datasets_from_a_table_and_from_a_list_of_tables() -> None:
    expected = Policy(datasets=(Dataset("sales", "/abs/path"),))
    assert Policy.from_mapping({"datasets": {"sales": "/abs/path"}}) == expected
    assert Policy.from_mapping({"datasets": [{"name": "sales", "source": "/abs/path"}]}) == expected
    assert Policy.from_mapping({"datasets": [Dataset("sales", "/abs/path")]}) == expected
    wrong = [
        ({"sales": 3}, "policy.datasets.sales"),
        ({"sales": {"source": "/x"}}, "policy.datasets.sales"),
        ([{"name": "sales"}], "policy.datasets[0]"),
        ([{"name": "sales", "sorce": "/x"}], "policy.datasets[0].sorce"),
        (["/x"], "policy.datasets[0]"),
        ("/x", "policy.datasets"),
        ([{"name": "a", "source": "/x"}, {"name": "a", "source": "/y"}], "policy.datasets"),
    ]
    for datasets, key in wrong:
        with pytest.raises(InvalidPolicy) as caught:
            Policy.from_mapping({"datasets": datasets})
        assert caught.value.key == key


def test_wrong_fields_are_named() -> None:
    assert key_of(network="a.com") == "policy.network"
    assert key_of(network=("http://a.com",)) == "policy.network"
    assert key_of(network={"a.com"}) == "policy.network"
    assert key_of(datasets={"a": "/a"}) == "policy.datasets"
    assert key_of(datasets=("/a",)) == "policy.datasets"
    assert key_of(strict=1) == key_of(strict="yes") == key_of(strict=None) == "policy.strict"
    assert key_of(waive=("everything",)) == key_of(waive="network") == key_of(waive=(3,)) == "policy.waive"
    assert key_of(waive=(["network"],)) == "policy.waive"
    assert key_of(require=("seccomp",)) == key_of(require=None) == "policy.require"
    assert key_of(require=("landlock",), waive=("landlock",)) == "policy.waive"


def test_clauses_are_the_limits_and_the_rest() -> None:
    assert {"wall_seconds", "files", "network", "environment", "processes_hidden", "kill", "landlock"} <= set(CLAUSES)
    assert Policy(waive=CLAUSES).waive == tuple(sorted(CLAUSES)) and len(set(CLAUSES)) == len(CLAUSES)


def test_unknown_keys_are_named_with_the_nearest() -> None:
    with pytest.raises(InvalidPolicy) as caught:
        Policy.from_mapping({"netwrok": []})
    assert caught.value.key == "policy.netwrok" and "`network`" in str(caught.value)


@pytest.mark.parametrize(
    ("env", "key"),
    [
        ({"": "x"}, "policy.env"),
        ({"A=B": "x"}, "policy.env"),
        ({"A\0": "x"}, "policy.env"),
        ({3: "x"}, "policy.env"),
        ({"A\udc80": "x"}, "policy.env"),
        ({"A": "x\0"}, "policy.env.A"),
        ({"A": 3}, "policy.env.A"),
        ({"A": None}, "policy.env.A"),
        ({"A": b"x"}, "policy.env.A"),
        ({"A": "\ud800"}, "policy.env.A"),
        ([("A", "x")], "policy.env"),
        (None, "policy.env"),
        ({"A": "x" * MAX_ENV_BYTES}, "policy.env"),
        ({"A": "é" * (MAX_ENV_BYTES // 2)}, "policy.env"),
        ({f"A{index}": "x" * 1022 for index in range(1024)}, "policy.env"),
    ],
)
def test_environments_no_process_could_be_given(env: object, key: str) -> None:
    assert key_of(env=env) == key
    with pytest.raises(InvalidRequest) as caught:
        checked_env(env, key="env", error=InvalidRequest)
    assert caught.value.key == key.replace("policy.env", "env")


def test_an_environment_of_exactly_one_mebibyte_is_accepted() -> None:
    assert len(Policy(env={"A": "x" * (MAX_ENV_BYTES - 3)}).env["A"]) == MAX_ENV_BYTES - 3
    assert Policy(env={"A": ""}).env == {"A": ""}
