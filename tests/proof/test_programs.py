"""The hostile programs themselves, and what the levels of this machine do with them."""

from __future__ import annotations

import ast
import asyncio

import pytest

from kooi import settings
from kooi.engine import registry
from kooi.proof.access import close_all, probe_all
from kooi.proof.attacks import runner, suites
from kooi.proof.attacks.model import Program
from kooi.proof.attacks.runner import SuiteReport
from kooi.proof.attacks.source import prepare

PROGRAMS = [program for suite in suites.SUITES for program in suites.load(suite)]


def test_ids_are_unique() -> None:
    assert len({p.id for p in PROGRAMS}) == len(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.id)
def test_programs_and_their_twins_are_python_3_8(program: Program) -> None:
    for source in (program.source, program.control):
        ast.parse(prepare(source, runner_params()).text, feature_version=(3, 8))
    assert "works" in program.control


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.id)
def test_expectations_name_clauses_that_levels_report(program: Program) -> None:
    clause = program.expect.clause
    if clause is not None:
        from kooi.contract.policy import CLAUSES

        assert clause in CLAUSES


def runner_params() -> dict[str, object]:
    return {"numbers": runner.syscall_numbers(), "quote": "'\"\\"}


def attack(suite: str, level: str) -> SuiteReport:
    async def run() -> SuiteReport:
        try:
            return await runner.run_suite(suite, [level])
        finally:
            await close_all()

    return asyncio.run(run())


def working(level: str) -> None:
    """Skip where the level does not work, or fail where it has to."""

    async def probe() -> str | None:
        try:
            state = (await probe_all())[level]
        finally:
            await close_all()
        return None if state.ok else f"level {level} does not work here: {state.reason} ({state.fix})"

    reason = asyncio.run(probe())
    if reason is not None:
        (pytest.fail if settings.load_settings().must_work(level) else pytest.skip)(reason)


def surprises(report: SuiteReport) -> list[str]:
    return [f"{f.program}: {f.outcome}: {f.reason} {f.residue}" for f in report.findings if not f.as_expected]


@pytest.mark.parametrize("level", registry.BUILT_IN)
def test_the_classic_programs_meet_what_is_documented(level: str) -> None:
    working(level)
    report = attack("classic", level)
    assert len(report.findings) == 6
    assert surprises(report) == []
    if level != "process":
        assert [f.outcome for f in report.findings] == ["prevented"] * 6


@pytest.mark.parametrize("level", registry.BUILT_IN)
def test_the_catalogue_meets_what_is_documented(level: str) -> None:
    if not settings.load_settings().levels_must_work:
        pytest.skip("takes a minute a level: set KOOI_LEVELS_MUST_WORK to run it")
    working(level)
    assert surprises(attack("catalogue", level)) == []
