"""Classic BPF as seccomp uses it: opcodes, and an interpreter that says what a filter answers to one call.

The interpreter lets a filter be checked without installing it: every number, every ABI, any arguments. It follows the
kernel: 32-bit registers, forward jumps only, loads only of whole words of the 64 bytes of `seccomp_data`.
"""

from __future__ import annotations

import struct
from typing import Callable, Dict, List, Sequence, Tuple

from kooi.contract.errors import InvalidRequest

LOAD_ABSOLUTE, LOAD_IMMEDIATE, LOAD_MEMORY = 0x20, 0x00, 0x60
LOADX_IMMEDIATE, LOADX_MEMORY, STORE, STOREX = 0x01, 0x61, 0x02, 0x03
JUMP, JUMP_EQUAL, JUMP_GREATER, JUMP_GREATER_EQUAL, JUMP_SET = 0x05, 0x15, 0x25, 0x35, 0x45
AND, RETURN, RETURN_A, TAX, TXA, NEGATE = 0x54, 0x06, 0x16, 0x07, 0x87, 0x84

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
ARCH_X86_64, ARCH_I386, ARCH_AARCH64 = 0xC000003E, 0x40000003, 0xC00000B7
X32_BIT = 0x40000000

OFFSET_NUMBER, OFFSET_ARCH, OFFSET_ARGUMENTS = 0, 4, 16
_WORD = 0xFFFFFFFF

Instruction = Tuple[int, int, int, int]  # opcode, jump if true, jump if false, constant


def assemble(instructions: Sequence[Instruction]) -> bytes:
    """Return the `struct sock_filter` array of a program."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def disassemble(code: bytes) -> List[Instruction]:
    """Return the instructions of a `struct sock_filter` array. Raises `InvalidRequest` for a torn one."""
    if len(code) % 8:
        raise InvalidRequest(f"a BPF program is a multiple of 8 bytes, not {len(code)}")
    return list(struct.iter_unpack("=HBBI", code))


def data(number: int, arguments: Sequence[int] = (), arch: int = ARCH_X86_64, pointer: int = 0) -> bytes:
    """Return the `struct seccomp_data` of one call; missing arguments are 0."""
    full = [value & (2**64 - 1) for value in arguments] + [0] * (6 - len(arguments))
    return struct.pack("=IIQ6Q", number & _WORD, arch, pointer, *full)


def run(program: Sequence[Instruction], seccomp_data: bytes) -> int:
    """Return the value the program returns for `seccomp_data`. Raises `InvalidRequest` for an invalid program."""
    words = struct.unpack("=16I", seccomp_data)
    a = x = 0
    memory = [0] * 16
    counter = 0
    while counter < len(program):
        opcode, yes, no, k = program[counter]
        counter += 1
        if opcode == LOAD_ABSOLUTE:
            if k % 4 or k >= 64:
                raise InvalidRequest(f"a load from offset {k} is outside the call's data")
            a = words[k // 4]
        elif opcode in (RETURN, RETURN_A):
            return k if opcode == RETURN else a
        elif opcode == JUMP:
            counter += k
        elif opcode & 0x07 == 0x05:
            counter += yes if _jumps(opcode, a, x, k) else no
        elif opcode & 0x07 == 0x04:
            a = _arithmetic(opcode, a, x, k)
        else:
            a, x = _move(opcode, a, x, k, memory)
    raise InvalidRequest("the program ends without an answer")


def _jumps(opcode: int, a: int, x: int, k: int) -> bool:
    operand = x if opcode & 0x08 else k
    tests: Dict[int, bool] = {0x10: a == operand, 0x20: a > operand, 0x30: a >= operand, 0x40: bool(a & operand)}
    if opcode & 0xF0 not in tests:
        raise InvalidRequest(f"unknown jump {opcode:#x}")
    return tests[opcode & 0xF0]


_ARITHMETIC: Dict[int, Callable[[int, int], int]] = {
    0x00: lambda a, b: a + b,
    0x10: lambda a, b: a - b,
    0x20: lambda a, b: a * b,
    0x30: lambda a, b: a // b if b else 0,
    0x40: lambda a, b: a | b,
    0x50: lambda a, b: a & b,
    0x60: lambda a, b: a << b if b < 32 else 0,
    0x70: lambda a, b: a >> b if b < 32 else 0,
    0x80: lambda a, b: -a,
    0xA0: lambda a, b: a ^ b,
}


def _arithmetic(opcode: int, a: int, x: int, k: int) -> int:
    function = _ARITHMETIC.get(opcode & 0xF0)
    if function is None:
        raise InvalidRequest(f"unknown arithmetic {opcode:#x}")
    return function(a, x if opcode & 0x08 else k) & _WORD


def _move(opcode: int, a: int, x: int, k: int, memory: List[int]) -> Tuple[int, int]:
    if opcode in (LOAD_MEMORY, LOADX_MEMORY, STORE, STOREX) and k >= len(memory):
        raise InvalidRequest(f"memory word {k} does not exist")
    if opcode == LOAD_IMMEDIATE:
        return k, x
    if opcode == LOADX_IMMEDIATE:
        return a, k
    if opcode == LOAD_MEMORY:
        return memory[k], x
    if opcode == LOADX_MEMORY:
        return a, memory[k]
    if opcode in (STORE, STOREX):
        memory[k] = a if opcode == STORE else x
        return a, x
    if opcode in (TAX, TXA):
        return (a, a) if opcode == TAX else (x, x)
    raise InvalidRequest(f"unknown opcode {opcode:#x}")
