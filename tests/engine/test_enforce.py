"""What is refused, what is waived, and who says so."""

from __future__ import annotations

import pytest

from kooi.contract.errors import PolicyUnenforceable
from kooi.contract.policy import Policy
from kooi.contract.result import Clause, Enforcement, Grade
from kooi.engine.enforce import granted, host_facts


def _level(*grades: tuple[str, Grade], waivers: tuple[str, ...] = ()) -> Enforcement:
    return Enforcement("x", "kernel-shared", tuple(Clause(name, "m", grade) for name, grade in grades), waivers)


def test_what_is_held_passes_without_waivers() -> None:
    level = _level(("network", "kernel"), ("memory_bytes", "polled"), ("disk_bytes", "per_process"), ("kill", "remote"))
    assert granted(level, Policy()).waivers == ()


def test_every_open_clause_is_named_at_once_with_the_way_out() -> None:
    level = _level(("network", "none"), ("files", "none"), ("kill", "kernel"))
    with pytest.raises(PolicyUnenforceable) as caught:
        granted(level, Policy())
    assert "network (none: m), files (none: m)" in str(caught.value)
    assert 'waive = ["network", "files"]' in str(caught.value)
    assert "kill" not in str(caught.value)
    assert caught.value.key == "network"


def test_a_waiver_by_name_is_listed_only_where_it_took_effect() -> None:
    level = _level(("network", "none"), ("files", "kernel"))
    assert granted(level, Policy(waive=("network", "files"))).waivers == ("network",)


def test_what_a_level_leaves_open_by_its_nature_is_waived_by_its_name() -> None:
    level = _level(("network", "none"), waivers=("network",))
    assert granted(level, Policy()).waivers == ("network",)


@pytest.mark.parametrize("grade", ["polled", "per_process", "remote", "none"])
def test_strict_accepts_only_the_kernel_whatever_was_waived(grade: Grade) -> None:
    level = _level(("network", grade), ("files", "kernel"), waivers=("network",))
    with pytest.raises(PolicyUnenforceable, match="network"):
        granted(level, Policy(strict=True, waive=("network",)))
    assert granted(_level(("files", "kernel")), Policy(strict=True)).waivers == ()


def test_what_is_required_must_be_there_and_held() -> None:
    require = Policy(require=("landlock",))
    for level in (_level(("files", "kernel")), _level(("landlock", "per_process"))):
        with pytest.raises(PolicyUnenforceable, match="landlock"):
            granted(level, require)
    assert granted(_level(("landlock", "kernel")), require).waivers == ()


def test_facts_are_gathered_once() -> None:
    assert host_facts() is host_facts()
    assert host_facts().cpus >= 1
