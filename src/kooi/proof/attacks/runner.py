"""Run a suite of hostile programs at every level asked for, and say what came of each.

One program at one level:

    picture of the host → open a sandbox → print(1) → the harmless twin → the attack → print(1) again → close
    → canaries still listening → picture of the host again

`print(1)` and the twin show that the sandbox runs code at all; the same attack with the sandbox off (once per program)
shows that it does harm. If either is missing the outcome is `vacuous`; a failure of ours in the middle is so too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kooi.contract.errors import InvalidRequest, KooiError
from kooi.contract.result import Result
from kooi.contract.spec import Spec
from kooi.linux.seccomp_numbers import numbers
from kooi.proof.access import BoxLike, Opener, close_all, open_box, probe_all
from kooi.proof.attacks import suites
from kooi.proof.attacks.bare import harm_without_sandbox
from kooi.proof.attacks.canaries import ENVIRONMENT_NAME, Canaries
from kooi.proof.attacks.model import Evidence, Finding, Outcome, Program, Verdict, grade_of, judge
from kooi.proof.attacks.residue import Residue
from kooi.proof.attacks.world import SandboxWorld

_CLOSE_SECONDS = 30.0
_AT_ONCE = 3
PROBED = (
    "bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key "
    "unshare setns clone clone3 ptrace process_vm_readv process_vm_writev pidfd_open pidfd_getfd kcmp process_madvise "
    "kexec_load init_module finit_module delete_module reboot swapon acct syslog iopl ioperm settimeofday sethostname "
    "quotactl mount umount2 pivot_root open_tree move_mount fsopen fsmount mount_setattr name_to_handle_at "
    "open_by_handle_at"
)
Progress = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Absent:
    """A level that was asked for and cannot run here."""

    level: str
    reason: str
    fix: str | None


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """What a suite came to: a finding per program and level, the levels that are absent, and the controls.

    `left` is what was still there, by level, when its helpers were closed too.
    """

    suite: str
    levels: tuple[str, ...]
    findings: tuple[Finding, ...]
    absent: tuple[Absent, ...]
    controls: dict[str, str | None]
    seconds: float
    left: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def as_expected(self) -> bool:
        """Whether every outcome is an expected one, with nothing left behind."""
        return bool(self.findings) and all(f.as_expected for f in self.findings) and not any(self.left.values())

    def at(self, program: str, level: str) -> Finding:
        """Return the finding for one program at one level."""
        return next(f for f in self.findings if f.program == program and f.level == level)


async def run_suite(
    suite: str = "classic",
    levels: Sequence[str] = (),
    only: Sequence[str] = (),
    progress: Progress | None = None,
    opener: Opener = open_box,
) -> SuiteReport:
    """Run `suite` at `levels` (empty: every level that works here) and report.

    `progress(program, level)` is called before each; level is `no sandbox` for the controls.
    """
    tell = progress or (lambda program, level: None)
    programs = suites.load(suite, tuple(only))
    started = time.monotonic()
    working, absent = await _levels(levels)
    findings: list[Finding] = []
    left: dict[str, tuple[str, ...]] = {}
    with _own_temporary_folder():
        async with Canaries() as canaries:
            controls = {}
            for program in programs:
                tell(program.title, "no sandbox")
                controls[program.id] = await harm_without_sandbox(program, canaries, parameters(canaries))
            residue = Residue(canaries.environment_token)
            for level in working:
                bare = await residue.settled()
                await _warm(level, opener)
                for program in programs:
                    tell(program.title, level)
                    findings.append(await attack(program, level, canaries, controls[program.id], residue, opener))
                await close_all()
                left[level] = await residue.since(bare)
                residue.forget()
    return SuiteReport(suite, tuple(working), tuple(findings), absent, controls, time.monotonic() - started, left)


def parameters(canaries: Canaries) -> dict[str, object]:
    """Return what every program is told about the planted things."""
    return {
        "credentials": str(canaries.credentials),
        "drop": str(canaries.drop),
        "inode": canaries.inode,
        "word": secrets.token_hex(6),
        "aim": "all",
        "environment": ENVIRONMENT_NAME,
        "numbers": syscall_numbers(),
        "home": str(canaries.directory),
        "port": canaries.port,
        "udp_port": canaries.udp_port,
        "victim": canaries.victim_pid,
    }


def syscall_numbers() -> dict[str, int]:
    """Return the numbers of the kernel calls that programs probe, on this machine."""
    try:
        known = numbers(platform.machine())
    except KooiError:
        return {}
    return {name: known[name] for name in PROBED.split() if name in known}


async def _levels(asked: Sequence[str]) -> tuple[list[str], tuple[Absent, ...]]:
    """Split the levels asked for into those that work and those that do not."""
    found = await probe_all()
    await close_all()
    names = list(asked) or list(found)
    working, absent = [], []
    for name in names:
        if name not in found:
            raise InvalidRequest(f"no level {name!r}", key="level", fix=f"choose among {', '.join(found)}")
        state = found[name]
        if state.ok:
            working.append(name)
        else:
            absent.append(Absent(name, state.reason or "unknown", state.fix))
    return working, tuple(absent)


@contextlib.contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """Let everything this process puts into the temporary folder go into one of its own, so that leftovers are seen."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="kooi-proof-") as folder:
        tempfile.tempdir = folder
        os.chmod(folder, 0o755)
        try:
            yield
        finally:
            tempfile.tempdir = before


async def _warm(level: str, opener: Opener) -> None:
    """Use as many sandboxes at once as a program does, so that what is kept in stock is there before any picture."""
    boxes = [await opener(Spec(level=level, preload=())) for _ in range(_AT_ONCE)]
    for box in boxes:
        await box.run("print(1)")
    for box in boxes:
        await box.close()


async def attack(
    program: Program,
    level: str,
    canaries: Canaries,
    control: str | None,
    residue: Residue,
    opener: Opener = open_box,
) -> Finding:
    """Run one program at one level. `control` is the harm it did with the sandbox off."""
    started = time.monotonic()
    before = await residue.settled()
    world = SandboxWorld(program, level, canaries, parameters(canaries), opener)
    clause = program.expect.clause
    expected: tuple[Outcome, ...] = ("prevented",)
    grade: str | None = None
    evidence: Evidence | None = None
    try:
        await world.open()
        first = await _prints_one(world.box)
        enforcement = first.enforcement
        expected = tuple(sorted(program.expect.outcomes(level, enforcement)))
        grade = grade_of(enforcement, clause) if clause else None
        verdict, evidence = await _attempt(program, world, first)
    except Exception as error:  # whatever fails here is ours, and then nothing is proved
        verdict = Verdict("vacuous", f"the sandbox failed: {type(error).__name__}: {error}")
    left = await _close(world)
    if program.bare.root and os.geteuid() != 0 and control is None:
        expected = ("vacuous",)
    verdict = _doubt(verdict, control, await canaries.alive())
    left += await residue.since(before)
    return Finding(
        program=program.id, title=program.title, level=level, outcome=verdict.outcome,
        expected=expected, reason=verdict.reason, residue=tuple(left),
        seconds=time.monotonic() - started, clause=clause, grade=grade,
        status=evidence.status if evidence else None, decided_by=evidence.decided_by if evidence else None,
    )  # fmt: skip


async def _close(world: SandboxWorld) -> list[str]:
    """Close the program's sandboxes; return what is wrong afterwards."""
    try:
        survivors = await asyncio.wait_for(world.close(), _CLOSE_SECONDS)
    except Exception as error:
        return [f"closing failed: {type(error).__name__}: {error}"]
    return [f"process of the program × {len(survivors)}"] if survivors else []


async def _attempt(program: Program, world: SandboxWorld, first: Result) -> tuple[Verdict, Evidence | None]:
    if (problem := _wrong(first)) is not None:
        return Verdict("vacuous", f"print(1) before: {problem}"), None
    twin = await world.run(program.control)
    if "works" not in twin.marks:
        return Verdict("vacuous", f"the harmless twin does not work: {twin.status}, {twin.error}"), twin
    evidence = await program.run(world)
    verdict = judge(program, evidence, first.strength)
    if verdict.outcome == "prevented":
        verdict = await _after(world, verdict)
    return verdict, evidence


async def _after(world: SandboxWorld, verdict: Verdict) -> Verdict:
    """Check `print(1)` again. A program may take its own sandbox with it; then the next one has to work."""
    if world.ended:
        await world.open()
    try:
        problem = _wrong(await _prints_one(world.box))
    except KooiError as error:
        problem = str(error)
    if problem is None:
        return verdict
    await world.open()
    if (again := _wrong(await _prints_one(world.box))) is not None:
        return Verdict("vacuous", f"print(1) after: {problem}; in a new sandbox: {again}")
    return replace(verdict, reason=f"{verdict.reason}; it took its own sandbox with it")


async def _prints_one(box: BoxLike) -> Result:
    return await box.run("print(1)")


def _wrong(result: Result) -> str | None:
    """Return what is wrong with the result of `print(1)`, or `None`."""
    if result.status == "ok" and result.stdout == "1\n":
        return None
    return f"status {result.status}, output {result.stdout[:40]!r}"


def _doubt(verdict: Verdict, control: str | None, canaries_alive: bool) -> Verdict:
    """Turn an outcome that proves nothing into `vacuous`."""
    if not canaries_alive:
        return Verdict("vacuous", "a planted canary stopped noticing hits")
    if control is None and verdict.outcome != "escaped":
        return Verdict("vacuous", "the program does no harm with the sandbox off")
    return verdict
