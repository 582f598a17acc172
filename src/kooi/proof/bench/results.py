"""What a bench run collects: series of seconds, single figures, and why something is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kooi.proof.bench.stats import Summary, median, summary

#: what one round gives, by series
Samples = Mapping[str, "float | Sequence[float]"]


@dataclass
class Results:
    """Series by name (seconds, one a round), figures by name, and the reasons for what is absent."""

    series: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def add(self, samples: Samples) -> None:
        """Add one round's seconds: one number a series, or several."""
        for name, seconds in samples.items():
            self.series.setdefault(name, []).extend([seconds] if isinstance(seconds, float) else seconds)

    def ms(self, name: str) -> float | None:
        """Return the median of a series in milliseconds."""
        values = self.series.get(name)
        return median(values) * 1000 if values else None

    def summaries(self) -> dict[str, Summary]:
        """Return the order statistics of every series."""
        return {name: summary(values) for name, values in self.series.items() if values}
