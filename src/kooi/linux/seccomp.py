"""The seccomp filter: compiled by ourselves from `seccomp_policy`, installed in one call.

Theory of operation: the program checks the ABI first, then finds the call's number in a balanced tree of ranges, then
tests its arguments line by line. x32 calls have numbers above every range, so they meet the default like every unknown
one: ENOSYS. The code is built backwards, because jumps only go forward: whatever a jump aims at is already
there, and an answer close enough is shared. Compiling is cached; `install` is one kernel call on ready bytes.
"""

from __future__ import annotations

import errno
import functools
import os
from typing import Dict, FrozenSet, List, NamedTuple, Tuple, Union

from kooi.linux import bpf
from kooi.linux.seccomp_bind import bind
from kooi.linux.seccomp_numbers import numbers
from kooi.linux.seccomp_policy import AGENT_MORE, Line, Policy, Test, policy, zygote_policy

_ARCHES = {"x86_64": bpf.ARCH_X86_64, "aarch64": bpf.ARCH_AARCH64}
_REACH = 250  # a jump spans 255; two more instructions may come between a look and the jump


class Program(NamedTuple):
    """A compiled filter: the bytes the kernel takes, and what it was compiled from."""

    code: bytes
    restrictions: FrozenSet[str]
    machine: str

    @property
    def length(self) -> int:
        """Return the number of instructions."""
        return len(self.code) // 8


class _Answer(NamedTuple):
    value: int  # 0 allows, else an errno


class _Rule(NamedTuple):
    lines: Tuple[Line, ...]


_Target = Union[int, _Answer, _Rule]  # an instruction that is already there, or what to make
_Range = Tuple[int, _Target]  # the first value, and where it and those after it go


def program(*restrictions: str) -> Program:
    """Return this machine's filter, less what the restrictions take away ("memfd", "inet", "unix", "strangers")."""
    return compile_program(frozenset(restrictions), os.uname().machine)


@functools.lru_cache(maxsize=None)
def compile_program(restrictions: FrozenSet[str], machine: str) -> Program:
    """Return the filter for `machine`. Raises `InvalidRequest` or `Unsupported` for an unknown name."""
    ranges = _ranges(policy(restrictions, machine), numbers(machine), errno.ENOSYS)
    return Program(_compile(ranges, machine), restrictions, machine)


@functools.lru_cache(maxsize=None)
def agent_program(*restrictions: str) -> Program:
    """Return this machine's filter for an agent that confines its children further than itself."""
    machine = os.uname().machine
    rules = {**policy(frozenset(restrictions), machine), **AGENT_MORE}
    return Program(_compile(_ranges(rules, numbers(machine), errno.ENOSYS), machine), frozenset(restrictions), machine)


def zygote_program(machine: str = "", in_cell: bool = True) -> Program:
    """Return the filter of a zygote for `machine` (default: this one): it allows what it does not know, but no x32.

    `in_cell`: it makes boxes of namespaces, in some of its own; else it makes none.
    """
    machine = machine or os.uname().machine
    ranges = _ranges(zygote_policy(in_cell), numbers(machine), 0)
    return Program(_compile([*ranges, (bpf.X32_BIT, _Answer(errno.ENOSYS))], machine), frozenset(), machine)


def _compile(ranges: List[_Range], machine: str) -> bytes:
    assembler = _Assembler()
    assembler.lead_to(assembler.tree(ranges))
    assembler.emit(bpf.LOAD_ABSOLUTE, bpf.OFFSET_NUMBER)
    assembler.jump(bpf.JUMP_EQUAL, _ARCHES[machine], assembler.newest, _Answer(errno.ENOSYS))
    assembler.emit(bpf.LOAD_ABSOLUTE, bpf.OFFSET_ARCH)
    return bpf.assemble(assembler.code[::-1])


def install(filter_: Program) -> None:
    """Bind the calling thread and all it starts, for ever. Raises `SetupFailed` without no_new_privs, `OSError`."""
    bind(filter_.code)


def _ranges(rules: Policy, known: Dict[str, int], otherwise: int) -> List[_Range]:
    """Return the number line cut into ranges of equal treatment; what has no rule gets the answer `otherwise`."""
    default = _Answer(otherwise)
    by_number = {known[name]: _target(lines) for name, lines in rules.items() if name in known}
    ranges: List[_Range] = []
    for number in range(max(by_number) + 2):
        target = by_number.get(number, default)
        if not ranges or ranges[-1][1] != target:
            ranges.append((number, target))
    return ranges


def _target(lines: Tuple[Line, ...]) -> _Target:
    first = lines[0]
    return _Rule(lines) if first.tests else _Answer(first.answer)


class _Assembler:
    """Builds a program backwards. A label is an instruction's distance from the program's end."""

    def __init__(self) -> None:
        self.code: List[bpf.Instruction] = []
        self._answers: Dict[int, int] = {}

    @property
    def newest(self) -> int:
        """Return the label of the instruction made last, which is the one to run first."""
        return len(self.code) - 1

    def emit(self, opcode: int, k: int, yes: int = 0, no: int = 0) -> int:
        """Put one instruction before all others and return its label."""
        self.code.append((opcode, yes, no, k))
        return self.newest

    def jump(self, opcode: int, k: int, yes: _Target, no: _Target) -> int:
        """Put a conditional jump before all others and return its label."""
        yes_label = self.reach(yes)
        no_label = self.reach(no)
        place = len(self.code)
        return self.emit(opcode, k, place - yes_label - 1, place - no_label - 1)

    def reach(self, target: _Target) -> int:
        """Return a label close enough to jump to that leads to `target`, making what is missing."""
        if isinstance(target, _Rule):
            return self.rule(target.lines)
        if isinstance(target, _Answer):
            return self._answer(target.value)
        if len(self.code) - target > _REACH:
            return self.emit(bpf.JUMP, len(self.code) - target - 1)
        return target

    def lead_to(self, label: int) -> None:
        """See to it that what is put before all others next runs on into `label`."""
        if label != self.newest:
            self.emit(bpf.JUMP, len(self.code) - label - 1)

    def _answer(self, value: int) -> int:
        label = self._answers.get(value)
        if label is None or len(self.code) - label > _REACH:
            label = self.emit(bpf.RETURN, bpf.ERRNO | value if value else bpf.ALLOW)
            self._answers[value] = label
        return label

    def tree(self, ranges: List[_Range]) -> int:
        """Make the search for A among `ranges` and return its label."""
        if len(ranges) == 1:
            return self.reach(ranges[0][1])
        if len(ranges) == 3 and ranges[0][1] == ranges[2][1] and ranges[2][0] == ranges[1][0] + 1:
            return self.jump(bpf.JUMP_EQUAL, ranges[1][0], ranges[1][1], ranges[0][1])
        middle = len(ranges) // 2
        right = self.tree(ranges[middle:])
        left = self.tree(ranges[:middle])
        return self.jump(bpf.JUMP_GREATER_EQUAL, ranges[middle][0], right, left)

    def rule(self, lines: Tuple[Line, ...]) -> int:
        """Make the lines of one call and return the label of the first. Where no line holds, ENOSYS."""
        following: _Target = _Answer(errno.ENOSYS)
        for line in reversed(lines):
            target: _Target = _Answer(line.answer)
            for test in reversed(line.tests):
                target = self.test(test, target, following)
            following = target
        return self.reach(following)

    def test(self, test: Test, yes: _Target, no: _Target) -> int:
        """Make one test of an argument and return its label."""
        if test.negated:
            yes, no = no, yes
        offset = bpf.OFFSET_ARGUMENTS + 8 * test.argument
        self.lead_to(self.tree(_member(test.values, yes, no)))
        if test.mask != 0xFFFFFFFF:
            self.emit(bpf.AND, test.mask)
        label = self.emit(bpf.LOAD_ABSOLUTE, offset)
        if test.wide:
            label = self.jump(bpf.JUMP_EQUAL, 0, label, no)
            label = self.emit(bpf.LOAD_ABSOLUTE, offset + 4)
        return label


def _member(values: FrozenSet[int], yes: _Target, no: _Target) -> List[_Range]:
    """Return the number line cut where membership in `values` changes."""
    ranges: List[_Range] = [] if 0 in values else [(0, no)]
    for value in sorted(values):
        if not ranges or ranges[-1][0] != value:
            ranges.append((value, yes))
        else:
            ranges[-1] = (value, yes)
        ranges.append((value + 1, no))
    merged: List[_Range] = []
    for first, target in ranges:
        if not merged or merged[-1][1] != target:
            merged.append((first, target))
    return merged
