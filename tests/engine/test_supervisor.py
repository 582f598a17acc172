"""One run in one box, against a guest that fails in every way it can."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from kooi.contract.backend import BoxEvent
from kooi.contract.errors import KooiError, SandboxClosed, SandboxLost
from kooi.contract.limits import Limits
from kooi.contract.result import Clause, Result, RunEvent, Usage
from kooi.engine import supervisor
from kooi.sandbox import AsyncSandbox
from kooi.sandbox import run as run_once
from tests.engine.fakes import FakeBackend

Run = Callable[..., Any]


async def _once(code: str, **limits: Any) -> Result:
    return await run_once(code, level="fake", limits=limits)


@pytest.mark.parametrize(
    ("code", "status", "decided_by"),
    [
        ("out hi", "ok", "code"),
        ("error ValueError bad", "error", "code"),
        ("error OSError [Errno 28] No space left on device", "disk_limit", "code"),
        ("error OSError [Errno 27] File too large", "error", "code"),
        ("exit 0", "ok", "agent"),
        ("exit 3", "error", "agent"),
        ("signal 11", "signal", "agent"),
        ("die", "lost", "host"),
        ("oom\nsignal 9", "oom", "host"),
        ("oom\ndie", "oom", "host"),
        ("pids\nexit 1", "pids_limit", "host"),
        ("break", "sandbox_error", "host"),
    ],
)
def test_status(fake: FakeBackend, run: Run, code: str, status: str, decided_by: str) -> None:
    result = run(_once(code))
    assert (result.status, result.decided_by) == (status, decided_by)


def test_a_box_of_its_own_is_gone_when_run_returns(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        await _once("out hi")
        assert not fake.boxes[0].thread.is_alive()

    run(main())


def test_output_is_counted_exactly_and_kept_up_to_the_cap(fake: FakeBackend, run: Run) -> None:
    at_cap = run(_once("flood 1000", output_bytes=1000))
    assert (at_cap.status, at_cap.stdout_total_bytes, at_cap.truncated) == ("ok", 1000, False)
    over = run(_once("flood 1001", output_bytes=1000))
    assert (over.status, over.stdout_total_bytes, len(over.stdout_bytes)) == ("output_limit", 1001, 1000)
    assert over.truncated
    nothing = run(_once("out x", output_bytes=0))
    assert (nothing.status, nothing.stdout_bytes, nothing.stdout_total_bytes) == ("output_limit", b"", 1)


def test_a_large_flood_ends_at_the_cap(fake: FakeBackend, run: Run) -> None:
    result = run(_once("err before\nflood 100000000", output_bytes=100_000))
    assert result.status == "output_limit"
    assert len(result.stdout_bytes) == 100_000
    assert 100_000 < result.stdout_total_bytes < 10_000_000
    assert result.stderr == "before"


def test_output_far_beyond_the_credit_arrives_whole(fake: FakeBackend, run: Run) -> None:
    result = run(_once("flood 20000000", output_bytes=None))
    assert (result.status, len(result.stdout_bytes)) == ("ok", 20_000_000)


def test_timeout_kills_the_run_and_keeps_its_output(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake", limits={"wall_seconds": 0.1}) as box:
            result = await box.run("out partial\nhang")
            assert (result.status, result.decided_by, result.signal) == ("timeout", "host", 9)
            assert result.stdout == "partial"
            assert result.usage.wall_seconds is not None and 0.1 <= result.usage.wall_seconds < 1
            assert (await box.run("out again")).status == "ok"
            assert fake.boxes[0].killed == 0

    run(main())


def test_a_guest_that_does_not_answer_loses_its_box(
    fake: FakeBackend, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "KILL_GRACE_SECONDS", 0.05)

    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            result = await box.run("out partial\ndeaf", timeout=0.05)
            assert (result.status, result.stdout) == ("timeout", "partial")
            with pytest.raises(SandboxLost, match="did not end a run"):
                await box.run("out more")

    run(main())


def test_timeout_only_narrows(fake: FakeBackend, run: Run) -> None:
    result = run(_once("hang", wall_seconds=0.05))
    assert result.status == "timeout"

    async def wider() -> Result:
        async with AsyncSandbox("fake", limits={"wall_seconds": 0.05}) as box:
            return await box.run("hang", timeout=60)

    assert run(wider()).status == "timeout"


def test_cpu_limit_is_found_by_looking(fake: FakeBackend, run: Run) -> None:
    result = run(_once("burn 5\nhang", cpu_seconds=0.01, wall_seconds=30))
    assert (result.status, result.usage.cpu_seconds) == ("cpu_limit", 5)


def test_no_look_when_the_wall_limit_implies_the_cpu_limit(fake: FakeBackend, run: Run) -> None:
    result = run(_once("hang", cpu_seconds=1000, wall_seconds=0.1))
    assert result.status == "timeout"
    assert fake.boxes[0].looks == 0


def test_the_gravest_reason_wins(fake: FakeBackend, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "KILL_GRACE_SECONDS", 0.3)
    result = run(_once("out xx\ndeaf", output_bytes=1, wall_seconds=0.1))
    assert (result.status, result.stdout_total_bytes) == ("timeout", 2)


def test_a_limit_that_the_code_survived_is_an_event(fake: FakeBackend, run: Run) -> None:
    result = run(_once("oom\npids\nleft 2\nok"))
    assert result.status == "ok"
    assert [event.partition(":")[0] for event in result.events] == ["oom", "pids_limit"]


@pytest.mark.parametrize("kind", ["oom", "pids_limit"])
def test_a_limit_met_while_no_run_was_on_is_no_runs(
    fake: FakeBackend, run: Run, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            await box.run("ok")
            box_ = fake.boxes[0]
            usage = box_.usage

            async def look() -> Usage:
                # As a level does that learns of it by looking.
                box_.queue.put_nowait(BoxEvent(kind, 1))
                return await usage()

            monkeypatch.setattr(box_, "usage", look)
            result = await box.run("exit 1")
            assert (result.status, result.events) == ("error", ())

    run(main())


def test_processes_left_alive_are_named_while_the_sandbox_lives(fake: FakeBackend, run: Run) -> None:
    async def main() -> Result:
        async with AsyncSandbox("fake") as box:
            return await box.run("left 2\nok")

    assert run(main()).events == ("left: 2 processes of the code are still alive",)


def test_the_kernels_word_may_come_late(fake: FakeBackend, run: Run) -> None:
    async def main() -> Result:
        async with AsyncSandbox("fake") as box:
            box_ = fake.boxes[0]
            asyncio.get_running_loop().call_later(0.02, box_.count, "oom")
            return await box.run("signal 9")

    assert run(main()).status == "oom"


def test_cancelling_leaves_when_the_run_is_dead(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            task = asyncio.ensure_future(box.run("hang"))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await box.run("out next")).stdout == "next"
            assert fake.boxes[0].killed == 0
        task = asyncio.ensure_future(_once("hang"))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not fake.boxes[1].thread.is_alive()

    run(main())


def test_cancelling_again_and_again_changes_nothing(
    fake: FakeBackend, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "KILL_GRACE_SECONDS", 0.1)

    async def main() -> None:
        task = asyncio.ensure_future(_once("deaf"))
        while not task.done():
            await asyncio.sleep(0.01)
            task.cancel()
        assert task.cancelled()
        assert not fake.boxes[0].thread.is_alive()

    run(main())


def test_a_closing_loop_still_ends_the_run(fake: FakeBackend) -> None:
    async def main() -> None:
        background.append(asyncio.ensure_future(_once("deaf")))
        await asyncio.sleep(0.02)

    background: list[Any] = []
    before = supervisor.KILL_GRACE_SECONDS
    supervisor.KILL_GRACE_SECONDS = 0.05
    try:
        asyncio.run(main())
    finally:
        supervisor.KILL_GRACE_SECONDS = before
    assert not fake.boxes[0].thread.is_alive()


def test_close_ends_runs_in_flight_as_killed(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        box = AsyncSandbox("fake")
        task = asyncio.ensure_future(box.run("out partial\nhang"))
        await asyncio.sleep(0.05)
        await box.close()
        result = await task
        assert (result.status, result.stdout, result.decided_by) == ("killed", "partial", "host")
        with pytest.raises(SandboxClosed):
            await box.run("ok")

    run(main())


def test_overlapping_runs_are_marked_shared(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            alone = await box.run("ok")
            assert not alone.usage.shared
            first, second = await asyncio.gather(
                box.commands.run("hang", timeout=0.1), box.commands.run("hang", timeout=0.2)
            )
            assert first.usage.shared and second.usage.shared

    run(main())


def test_runs_take_turns(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            first, second = await asyncio.gather(box.run("hang", timeout=0.1), box.run("hang", timeout=0.1))
            assert not first.usage.shared and not second.usage.shared

    run(main())


def test_usage_is_the_difference(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            await box.run("burn 2\nok")
            assert (await box.run("burn 3\nok")).usage.cpu_seconds == 3
            assert (await box.usage()).cpu_seconds == 5

    run(main())


def test_taps_see_what_is_kept(fake: FakeBackend, run: Run) -> None:
    seen: list[Any] = []

    async def main() -> Result:
        async with AsyncSandbox("fake", limits=Limits(output_bytes=6)) as box:
            return await box.run(
                "out h\u00e4\nerr no\nitem 42\nout 12345\nerror E v",
                on_stdout=seen.append,
                on_stderr=lambda text: seen.append(("err", text)),
                on_result=lambda item: seen.append(item.text),
                on_error=lambda error: seen.append(error.name),
            )

    result = run(main())
    assert result.status == "output_limit"
    assert result.results[0].text == "42"
    assert seen[:4] == ["h\u00e4", ("err", "no"), "42", "123"]


def test_text_is_decoded_across_chunks(fake: FakeBackend, run: Run) -> None:
    seen: list[str] = []

    async def main() -> None:
        async with AsyncSandbox("fake", limits={"output_bytes": 1}) as box:
            await box.run("out \u00e4", on_stdout=seen.append)

    run(main())
    assert seen == ["\ufffd"]


def test_a_tap_that_raises_kills_the_run_and_leaves_the_call(fake: FakeBackend, run: Run) -> None:
    def tap(text: str) -> None:
        raise LookupError(text)

    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            with pytest.raises(LookupError, match="boom"):
                await box.run("out boom\nhang", on_stdout=tap)
            assert (await box.run("out fine")).stdout == "fine"

    run(main())


def test_stream_gives_events_and_the_result(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            stream = box.stream("out a\nerr b\nitem c\npids\nerror E v")
            with pytest.raises(RuntimeError, match="not ended"):
                _ = stream.result
            events: list[RunEvent] = [event async for event in stream]
            assert [event.kind for event in events] == ["stdout", "stderr", "result", "error"]
            assert events[0].data == b"a"
            assert stream.result.status == "pids_limit"

    run(main())


def test_leaving_a_stream_early_kills_the_run(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            async for _ in box.stream("out a\nhang"):
                break
            assert (await box.run("out next", timeout=2)).stdout == "next"
            async with box.stream("out a\nhang") as stream:
                await stream.__anext__()
            assert (await box.run("out next", timeout=2)).stdout == "next"

    run(main())


def test_an_idle_box_that_dies_is_lost(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake") as box:
            assert (await box.run("ok")).ok
            await fake.boxes[0].kill()
            await asyncio.sleep(0.01)
            with pytest.raises(SandboxLost):
                await box.run("ok")
            with pytest.raises(SandboxLost):
                await box.files.read("x")

    run(main())


def test_a_box_that_cannot_be_measured_has_no_cpu_limit_and_is_ended(
    fake: FakeBackend, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake", limits={"cpu_seconds": 0.01, "wall_seconds": 10}) as box:

            async def blind() -> None:
                raise KooiError("cannot look")

            monkeypatch.setattr(fake.boxes[0], "usage", blind)
            began = time.monotonic()
            with pytest.raises(KooiError, match="cannot look"):
                await box.run("hang")
            assert time.monotonic() - began < 5

    run(main())


def test_ttl_closes_the_sandbox(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        async with AsyncSandbox("fake", limits={"ttl_seconds": 0.1}) as box:
            assert (await box.run("hang")).status == "killed"
            with pytest.raises(SandboxClosed, match="ttl_seconds"):
                await box.run("ok")

    run(main())


def test_only_a_sandbox_that_does_nothing_is_idle(fake: FakeBackend, run: Run) -> None:
    async def main() -> None:
        # Seconds, not tenths: between two runs a busy machine may lose some.
        async with AsyncSandbox("fake", limits={"idle_seconds": 2}) as box:
            assert (await box.run("hang", timeout=2.5)).status == "timeout"
            assert (await box.run("ok")).ok
            await _until(lambda: fake.boxes[0].killed > 0)
            with pytest.raises(SandboxClosed, match="idle_seconds"):
                await box.run("ok")

    run(main())


async def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def test_file_size_limits_count_as_disk_where_they_hold_the_disk(fake: FakeBackend, run: Run) -> None:
    fake.clauses = (Clause("disk_bytes", "RLIMIT_FSIZE", "per_process"),)
    assert run(_once("error OSError [Errno 27] File too large")).status == "disk_limit"
    assert run(_once("signal 25")).status == "disk_limit"
