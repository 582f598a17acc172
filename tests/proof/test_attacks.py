"""The runner of hostile programs against sandboxes that are broken in known ways."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest

from kooi.contract.backend import Availability
from kooi.contract.errors import InvalidRequest
from kooi.contract.result import Grade
from kooi.contract.spec import Spec
from kooi.proof.access import BoxLike, Opener
from kooi.proof.attacks import residue, runner, suites
from kooi.proof.attacks.bare import harm_without_sandbox
from kooi.proof.attacks.canaries import Canaries
from kooi.proof.attacks.model import Evidence, Expectation, Finding, Outcome, judge
from kooi.proof.attacks.runner import SuiteReport
from kooi.proof.attacks.source import digest_of, prepare, read_marks

from .fakes import PlainBox, ScriptedBox, enforcement

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the host side of the proofs reads /proc")


def opener(kind: type[PlainBox], grade: Grade = "kernel", limited: bool = False, **grades: Grade) -> Opener:
    async def open_it(spec: Spec) -> BoxLike:
        return kind(spec.level, spec.limits, enforcement(spec.level, grade, **grades), limited)

    return open_it


def run(monkeypatch: pytest.MonkeyPatch, with_opener: Opener, *only: str, controls: bool = True) -> SuiteReport:
    async def one_level() -> dict[str, Availability]:
        return {"fake": Availability(True)}

    async def granted(*_: object) -> str:
        return "taken as shown by another test"

    monkeypatch.setattr(runner, "probe_all", one_level)
    if not controls:
        monkeypatch.setattr(runner, "harm_without_sandbox", granted)
    return asyncio.run(runner.run_suite("classic", only=only, opener=with_opener))


def outcomes(report: SuiteReport) -> dict[str, str]:
    return {f.program: f.outcome for f in report.findings}


def test_no_sandbox_at_all_lets_everything_out_but_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(monkeypatch, opener(PlainBox, "none"))
    assert outcomes(report) == {
        "loop": "prevented",
        "memory": "escaped",
        "fork": "escaped",
        "disk": "escaped",
        "credentials": "escaped",
        "service": "escaped",
    }
    assert {f.program: f.residue for f in report.findings if f.residue} == {}
    assert all(report.controls.values())


def test_resource_limits_stop_exactly_memory_and_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(monkeypatch, opener(PlainBox, "per_process", limited=True), "memory", "disk", "credentials")
    assert outcomes(report) == {"memory": "prevented", "disk": "prevented", "credentials": "escaped"}
    assert [f.as_expected for f in report.findings] == [True, True, False]


@pytest.mark.parametrize("status", ["ok", "error", "timeout", "oom", "denied", "sandbox_error"])
def test_a_sandbox_that_runs_nothing_is_never_safe(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    class Dead(ScriptedBox):
        answer = staticmethod(lambda code: (status, b""))  # type: ignore[assignment]

    report = run(monkeypatch, opener(Dead), controls=False)
    assert set(outcomes(report).values()) == {"vacuous"}
    assert not report.as_expected


def test_a_sandbox_that_echoes_the_program_is_never_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    class Echo(ScriptedBox):
        answer = staticmethod(lambda code: ("ok", code.encode()))

    assert set(outcomes(run(monkeypatch, opener(Echo), controls=False)).values()) == {"vacuous"}


def test_one_that_runs_the_twin_and_then_nothing_is_never_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lame(PlainBox):
        runs = 0

        async def run(self, code: str):  # type: ignore[no-untyped-def]
            self.runs += 1
            if self.runs == 3:
                return await super().run("raise SystemExit(1)")
            return await super().run(code)

    assert set(outcomes(run(monkeypatch, opener(Lame), controls=False)).values()) == {"vacuous"}


def test_a_sandbox_that_leaves_processes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaky(PlainBox):
        async def run(self, code: str):  # type: ignore[no-untyped-def]
            if "while True" in code:
                code = (
                    "import subprocess, sys; quiet = subprocess.DEVNULL\n"
                    "nap = [sys.executable, '-c', 'import time; time.sleep(3)']\n"
                    f"subprocess.Popen(nap, stdout=quiet, stderr=quiet)\n{code}"
                )
            return await super().run(code)

    monkeypatch.setattr(residue, "SETTLE_SECONDS", 0.3)
    (finding,) = run(monkeypatch, opener(Leaky), "loop", controls=False).findings
    assert any("planted environment" in line for line in finding.residue)
    assert not finding.as_expected


def test_marks_need_the_nonce_of_the_run() -> None:
    one, two = prepare("", {}), prepare("", {})
    line = f"works=yes#{digest_of(one.nonce, 'works', 'yes')}\n".encode()
    assert read_marks(b"noise\n" + line, one.nonce) == {"works": ("yes",)}
    assert read_marks(line, two.nonce) == {}
    assert "works" not in read_marks(one.text.encode(), one.nonce)


def test_harm_outweighs_every_refusal() -> None:
    (program,) = suites.load("classic", ("credentials",))
    both = Evidence("ok", 0.1, marks={"refused": ("ENOENT",)}, spoils=("credentials file",))
    assert judge(program, both, "kernel-shared").outcome == "escaped"


def test_own_kernel_contains_resource_harm_only() -> None:
    (fork,) = suites.load("classic", ("fork",))
    grown = Evidence("ok", 0.1, marks={"alive": ("200",)})
    assert judge(fork, grown, "machine").outcome == "contained"
    assert judge(fork, grown, "kernel-shared").outcome == "escaped"
    (credentials,) = suites.load("classic", ("credentials",))
    assert judge(credentials, Evidence("ok", 0.1, spoils=("credentials file",)), "machine").outcome == "escaped"


@pytest.mark.parametrize(
    ("outcome", "expected", "fine"),
    [
        ("prevented", ("escaped",), True),
        ("prevented", ("contained",), True),
        ("contained", ("prevented",), False),
        ("escaped", ("contained", "prevented"), False),
        ("vacuous", ("escaped",), False),
        ("prevented", ("vacuous",), False),
    ],
)
def test_a_safer_outcome_than_documented_is_no_surprise(
    outcome: Outcome, expected: tuple[Outcome, ...], fine: bool
) -> None:
    assert Finding("x", "x", "fake", outcome, expected, "", (), 0.0).as_expected is fine
    assert not Finding("x", "x", "fake", outcome, expected, "", ("a file",), 0.0).as_expected


@pytest.mark.parametrize(("good_at", "harm"), [(1, "harm"), (3, "harm"), (4, None)])
def test_a_control_has_three_attempts(monkeypatch: pytest.MonkeyPatch, good_at: int, harm: str | None) -> None:
    (loop,) = suites.load("classic", ("loop",))
    tries: list[int] = []

    async def once(world: object) -> Evidence:
        tries.append(1)
        return Evidence("ok", 0.1)

    program = replace(loop, attack=once, harm=lambda evidence: "harm" if len(tries) == good_at else None)

    async def control() -> str | None:
        async with Canaries() as canaries:
            return await harm_without_sandbox(program, canaries, {})

    assert asyncio.run(control()) == harm
    assert len(tries) == min(good_at, 3)


def test_what_is_expected_follows_the_enforcement() -> None:
    (fork,) = suites.load("classic", ("fork",))
    assert fork.expect.outcomes("process", enforcement("process", "none", processes="per_process")) == {"escaped"}
    assert fork.expect.outcomes("process", enforcement("process", "none", processes="kernel")) == {"prevented"}
    assert fork.expect.outcomes("microvm", enforcement("microvm", "kernel")) == {"contained", "prevented"}
    assert Expectation(clause="unknown").outcomes("jail", enforcement("jail", "kernel")) == {"escaped"}


def test_unknown_suites_and_programs_are_named() -> None:
    with pytest.raises(InvalidRequest, match="no suite 'x'"):
        suites.load("x")
    with pytest.raises(InvalidRequest, match="no program nothing"):
        suites.load("classic", ("nothing",))
