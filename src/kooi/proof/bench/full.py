"""The full benchmark: the interleaved run, then what is measured by itself, into one set of results."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kooi.contract.errors import InvalidRequest, KooiError
from kooi.proof.access import close_all, probe_all
from kooi.proof.bench import baseline, inside, peers, plan, pool
from kooi.proof.bench.bulk import BULK, Bulk
from kooi.proof.bench.floor import floors
from kooi.proof.bench.interleave import Measure, interleave
from kooi.proof.bench.machine import wait_until_idle
from kooi.proof.bench.plan import Rounds
from kooi.proof.bench.results import Results
from kooi.proof.bench.worker import Account, Worker

METHOD = (
    "All series of the interleaved part are taken in turns, A-B-A-B, in one run, after 2 warm-ups each, "
    "with Python's garbage collector off, and a wait for an idle machine before the first round and every 50 rounds.",
    "A time runs from the call in Python to the result object in Python. Percentiles are by nearest rank; no means.",
    "The jail is the configuration that `kooi attack` proves: nothing is switched off for the measurements.",
    "The pool is off except in pool_hit. Blanks that a warm zygote keeps ready are part of the level's own working.",
    "So are fresh ones, executed ahead once a fresh sandbox was asked for: one is ready in process_fresh and "
    "jail_fresh, and they are used up in process_fresh_next and jail_fresh_next.",
)
ALONE: dict[str, Bulk] = {**BULK, "floor": floors, "inside": inside.ratios, "import": inside.import_time}
ORDINARY = "nobody"


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure: `only` names series or parts (empty: all), `quick` takes fewer rounds."""

    only: tuple[str, ...] = ()
    quick: bool = False
    account: str = ORDINARY


async def full(options: Options, step: Callable[[str], None]) -> Results:
    """Measure everything that `options` ask for and this machine can do."""
    with pool.switched_off():
        return await _full(options, step)


async def _full(options: Options, step: Callable[[str], None]) -> Results:
    results = Results()
    results.remarks += baseline.interpreters().remarks
    results.absent.update(peers.absent())
    levels = await _working(results)
    rounds = Rounds(fast=30, slow=5) if options.quick else Rounds()
    try:
        async with _ordinary_user(options, levels, rounds, results) as extra:
            with _pool(options, levels, rounds) as hit:
                chosen = _chosen([*plan.measures(rounds, levels), *extra, *hit], options.only)
                if any(m.name not in _BASELINES for m in chosen):
                    await interleave(chosen, results, step)
        for name, bulk in ALONE.items():
            if _wanted(name, options.only) and (name == "import" or "jail" in levels):
                await _alone(name, bulk, options.quick, results, step)
    finally:
        await close_all()
    return results


_BASELINES = ("r0", "r1", "r2")


def names() -> tuple[str, ...]:
    """Return every name that `only` accepts."""
    return (
        *(m.name for m in plan.measures(Rounds(), ("process", "confined", "jail", "container"))),
        "jail_user_first",
        "pool_hit",
        *ALONE,
    )


def _chosen(found: Sequence[Measure], only: tuple[str, ...]) -> list[Measure]:
    """Return what is asked for; the baselines are always in, or no ratio means anything."""
    return [m for m in found if _wanted(m.name, only) or m.name in _BASELINES]


def _wanted(name: str, only: tuple[str, ...]) -> bool:
    return not only or name in only


async def _working(results: Results) -> tuple[str, ...]:
    found = await probe_all()
    await close_all()
    for name, state in found.items():
        if not state.ok:
            results.absent[f"level {name}"] = f"{state.reason}; {state.fix}" if state.fix else str(state.reason)
    return tuple(name for name, state in found.items() if state.ok)


async def _alone(name: str, bulk: Bulk, quick: bool, results: Results, step: Callable[[str], None]) -> None:
    step(name)
    await wait_until_idle()
    try:
        await bulk(results, quick)
    except (KooiError, OSError) as error:
        results.absent[name] = f"{type(error).__name__}: {error}"
    if name != "import":
        await close_all()


@contextmanager
def _pool(options: Options, levels: tuple[str, ...], rounds: Rounds) -> Iterator[list[Measure]]:
    if "jail" not in levels or not _wanted("pool_hit", options.only):
        yield []
        return
    with pool.measure(rounds.fast) as hit:
        yield [hit]


@asynccontextmanager
async def _ordinary_user(
    options: Options, levels: tuple[str, ...], rounds: Rounds, results: Results
) -> AsyncIterator[list[Measure]]:
    """As root, give a measure of the same jail as an ordinary user, in a process of that user's own."""
    name = "jail_user_first"
    if "jail" not in levels or not _wanted(name, options.only):
        yield []
        return
    if os.geteuid() != 0:
        results.absent[name] = "this run is an ordinary user's already: compare with a run as root"
        yield []
        return
    user = _account(options.account)
    home = Path(tempfile.mkdtemp(prefix="kooi-bench-"))
    # This checkout and its environment may be where another user cannot go.
    shutil.copytree(Path(__file__).parents[2], home / "kooi", ignore=shutil.ignore_patterns("__pycache__"))
    os.chown(home, user.pw_uid, user.pw_gid)
    account = Account(user.pw_uid, user.pw_gid, str(home), baseline.interpreters().bare)
    worker = Worker("jail", account=account)

    async def once() -> Mapping[str, float]:
        return {name: await worker.once()}

    try:
        yield [Measure(name, once, rounds.fast, worker.start, worker.stop)]
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _account(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise InvalidRequest(f"there is no user {name!r}", key="user", fix="name one with --as-user") from None
