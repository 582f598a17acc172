"""The arithmetic of the benchmark: order statistics, bars, interleaving; no time is asserted."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kooi.contract.errors import KooiError, SetupFailed
from kooi.proof.bench import bars, baseline, full, interleave, machine, peers, report, stats
from kooi.proof.bench.bulk import STREAM_BYTES
from kooi.proof.bench.interleave import Measure
from kooi.proof.bench.plan import expect_one
from kooi.proof.bench.results import Results
from kooi.proof.bench.worker import Worker
from tests.proof.fakes import enforcement, result


def test_order_statistics_of_a_known_series() -> None:
    found = stats.summary([n / 1000 for n in range(1, 201)])
    assert (found.n, found.least, found.p50, found.p95, found.p99, found.most) == pytest.approx(
        (200, 1, 100.5, 190, 198, 200)
    )


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_a_quantile_is_one_of_the_values_with_enough_below(values: list[float], share: float) -> None:
    ordered = sorted(values)
    got = stats.quantile(ordered, share)
    if share != 0.5:
        assert got in ordered
    assert sum(v <= got for v in ordered) >= share * len(ordered) - 1e-6


def results(**series: float) -> Results:
    return Results(series={name: [ms / 1000] * 3 for name, ms in series.items()})


def row(name: str, found: Results) -> bars.Row:
    return next(r for r in bars.rows(found) if r.name == name)


def test_bars_compare_with_the_baseline_of_the_same_run() -> None:
    assert row("jail", results(jail_first=2.4, r1=10)).met is True
    assert row("jail", results(jail_first=2.6, r1=10)).met is False
    assert row("jail", results(jail_first=1.9, r1=10)).aim_met is True
    assert row("jail", results(jail_first=2.4)).met is None
    assert row("process-fresh", results(process_fresh=6.6, r0=6.0)).measured == pytest.approx(0.6)
    assert row("fresh-adds", results(jail_fresh=7, r0=6, bwrap_r0=10)).measured == pytest.approx(0.25)
    assert row("stdout", results(stdout_256_mib=1000)).measured == pytest.approx(STREAM_BYTES / 1e6)


def test_bars_that_have_to_be_high_are_met_by_high_values() -> None:
    found = Results(figures={"idle_bytes_available": 2.0**30 / 450, "jails_per_second_per_core_stdlib": 299})
    assert (row("density", found).met, row("density", found).aim_met) == (True, False)
    assert row("per-second", found).met is False


def test_every_bar_is_a_row_and_absence_is_no_success() -> None:
    empty = bars.rows(Results())
    assert len(empty) == len(bars.BARS) == len({bar.name for bar in bars.BARS})
    assert all(r.met is None and r.reason for r in empty)


def test_interleaving_takes_turns_and_leaves_out_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def measure(name: str, rounds: int, fail_at: int | None = None) -> Measure:
        async def once() -> Mapping[str, float]:
            order.append(name)
            if fail_at is not None and order.count(name) > fail_at:
                raise KooiError("broken")
            return {name: 0.001}

        return Measure(name, once, rounds)

    async def idle(*_: object) -> float:
        return 0.0

    monkeypatch.setattr(interleave, "wait_until_idle", idle)
    found = Results()
    measures = [measure("a", 4), measure("b", 2), measure("c", 4, fail_at=3)]
    asyncio.run(interleave.interleave(measures, found, lambda text: None))
    assert "".join(order) == "abc" * 2 + "abc" + "abc" + "a" + "a"
    assert {name: len(values) for name, values in found.series.items()} == {"a": 4, "b": 2, "c": 1}
    assert "broken" in found.absent["c"]


def test_a_wrong_answer_has_no_time() -> None:
    held = enforcement("jail", "kernel")
    expect_one(result("ok", b"1\n", held))
    for status, out in (("ok", b"2\n"), ("error", b"1\n")):
        with pytest.raises(KooiError):
            expect_one(result(status, out, held))  # type: ignore[arg-type]


def test_the_baselines_are_pinned_and_printed_first() -> None:
    lines = report.preface()
    assert lines[1].startswith("R0 = ") and lines[1].endswith('python3 -I -S -c "print(1)"')
    assert lines[2].startswith("R2") is False and 'python3 -c "print(1)"' in lines[2]
    if os.path.exists(baseline.SYSTEM_PYTHON):
        assert baseline.r1()[0] == baseline.SYSTEM_PYTHON
    elapsed, output = machine.run_command(baseline.r0(), baseline.PLAIN_ENV)
    assert output == b"1\n" and elapsed > 0


def test_a_failing_command_is_no_measurement() -> None:
    with pytest.raises(ChildProcessError):
        machine.run_command([sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"], baseline.PLAIN_ENV)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_and_children_are_read_from_outside() -> None:
    assert machine.available_bytes() > 1 << 20
    assert machine.proportional_bytes([os.getpid()]) > 1 << 20
    pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", "input()"], {}, setsid=True)
    try:
        assert pid in machine.children_of(os.getpid())
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_a_worker_passes_on_what_went_wrong() -> None:
    async def twice() -> None:
        worker = Worker("no-such-kind")
        await worker.start()
        try:
            with pytest.raises(SetupFailed, match="ended without an answer"):
                await worker.once()
        finally:
            await worker.stop()

    asyncio.run(twice())


def test_absent_peers_are_named_with_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "bubblewrap", lambda: None)
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(peers, "docker", lambda: None)
    assert set(peers.absent()) == {"bubblewrap", "sandlock", "docker_r1"}
    assert peers.measures(1) == []
    assert all("install" in how for how in peers.absent().values())


def test_the_report_is_json() -> None:
    found = results(jail_first=2.0, r1=10)
    document = report.to_json(found)
    assert json.loads(json.dumps(document))["series_ms"]["jail_first"]["p50"] == 2.0
    assert {"r0", "jail_first", "density", "inside"} <= set(full.names())
