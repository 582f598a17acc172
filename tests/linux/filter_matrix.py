"""The golden matrix of the seccomp filter: its answer to every number, on every ABI, at selected arguments.

`python -m tests.linux.filter_matrix` writes it anew from the filter as compiled. It refuses when the filter would allow
anything that it refused before, unless `--grow` says that this is meant.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kooi.linux import bpf, seccomp
from kooi.linux.seccomp_numbers import numbers
from kooi.linux.seccomp_policy import Policy, policy

GOLDEN = Path(__file__).parent / "golden" / "seccomp.json"
NUMBERS = range(601)
SETS = ((), ("memfd",), ("inet",), ("unix",), ("strangers",), ("inet", "memfd", "strangers", "unix"))

Matrix = dict[str, Any]
Call = tuple[int, tuple[int, ...]]


def answer(instructions: Sequence[bpf.Instruction], number: int, arguments: Sequence[int], arch: int) -> int:
    """Return 0 when the call is allowed, else the errno."""
    value = bpf.run(instructions, bpf.data(number, arguments, arch))
    if value == bpf.ALLOW:
        return 0
    assert value & 0xFFFF0000 == bpf.ERRNO and value & 0xFFFF, hex(value)
    return value & 0xFFFF


def selected_arguments(rules: Policy, name: str) -> Iterator[tuple[int, ...]]:
    """Yield argument vectors around every value that a rule of `name` looks at, in all combinations.

    Neighbours of a value and its 64-bit twins come alone or on top of the looked-at values themselves.
    """
    exact: dict[int, set[int]] = {}
    near: dict[int, set[int]] = {}
    for test in (test for line in rules[name] for test in line.tests):
        exact.setdefault(test.argument, {0}).update(test.values)
        around = near.setdefault(test.argument, {1 << 32})
        for value in test.values:
            around.update({value + 1, max(value - 1, 0), value | 1 << 32, value | 0xFFFFFFFF << 32})
        if test.mask > 0xF:
            around.update(1 << bit for bit in range(33))
    vectors: set[tuple[int, ...]] = {(0, 0, 0, 0, 0, 0)}
    for argument, values in exact.items():
        vectors |= {_with(vector, argument, value) for vector in vectors for value in values}
    base = {min((v for v in vectors if v[a] == x), key=sum) for a, values in exact.items() for x in values}
    for argument, values in near.items():
        vectors |= {_with(vector, argument, value) for vector in base for value in values}
    yield from sorted(vectors)


def _with(vector: tuple[int, ...], argument: int, value: int) -> tuple[int, ...]:
    return (*vector[:argument], value, *vector[argument + 1 :])


def compute(restrictions: tuple[str, ...], machine: str = "x86_64") -> Matrix:
    """Return the matrix of one filter: per ABI runs of equal answers, and per filtered call its answers by arguments.

    Of a filter with restrictions only the calls are kept that have other rules than without.
    """
    filter_ = seccomp.compile_program(frozenset(restrictions), machine)
    instructions = bpf.disassemble(filter_.code)
    abis = {
        "x86-64": (bpf.ARCH_X86_64, 0),
        "i386": (bpf.ARCH_I386, 0),
        "x32": (bpf.ARCH_X86_64, bpf.X32_BIT),
        "aarch64": (bpf.ARCH_AARCH64, 0),
    }
    matrix: Matrix = {"instructions": filter_.length}
    for abi, (arch, bit) in abis.items():
        matrix[abi] = _runs([answer(instructions, number | bit, (), arch) for number in NUMBERS])
    rules = policy(frozenset(restrictions), machine)
    usual = policy() if restrictions else {}
    known = numbers(machine)
    arch = abis["x86-64" if machine == "x86_64" else "aarch64"][0]
    matrix["arguments"] = {
        name: _by_answer(instructions, known[name], list(selected_arguments(rules, name)), arch)
        for name in sorted(rules)
        if name in known and rules[name][0].tests and rules[name] != usual.get(name)
    }
    return matrix


def _runs(answers: list[int]) -> list[list[int]]:
    """Return [first number, answer] wherever the answer changes."""
    return [[number, code] for number, code in enumerate(answers) if number == 0 or answers[number - 1] != code]


def _by_answer(
    instructions: Sequence[bpf.Instruction], number: int, vectors: list[tuple[int, ...]], arch: int
) -> dict[str, str]:
    """Return answer -> its argument vectors, each as hexadecimal words without trailing zeros."""
    found: dict[str, list[str]] = {}
    for vector in vectors:
        code = answer(instructions, number, vector, arch)
        text = ",".join(f"{value:x}" for value in vector)
        while text.endswith(",0"):
            text = text[:-2]
        found.setdefault(str(code), []).append(text)
    return {code: " ".join(texts) for code, texts in sorted(found.items())}


def allowed(matrix: Matrix) -> set[str]:
    """Return everything a matrix allows, as comparable text."""
    found = set()
    for abi in ("x86-64", "i386", "x32", "aarch64"):
        runs = matrix[abi]
        for (first, code), following in zip(runs, [*(run[0] for run in runs[1:]), NUMBERS.stop], strict=True):
            found |= {f"{abi} {number}" for number in range(first, following) if code == 0}
    for name, answers in matrix["arguments"].items():
        found |= {f"{name}({vector})" for vector in answers.get("0", "").split()}
    return found


def compute_all() -> Matrix:
    """Return the matrices of all filters by their restrictions, and of the aarch64 one."""
    found = {" ".join(restrictions) or "all": compute(restrictions) for restrictions in SETS}
    found["aarch64 all"] = compute((), "aarch64")
    return found


def growth(old: Matrix, new: Matrix) -> list[str]:
    """Return what `new` allows and `old` did not."""
    return sorted(f"{name}: {item}" for name in new for item in allowed(new[name]) - allowed(old[name]))


def main() -> int:
    """Write the golden file; 1 when the filter grew and nobody said so."""
    new = compute_all()
    grown = growth(json.loads(GOLDEN.read_text()), new) if GOLDEN.exists() else []
    if grown and "--grow" not in sys.argv:
        print("the filter would allow more than before; if that is meant, pass --grow:", *grown, sep="\n  ")
        return 1
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(new, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
