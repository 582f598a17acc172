"""Versions of runtimes and what is known of them."""

from __future__ import annotations

import pytest

from kooi.contract.errors import LevelUnavailable
from kooi.oci import runtimes


@pytest.mark.parametrize(
    ("name", "version", "known"),
    [
        ("runc", "1.1.5+ds1", 3),
        ("runc", "1.1.12", 2),
        ("runc", "1.2.7", 2),
        ("runc", "1.2.8", 1),
        ("runc", "1.3.2", 2),
        ("runc", "1.3.3", 1),
        ("runc", "1.3.6", 0),
        ("runc", "1.4.2", 1),
        ("runc", "1.4.3", 0),
        ("runc", "1.5.0", 0),
        ("crun", "1.8.1", 1),
        ("crun", "1.20", 0),
        ("other", "0.1", 0),
    ],
)
def test_known_breakouts_by_version(name: str, version: str, known: int) -> None:
    number = runtimes.number(version)
    assert number is not None and len(runtimes.breakouts(name, number)) == known


def test_a_runtime_that_is_not_there_is_named() -> None:
    with pytest.raises(LevelUnavailable, match="nosuchrun is not on this host"):
        runtimes.find("nosuchrun")


def test_a_version_that_is_no_number() -> None:
    assert runtimes.number("unknown") is None
