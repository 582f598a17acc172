"""What `kooi` and `kooi.agent` offer: each name is there, documented, and nothing else is promised."""

from __future__ import annotations

import importlib

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
