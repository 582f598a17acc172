"""The test guest's root: an initial RAM disk (cpio, "newc") with a Python and what a test asks for."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

SKIPPED = {
    "test",
    "tests",
    "idlelib",
    "ensurepip",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "dist-packages",
    "site-packages",
}
VERSION_CONTROL = frozenset({".git", ".mypy_cache", ".ruff_cache"})


class Cpio:
    """Writes a cpio archive. Everything belongs to root; parents are made as needed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._count = 0
        self._names: set[str] = set()

    def folder(self, name: str, mode: int = 0o755) -> None:
        name = name.strip("/")
        if name and name not in self._names:
            self.folder(os.path.dirname(name))
            self._entry(name, stat.S_IFDIR | mode, b"", 0)

    def data(self, name: str, data: bytes, mode: int = 0o644, mtime: int = 0) -> None:
        name = name.strip("/")
        if name not in self._names:
            self.folder(os.path.dirname(name))
            self._entry(name, stat.S_IFREG | mode, data, mtime)

    def link(self, name: str, target: str) -> None:
        name = name.strip("/")
        if name not in self._names:
            self.folder(os.path.dirname(name))
            self._entry(name, stat.S_IFLNK | 0o777, target.encode(), 0)

    def node(self, name: str, major: int, minor: int) -> None:
        self.folder(os.path.dirname(name.strip("/")))
        self._entry(name.strip("/"), stat.S_IFCHR | 0o600, b"", 0, (major, minor))

    def copy(self, source: Path, name: str) -> None:
        """Copy the file `source`, its contents if it is a link. The time is kept: compiled modules check it."""
        info = source.stat()
        self.data(name, source.read_bytes(), stat.S_IMODE(info.st_mode) & 0o755, int(info.st_mtime))

    def tree(self, source: Path, name: str, links: bool = False) -> None:
        """Copy the files below `source` except version control; with `links` symbolic links stay links."""
        for path in _walk(source, links=links):
            inside = f"{name}/{path.relative_to(source)}"
            if links and path.is_symlink():
                self.link(inside, os.readlink(path))
            else:
                self.copy(path, inside)

    def close(self) -> None:
        self._entry("TRAILER!!!", 0, b"", 0)

    def _entry(self, name: str, mode: int, data: bytes, mtime: int, device: tuple[int, int] = (0, 0)) -> None:
        self._names.add(name)
        self._count += 1
        raw = name.encode("utf-8", "surrogateescape") + b"\0"
        head = [self._count, mode, 0, 0, 1, mtime, len(data), 0, 0, *device, len(raw), 0]
        self._file.write(b"070701" + b"".join(b"%08x" % value for value in head))
        self._file.write(raw + bytes(-(110 + len(raw)) % 4) + data + bytes(-len(data) % 4))


def _walk(source: Path, skipped: frozenset[str] = VERSION_CONTROL, links: bool = False) -> Iterator[Path]:
    for folder, folders, files in os.walk(source):
        linked = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(name for name in folders if name not in skipped and name not in linked)
        for name in sorted(files + linked):
            path = Path(folder, name)
            if path.is_file() or (links and path.is_symlink()):
                yield path


def add_python(cpio: Cpio, python: Path) -> None:
    """Add the interpreter `python`, its standard library and the shared libraries they need, at the same paths."""
    ask = "import sysconfig,sys; print(sysconfig.get_path('stdlib')); print(sys.base_prefix); print(sys.version[:4])"
    said = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=True).stdout.split("\n")
    stdlib = Path(said[0])
    real = python.resolve()
    cpio.copy(real, str(real))
    for alias in {str(python), "/usr/bin/python3"} - {str(real)}:
        cpio.link(alias, str(real))
    binaries = [real]
    for path in _walk(stdlib, frozenset(SKIPPED)):
        if not re.search(r"/config-3\.\d+", str(path)):
            cpio.copy(path, str(path))
            if path.suffix == ".so":
                binaries.append(path)
    for library in libraries(binaries):
        cpio.copy(library, str(library))


def libraries(binaries: list[Path]) -> list[Path]:
    """Return the shared libraries that `binaries` are linked to, the dynamic loader among them."""
    if not binaries:
        return []
    said = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    return sorted({Path(path) for path in re.findall(r"(/\S+)(?= \(0x)", said)})


def add_system(cpio: Cpio) -> None:
    """Add the folders, nodes and files that a program expects of a Linux system."""
    for name in ("proc", "sys", "dev", "run", "etc", "root", "mnt", "var/tmp", "home/user"):
        cpio.folder(name)
    cpio.folder("tmp", 0o1777)
    cpio.node("dev/console", 5, 1)
    cpio.node("dev/null", 1, 3)
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            cpio.folder(f"usr/{name}")
            cpio.link(name, f"usr/{name}")
    cpio.data("etc/passwd", b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"
                            b"messagebus:x:100:102::/:/bin/false\n"
                            b"nobody:x:65534:65534::/:/bin/false\n")  # fmt: skip
    cpio.data("etc/group", b"root:x:0:\ntty:x:5:\nuser:x:1000:\nmessagebus:x:102:\nnogroup:x:65534:\n")
