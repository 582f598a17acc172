"""Samples and what is said of them: order statistics only, never a mean."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """What a series of seconds comes to, in milliseconds."""

    n: int
    least: float
    p50: float
    p95: float
    p99: float
    most: float


def summary(seconds: Sequence[float]) -> Summary:
    """Return the order statistics of `seconds`, in milliseconds."""
    ordered = sorted(s * 1000 for s in seconds)
    return Summary(
        len(ordered), ordered[0], quantile(ordered, 0.50), quantile(ordered, 0.95), quantile(ordered, 0.99), ordered[-1]
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the `share` quantile of sorted values by nearest rank; the median of an even count is the middle."""
    if share == 0.5:
        return statistics.median(ordered)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)
