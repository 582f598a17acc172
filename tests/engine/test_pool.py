"""The pool: single use, by posture, bounded, never in the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kooi.contract.errors import SetupFailed
from kooi.contract.limits import MIB, Limits
from kooi.contract.policy import Policy
from kooi.contract.spec import Spec
from kooi.engine.pool import ASSUMED_BYTES, Pool, bare, posture
from tests.engine.fakes import FakeBackend, Peer, serve

SPEC = Spec(level="fake")
Run = Callable[..., Any]


async def _stocked(pool: Pool, count: int, ready: bool = True) -> None:
    for _ in range(400):
        states = [pooled.state() for shelf in pool._shelves.values() for pooled in shelf.boxes]
        if states.count("ready" if ready else "warming") == count:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(states)


def test_an_empty_pool_opens_and_then_fills(run: Run) -> None:
    async def main() -> None:
        inner = FakeBackend()
        pool = Pool(inner, size=2, memory_bytes=100 * MIB)
        first = await pool.open(SPEC)
        assert len(inner.boxes) == 1
        await _stocked(pool, 2)
        second = await pool.open(SPEC)
        assert second is inner.boxes[1] and second is not first
        await _stocked(pool, 2)
        assert len(inner.boxes) == 4
        await first.kill()
        await second.kill()
        await pool.close()
        assert pool.stock() == 0 and inner.closed == 1
        assert not any(box.thread.is_alive() for box in inner.boxes)

    run(main())


def test_a_box_of_another_posture_is_not_handed_out(run: Run) -> None:
    async def main() -> None:
        inner = FakeBackend()
        pool = Pool(inner, size=1, memory_bytes=100 * MIB)
        await pool.open(SPEC)
        await _stocked(pool, 1)
        other = await pool.open(replace(SPEC, limits=Limits(memory_bytes=64 * MIB)))
        assert other is inner.boxes[2]
        same = await pool.open(replace(SPEC, policy=Policy(env={"A": "b"}), limits=Limits(wall_seconds=1)))
        assert same is inner.boxes[1]
        await pool.close()

    run(main())


def test_a_dead_box_is_never_handed_out(run: Run) -> None:
    async def main() -> None:
        inner = FakeBackend()
        pool = Pool(inner, size=1, memory_bytes=100 * MIB)
        await pool.open(SPEC)
        await _stocked(pool, 1)
        await inner.boxes[1].kill()
        box = await pool.open(SPEC)
        assert box is inner.boxes[2]
        await pool.close()

    run(main())


def test_a_box_that_is_warming_is_left_alone(run: Run) -> None:
    go = threading.Event()

    def slow(peer: Peer) -> None:
        go.wait(5)
        serve(peer)

    async def main() -> None:
        inner = FakeBackend(slow)
        pool = Pool(inner, size=1, memory_bytes=100 * MIB)
        await pool.open(SPEC)
        await _stocked(pool, 1, ready=False)
        assert await pool.open(SPEC) is inner.boxes[2]
        go.set()
        await _stocked(pool, 1)
        assert await pool.open(SPEC) is inner.boxes[1]
        await pool.close()

    run(main())


def test_memory_bounds_the_stock(run: Run) -> None:
    async def main() -> None:
        inner = FakeBackend()
        pool = Pool(inner, size=50, memory_bytes=ASSUMED_BYTES + 2 * MIB)
        await pool.open(SPEC)
        # Each fake weighs 1 MiB at least: a third would leave no room for one of the assumed weight.
        await _stocked(pool, 3)
        await asyncio.sleep(0.2)
        assert pool.stock() == 3
        await pool.close()

    run(main())


def test_an_inner_backend_that_fails_is_heard_by_whoever_asks(run: Run) -> None:
    class Broken(FakeBackend):
        async def open(self, spec: Spec, snapshot: object = None) -> Any:
            raise SetupFailed("no")

    async def main() -> None:
        pool = Pool(Broken(), size=2, memory_bytes=100 * MIB)
        for _ in range(2):
            try:
                await pool.open(SPEC)
                raise AssertionError("opened")
            except SetupFailed:
                pass
            await asyncio.sleep(0.05)
        assert pool.stock() == 0
        await pool.close()

    run(main())


def test_another_loop_gets_boxes_of_its_own() -> None:
    inner = FakeBackend()
    pool = Pool(inner, size=1, memory_bytes=100 * MIB)

    async def first() -> None:
        await pool.open(SPEC)
        await _stocked(pool, 1)

    async def second() -> Any:
        return await pool.open(SPEC)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(first())
    assert asyncio.run(second()) is inner.boxes[2]
    loop.run_until_complete(pool.close())
    loop.close()


@given(
    env=st.dictionaries(st.sampled_from("ABC"), st.text("xyz", max_size=3)),
    wall=st.none() | st.floats(0.1, 100),
    output=st.none() | st.integers(0, 1000),
)
def test_what_is_bound_later_is_no_part_of_the_posture(
    env: dict[str, str], wall: float | None, output: int | None
) -> None:
    spec = Spec(level="fake", policy=Policy(env=env), limits=Limits(wall_seconds=wall, output_bytes=output))
    assert posture(spec) == posture(SPEC)
    assert bare(spec).policy.env == {}
