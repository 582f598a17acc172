"""Which libraries a program needs, read from its file: nothing is executed, as ldd(1) would.

Only what the loader itself goes by: the interpreter, the names needed, and the run path, for files of this machine.
"""

from __future__ import annotations

import glob
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LOAD, _DYNAMIC, _INTERP = 1, 2, 3
_NEEDED, _STRTAB, _STRSZ, _RPATH, _RUNPATH = 1, 5, 10, 15, 29
_MOST_BYTES = 1 << 20  # of one table
_CONFIG_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Elf:
    """What the loader reads of a file. `machine` is class and machine number, as two numbers."""

    machine: tuple[int, int]
    interpreter: str
    needed: tuple[str, ...]
    run_path: tuple[str, ...]


def read(path: str | Path) -> Elf | None:
    """Return what a file needs; None for one that is no 64-bit little-endian ELF file, or a damaged one."""
    try:
        with open(path, "rb") as file:
            return _Reader(file.fileno()).elf()
    except (OSError, struct.error, ValueError):
        return None


class _Reader:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        head = self._at(0, 64)
        if head[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not an ELF file of this kind")
        self._machine = (head[4], struct.unpack_from("<H", head, 18)[0])
        start, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        table = self._at(start, size * count)
        self._headers = [struct.unpack_from("<IIQQQQ", table, size * number) for number in range(count)]

    def elf(self) -> Elf:
        interpreter = "".join(self._text(row) for row in self._headers if row[0] == _INTERP)
        tags = [pair for row in self._headers if row[0] == _DYNAMIC for pair in self._tags(row[2], row[5])]
        values = dict(tags)
        if _STRTAB not in values:
            return Elf(self._machine, interpreter, (), ())
        strings = self._at(self._offset(values[_STRTAB]), values.get(_STRSZ, 0))
        needed = tuple(_string(strings, value) for tag, value in tags if tag == _NEEDED)
        paths = [_string(strings, value) for tag, value in tags if tag in (_RPATH, _RUNPATH)]
        return Elf(
            self._machine, interpreter, needed, tuple(part for each in paths for part in each.split(":") if part)
        )

    def _tags(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        for tag, value in struct.iter_unpack("<qQ", self._at(offset, size - size % 16)):
            if tag == 0:
                return
            yield tag, value

    def _offset(self, address: int) -> int:
        for kind, _, offset, virtual, _, size in self._headers:
            if kind == _LOAD and virtual <= address < virtual + size:
                return int(offset + address - virtual)
        raise ValueError("an address outside the file")

    def _text(self, row: tuple[int, ...]) -> str:
        return os.fsdecode(self._at(row[2], row[5]).rstrip(b"\0"))

    def _at(self, offset: int, size: int) -> bytes:
        if not 0 <= size <= _MOST_BYTES:
            raise ValueError("a table too large to be one")
        return os.pread(self._fd, size, offset)


def _string(table: bytes, start: int) -> str:
    return os.fsdecode(table[start : table.index(b"\0", start)])


class Libraries:
    """Finds libraries on this host where its loader would."""

    def __init__(self, extra: tuple[str, ...] = ()) -> None:
        own = read(os.path.realpath(sys.executable))
        self._machine = own.machine if own is not None else (2, 62)
        self._folders = list(dict.fromkeys([*extra, *_configured("/etc/ld.so.conf"), *_usual()]))

    def find(self, name: str, asked: Elf, origin: str) -> str | None:
        """Return the file of the library `name` that a file in the folder `origin` asks for."""
        own = [path.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", origin) for path in asked.run_path]
        for folder in [*own, *self._folders]:
            path = f"{folder}/{name}"
            found = read(path) if os.path.isfile(path) else None
            if found is not None and found.machine == self._machine:
                return path
        return None

    def closure(self, path: str) -> tuple[dict[str, str], set[str], set[str]]:
        """Return every library that a file needs in the end (name: file), interpreters, and names not found."""
        found: dict[str, str] = {}
        interpreters: set[str] = set()
        missing: set[str] = set()
        todo = [path]
        while todo:
            here = todo.pop()
            elf = read(here)
            if elf is None or elf.machine != self._machine:
                continue
            interpreters |= {elf.interpreter} - {""}
            for name in elf.needed:
                if name in found or name in missing:
                    continue
                place = self.find(name, elf, os.path.dirname(os.path.realpath(here)))
                if place is None:
                    missing.add(name)
                else:
                    found[name] = place
                    todo.append(place)
        return found, interpreters, missing


def _usual() -> list[str]:
    triplet = f"{os.uname().machine}-linux-gnu"
    names = (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
    return [name for name in names if os.path.isdir(name)]


def _configured(path: str, depth: int = 0) -> list[str]:
    """Return the folders that ld.so.conf names, with what it includes."""
    found: list[str] = []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.partition("#")[0].split() for line in file]
    except OSError:
        return []
    for words in lines:
        if words[:1] == ["include"] and depth < _CONFIG_DEPTH:
            for pattern in words[1:]:
                for each in sorted(glob.glob(os.path.join("/etc", pattern))):
                    found += _configured(each, depth + 1)
        elif words and words[0].startswith("/"):
            found.append(words[0])
    return found
