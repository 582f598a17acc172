"""The BPF interpreter: by hand-made programs, and by the kernel itself as the judge."""

from __future__ import annotations

import pytest

from kooi.contract.errors import InvalidRequest
from kooi.linux import bpf, libc, seccomp
from tests.linux.children import in_child

CALL = bpf.data(7, (0x1_2345_6789, 2**64 - 1), bpf.ARCH_X86_64, 0x1122334455667788)


def value_of(*instructions: bpf.Instruction) -> int:
    return bpf.run(bpf.disassemble(bpf.assemble(instructions)), CALL)


def test_every_word_of_the_call_can_be_loaded() -> None:
    words = [value_of((bpf.LOAD_ABSOLUTE, 0, 0, offset), (bpf.RETURN_A, 0, 0, 0)) for offset in range(0, 64, 4)]
    expected = [7, bpf.ARCH_X86_64, 0x55667788, 0x11223344, 0x23456789, 1, 0xFFFFFFFF, 0xFFFFFFFF]
    assert words == expected + [0] * 8


@pytest.mark.parametrize(
    ("opcode", "k", "taken"),
    [
        (bpf.JUMP_EQUAL, 7, True),
        (bpf.JUMP_EQUAL, 8, False),
        (bpf.JUMP_GREATER, 6, True),
        (bpf.JUMP_GREATER, 7, False),
        (bpf.JUMP_GREATER_EQUAL, 7, True),
        (bpf.JUMP_GREATER_EQUAL, 8, False),
        (bpf.JUMP_SET, 2, True),
        (bpf.JUMP_SET, 8, False),
    ],
)
def test_jumps(opcode: int, k: int, taken: bool) -> None:
    program = [(bpf.LOAD_ABSOLUTE, 0, 0, 0), (opcode, 0, 1, k), (bpf.RETURN, 0, 0, 1), (bpf.RETURN, 0, 0, 2)]
    assert value_of(*program) == (1 if taken else 2)


@pytest.mark.parametrize(
    ("opcode", "k", "result"),
    [
        (0x04, 0xFFFFFFFF, 6),
        (0x14, 8, 0xFFFFFFFF),
        (0x24, 3, 21),
        (0x34, 2, 3),
        (0x44, 8, 15),
        (0x54, 5, 5),
        (0x64, 1, 14),
        (0x64, 40, 0),
        (0x74, 1, 3),
        (0x84, 0, 0xFFFFFFF9),
        (0xA4, 1, 6),
    ],
)
def test_arithmetic_is_of_32_bits(opcode: int, k: int, result: int) -> None:
    assert value_of((bpf.LOAD_ABSOLUTE, 0, 0, 0), (opcode, 0, 0, k), (bpf.RETURN_A, 0, 0, 0)) == result


def test_memory_and_the_index_register() -> None:
    program = [
        (bpf.LOAD_ABSOLUTE, 0, 0, 0),
        (bpf.STORE, 0, 0, 3),
        (bpf.LOADX_MEMORY, 0, 0, 3),
        (bpf.LOAD_IMMEDIATE, 0, 0, 5),
        (0x0C, 0, 0, 0),  # A += X
        (bpf.TAX, 0, 0, 0),
        (bpf.STOREX, 0, 0, 15),
        (bpf.LOADX_IMMEDIATE, 0, 0, 1),
        (bpf.TXA, 0, 0, 0),
        (bpf.LOAD_MEMORY, 0, 0, 15),
        (bpf.RETURN_A, 0, 0, 0),
    ]
    assert value_of(*program) == 12


@pytest.mark.parametrize(
    "program",
    [
        [],
        [(bpf.LOAD_ABSOLUTE, 0, 0, 2), (bpf.RETURN, 0, 0, 0)],
        [(bpf.LOAD_ABSOLUTE, 0, 0, 64), (bpf.RETURN, 0, 0, 0)],
        [(bpf.JUMP, 0, 0, 7), (bpf.RETURN, 0, 0, 0)],
        [(bpf.STORE, 0, 0, 16), (bpf.RETURN, 0, 0, 0)],
        [(0xFF, 0, 0, 0)],
        [(0x94, 0, 0, 1)],  # modulo, which seccomp does not take
        [(0x55, 0, 0, 1)],
    ],
)
def test_invalid_programs_are_refused_by_us_and_by_the_kernel(program: list[bpf.Instruction]) -> None:
    with pytest.raises(InvalidRequest):
        bpf.run(program, CALL)

    def install() -> bool:
        libc.syscall(libc.nr("prctl"), 38, 1, 0, 0, 0)
        try:
            seccomp.install(seccomp.Program(bpf.assemble(program), frozenset(), "x86_64"))
        except OSError:
            return False
        return True

    assert in_child(install) is False


def test_a_torn_program_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        bpf.disassemble(bytes(9))


def test_the_kernel_and_the_interpreter_agree_on_a_program_that_computes() -> None:
    """The errno a filter answers to a harmless unused number is arithmetic on an argument, of both, for many values."""
    program = [
        (bpf.LOAD_ABSOLUTE, 0, 0, 0),
        (bpf.JUMP_EQUAL, 1, 0, 999),
        (bpf.RETURN, 0, 0, bpf.ALLOW),
        (bpf.LOAD_ABSOLUTE, 0, 0, 16),
        (0x74, 0, 0, 3),
        (bpf.TAX, 0, 0, 0),
        (bpf.LOAD_ABSOLUTE, 0, 0, 20),
        (0xAC, 0, 0, 0),  # A ^= X
        (bpf.AND, 0, 0, 0x3FF),
        (0x44, 0, 0, bpf.ERRNO),
        (bpf.RETURN_A, 0, 0, 0),
    ]
    values = [3 * 8, 77 << 3, 0x1_0000_0008, 0xFFFF_FFFF_0000_0000, 0x1234_5678_9ABC_DEF0]
    expected = [bpf.run(program, bpf.data(999, (value,))) & 0xFFFF for value in values]

    def ask() -> list[int]:
        libc.syscall(libc.nr("prctl"), 38, 1, 0, 0, 0)
        seccomp.install(seccomp.Program(bpf.assemble(program), frozenset(), "x86_64"))
        return [-libc.try_syscall(999, value) for value in values]

    assert in_child(ask) == expected
