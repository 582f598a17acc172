"""The bars: what each figure has to be. `required` is what holds; `aim` is what we would like.

A bar compares a figure of this very run with another of this very run, so that it means the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kooi.proof.bench.bulk import MEGABYTE, STREAM_BYTES
from kooi.proof.bench.results import Results

Figure = Callable[[Results], "float | None"]
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. `figure` is `None` when something was not measured."""

    name: str
    text: str
    figure: Figure
    required: float
    aim: float | None = None
    better: Literal["lower", "higher"] = "lower"

    def met(self, value: float, by: float) -> bool:
        """Whether `value` is as good as `by` or better."""
        return value <= by if self.better == "lower" else value >= by


@dataclass(frozen=True, slots=True)
class Row:
    """A bar with its measured value."""

    name: str
    text: str
    measured: float | None
    required: float
    aim: float | None
    better: str
    met: bool | None
    aim_met: bool | None
    reason: str | None = None


def ratio(over: str, under: str) -> Figure:
    """Return the ratio of two medians."""

    def figure(results: Results) -> float | None:
        top, bottom = results.ms(over), results.ms(under)
        return None if top is None or not bottom else top / bottom

    return figure


def tail(name: str) -> Figure:
    """Return how many times its own median the p99 of a series is."""

    def figure(results: Results) -> float | None:
        found = results.summaries().get(name)
        return None if found is None else found.p99 / found.p50

    return figure


def _named(name: str) -> Figure:
    return lambda results: results.figures.get(name)


def _speed(name: str) -> Figure:
    def figure(results: Results) -> float | None:
        ms = results.ms(name)
        return None if ms is None else STREAM_BYTES / MEGABYTE / (ms / 1000)

    return figure


def _over_r0_ms(results: Results) -> float | None:
    fresh, r0 = results.ms("process_fresh"), results.ms("r0")
    return None if fresh is None or r0 is None else fresh - r0


def _added(results: Results) -> float | None:
    """Return what a fresh jail adds to the interpreter, over what bubblewrap adds to it."""
    fresh, r0, bwrap = results.ms("jail_fresh"), results.ms("r0"), results.ms("bwrap_r0")
    return None if fresh is None or r0 is None or bwrap is None else (fresh - r0) / (bwrap - r0)


def _per_gib(results: Results) -> float | None:
    cost = results.figures.get("idle_bytes_available")
    return None if not cost else GIB / cost


BARS: tuple[Bar, ...] = (
    Bar("jail", "fresh jail to the result of print(1), × R1", ratio("jail_first", "r1"), 0.25, 0.20),
    Bar("jail-tail", "its p99, × its own median", tail("jail_first"), 3.0),
    Bar("jail-reaped", "fresh jail to nothing left, × R1", ratio("jail_reaped", "r1"), 0.25, 0.20),
    Bar("jail-user", "the same as an ordinary user, × as root", ratio("jail_user_first", "jail_first"), 1.5),
    Bar("pool-hit", "pre-jailed pool, hit to result, × R1", ratio("pool_hit", "r1"), 0.06, 0.03),
    Bar("pandas", "fresh jail with numpy and pandas ready, × R2", ratio("jail_pandas_first", "r2"), 0.015, 0.012),
    Bar("live", "run in a live jail, × R1", ratio("jail_live", "r1"), 0.03, 0.01),
    Bar("process", "process level, warm, × R1", ratio("process_first", "r1"), 0.10),
    Bar("confined", "confined level, on demand, × R1", ratio("confined_first", "r1"), 0.15),
    Bar("process-fresh", "process level, fresh interpreter (executed ahead), ms over R0", _over_r0_ms, 0.5),
    Bar("fresh-adds", "what a fresh=True jail (executed ahead) adds to R0, × what bubblewrap adds", _added, 0.30),
    Bar("container", "one-shot container (runc, crun) to nothing left, × hardened docker run",
        ratio("container_reaped", "docker_r1"), 0.15),
    Bar("container-live", "run in a live container, × R1", ratio("container_live", "r1"), 0.05),
    Bar("per-second", "fresh jails a second and core", _named("jails_per_second_per_core_stdlib"), 300, None, "higher"),
    Bar("per-second-pandas", "the same with numpy and pandas", _named("jails_per_second_per_core_pandas"), 200, None,
        "higher"),
    Bar("100-at-once", "100 at once, last result, × R1", ratio("jail_100_at_once", "r1"), 15.0),
    Bar("density", "idle ready jails with numpy and pandas per GiB", _per_gib, 400, 500, "higher"),
    Bar("thousandth", "the 1,000th jail, × the first", _named("last_over_first"), 2.0),
    Bar("stdout", "standard output, MB/s", _speed("stdout_256_mib"), 300, None, "higher"),
    Bar("file-in", "files in, MB/s", _speed("file_in_256_mib"), 800, None, "higher"),
    Bar("file-out", "files out, MB/s", _speed("file_out_256_mib"), 800, None, "higher"),
    Bar("inside-loop", "pure Python inside, × outside", ratio("inside_loop", "native_loop"), 1.02),
    Bar("inside-matmul", "numpy matmul inside, × outside", ratio("inside_matmul", "native_matmul"), 1.02),
    Bar("inside-getppid", "getppid inside, × outside", ratio("inside_getppid", "native_getppid"), 1.15),
    Bar("inside-open", "open, read, close inside, × outside", ratio("inside_open_read_close", "native_open_read_close"),
        1.15),
    Bar("inside-imports", "imports inside, × outside", ratio("inside_imports", "native_imports"), 1.05),
    Bar("inside-fork", "fork and wait inside, × outside", ratio("inside_fork", "native_fork"), 1.15),
    Bar("import-kooi", "import kooi, ms", lambda results: results.ms("import_kooi"), 50.0),
)  # fmt: skip


# What a bar needs beside the baselines: the part whose absence explains why it was not measured.
_NEEDS = {
    "jail-user": "jail_user_first",
    "pool-hit": "pool_hit",
    "pandas": "jail_pandas_first",
    "fresh-adds": "bubblewrap",
    "container": "docker_r1",
    "container-live": "level container",
    "per-second": "throughput",
    "per-second-pandas": "throughput",
    "100-at-once": "at-once",
    "density": "density",
    "thousandth": "thousandth",
    "stdout": "streams",
    "file-in": "streams",
    "file-out": "streams",
    "inside-loop": "inside_loop",
    "inside-matmul": "inside_matmul",
    "inside-getppid": "inside_getppid",
    "inside-open": "inside_open_read_close",
    "inside-imports": "inside_imports",
    "inside-fork": "inside_fork",
}


def rows(results: Results) -> list[Row]:
    """Return every bar with what was measured, whether it is met, and why it was not measured."""
    return [_row(bar, results) for bar in BARS]


def _row(bar: Bar, results: Results) -> Row:
    value = bar.figure(results)
    if value is None:
        reason = results.absent.get(_NEEDS.get(bar.name, ""), "not measured in this run")
        return Row(bar.name, bar.text, None, bar.required, bar.aim, bar.better, None, None, reason)
    aim_met = None if bar.aim is None else bar.met(value, bar.aim)
    return Row(bar.name, bar.text, value, bar.required, bar.aim, bar.better, bar.met(value, bar.required), aim_met)
