"""What a hostile program is, what is observed of it, and what that comes to.

Outcomes: `prevented` (it was stopped, and something proves that it was), `contained` (it had its way, but only in a
machine of its own), `escaped` (it did the harm), `vacuous` (nothing was proved: the program did not really run, or it
does no harm with the sandbox off either). A sandbox that is broken scores `vacuous`, never `prevented`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from kooi.contract.result import Enforcement

Outcome = Literal["prevented", "contained", "escaped", "vacuous"]
HELD: frozenset[str] = frozenset({"kernel", "polled", "per_process", "remote"})
WHOLE: frozenset[str] = frozenset({"kernel", "polled", "remote"})
_SAFETY: tuple[Outcome, ...] = ("escaped", "contained", "prevented")
OWN_KERNEL: frozenset[str] = frozenset({"emulated", "kernel-own", "machine", "remote"})


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one run of a hostile program left to see.

    `marks` are the genuine ones, `spoils` the planted tokens found in anything that came out, `hits` what the planted
    listeners and processes counted, `seen_peak` and `seen_after` how many processes of the program the host itself saw
    at most and after it was over. `returned` is False when the call did not come back in time.
    """

    status: str | None
    elapsed_seconds: float
    marks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    output: bytes = b""
    errors: bytes = b""
    decided_by: str | None = None
    error: str | None = None
    returned: bool = True
    truncated: bool = False
    total_bytes: int = 0
    spoils: tuple[str, ...] = ()
    hits: Mapping[str, int] = field(default_factory=dict)
    seen_peak: int = 0
    seen_after: int = 0
    facts: Mapping[str, object] = field(default_factory=dict)

    def last(self, name: str) -> str | None:
        """Return the last value marked under `name`."""
        values = self.marks.get(name, ())
        return values[-1] if values else None

    def number(self, name: str) -> int:
        """Return the largest number marked under `name`; 0 when there is none."""
        return max((int(v) for v in self.marks.get(name, ()) if v.lstrip("-").isdigit()), default=0)


class World(Protocol):
    """Where a hostile program runs: a sandbox of some level, or (the control) no sandbox at all."""

    params: dict[str, object]

    async def run(
        self, source: str, params: Mapping[str, object] | None = None, seconds: float | None = None
    ) -> Evidence:
        """Run `source` once; the state of earlier runs is not relied on."""
        ...

    async def read(self, path: str) -> bytes:
        """Read a file of the program, the way a host program would."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file for the program, the way a host program would."""
        ...

    async def another(self) -> World:
        """Return a second world of the same kind, alive at the same time."""
        ...

    async def end(self) -> int:
        """End it; return how many processes of the program the host still sees a moment later."""
        ...

    def check(self, *outputs: bytes) -> Evidence:
        """Return what the planted canaries saw so far, and which planted secrets are in `outputs`."""
        ...


Judge = Callable[[Evidence], "str | None"]
Attack = Callable[["World"], Awaitable[Evidence]]


@dataclass(frozen=True, slots=True)
class Expectation:
    """Which outcome is right where: by level, else by how well the clause is held, else `prevented`."""

    clause: str | None = None
    holds: frozenset[str] = HELD
    levels: Mapping[str, frozenset[Outcome]] = field(default_factory=dict)

    def outcomes(self, level: str, enforcement: Enforcement) -> frozenset[Outcome]:
        """Return the outcomes that agree with what the level says of itself."""
        if level in self.levels:
            return self.levels[level]
        if self.clause is not None and grade_of(enforcement, self.clause) not in self.holds:
            return frozenset({"escaped"})
        return frozenset({"prevented"})


@dataclass(frozen=True, slots=True)
class Bare:
    """How the program is run with the sandbox off.

    `seconds` bounds it. `params` replaces parameters, so that it aims at planted targets only. `session=False` leaves
    it in the process group of the canaries, `inherit` gives it descriptors that are inheritable, `argv` are arguments.
    `output`: taken from a `file`, from a pipe up to its `end`, or from two pipes one after the other (`in_turn`).
    `root`: an ordinary user cannot do this harm, so for one the control says nothing.
    """

    seconds: float = 10.0
    params: Mapping[str, object] = field(default_factory=dict)
    session: bool = True
    inherit: bool = False
    argv: tuple[str, ...] = ()
    output: Literal["file", "end", "in_turn"] = "file"
    root: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """One hostile program.

    `source` runs inside. `control` is its harmless twin, which must leave the mark `works`. `harm` says what harm the
    evidence shows, `refused` what proves that it was stopped. `limits` changes fields of `Limits`. `resource` marks
    harm that a machine of one's own contains. `attack` drives a program that takes more than one run. `env` is set by
    the policy. `bare` says how it runs with the sandbox off.
    """

    id: str
    title: str
    source: str
    control: str
    harm: Judge
    refused: Judge
    expect: Expectation
    limits: Mapping[str, object] = field(default_factory=dict)
    resource: bool = False
    seconds: float = 10.0
    attack: Attack | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    bare: Bare = Bare()

    async def run(self, world: World) -> Evidence:
        """Do the attack in `world`."""
        if self.attack is not None:
            return await self.attack(world)
        return await world.run(self.source)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the evidence comes to, and why."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One program at one level: the outcome, the expected ones, and what was left behind."""

    program: str
    title: str
    level: str
    outcome: Outcome
    expected: tuple[Outcome, ...]
    reason: str
    residue: tuple[str, ...]
    seconds: float
    clause: str | None = None
    grade: str | None = None
    status: str | None = None
    decided_by: str | None = None

    @property
    def as_expected(self) -> bool:
        """Whether the outcome is one that was expected, or a safer one, with nothing left behind."""
        return (self.outcome in self.expected or self._is_safer) and not self.residue

    @property
    def _is_safer(self) -> bool:
        ranked = [_SAFETY.index(each) for each in self.expected if each in _SAFETY]
        return self.outcome in _SAFETY and bool(ranked) and _SAFETY.index(self.outcome) > max(ranked)


def grade_of(enforcement: Enforcement, clause: str) -> str:
    """Return the grade of `clause`; one that the level does not mention is held by nothing."""
    try:
        return enforcement.grade(clause)
    except KeyError:
        return "none"


def judge(program: Program, evidence: Evidence, strength: str) -> Verdict:
    """Say what the evidence comes to. Harm outweighs everything; no proof either way is `vacuous`."""
    harm = program.harm(evidence)
    if harm is not None:
        if program.resource and strength in OWN_KERNEL and evidence.returned:
            return Verdict("contained", harm)
        return Verdict("escaped", harm)
    refused = program.refused(evidence)
    if refused is not None:
        return Verdict("prevented", refused)
    return Verdict(
        "vacuous", f"nothing shows that it was stopped (status {evidence.status}, {evidence.error or 'no error'})"
    )
