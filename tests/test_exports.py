"""What `kooi` and `kooi.agent` offer: each name is there, documented, and nothing else is promised."""

from __future__ import annotations

import importlib
import statistics
import subprocess
import sys
import time

import pytest

import kooi


@pytest.mark.parametrize("package", ["kooi", "kooi.agent"])
def test_every_exported_name_is_there_and_documented(package: str) -> None:
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(module.__all__)
    for name in module.__all__:
        value = getattr(module, name)
        assert value.__doc__ and not value.__doc__.startswith("dict("), f"{package}.{name} has no docstring"
    assert set(module.__all__) <= set(dir(module))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Sandboxx"):
        kooi.Sandboxx  # noqa: B018


def test_the_table_of_homes_is_the_list_of_names() -> None:
    homes = [name for names in kooi._HOMES.values() for name in names]
    assert sorted(homes) == kooi.__all__


def test_importing_it_costs_little_beside_starting_python() -> None:
    def took(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - began

    took("import kooi")
    pairs = [(took("pass"), took("import kooi")) for _ in range(9)]
    assert statistics.median(both for _, both in pairs) < 2 * statistics.median(bare for bare, _ in pairs)
