"""What a tree is to us: its canonical manifest, and the digest of that.

A manifest has one JSON line an entry, in the order of their paths as bytes: kind, path, and for a file whether it can
be executed, its size and its SHA-256, for a link its target. Times, owners, hard links and all other mode bits are no
part of it: in the store every folder is 0755 and every file 0644 or 0755.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kooi.contract.errors import InvalidRequest, SetupFailed

_FORMAT = b"kooi-image 1\n"
_CHUNK = 1 << 20
Tell = Callable[[int], None]  # so many more entries are done


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree, relative to its root. `kind` is d, f or l."""

    path: str
    kind: str
    executable: bool = False
    size: int = 0
    sha256: str = ""
    target: str = ""

    def line(self) -> bytes:
        """Return the manifest's line."""
        tails: dict[str, list[object]] = {"f": [self.executable, self.size, self.sha256], "l": [self.target]}
        tail = tails.get(self.kind, [])
        return json.dumps([self.kind, self.path, *tail], separators=(",", ":")).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Entry:
        """Return the entry of a manifest's line."""
        kind, path, *tail = json.loads(line)
        if kind == "f":
            return cls(path, kind, *tail)
        return cls(path, kind, target=tail[0] if tail else "")


def digest_of(entries: Iterable[Entry]) -> str:
    """Return the SHA-256 (hex) that names a tree with these entries, which must be in order."""
    found = hashlib.sha256(_FORMAT)
    for entry in entries:
        found.update(entry.line())
    return found.hexdigest()


def write_manifest(entries: Iterable[Entry]) -> bytes:
    """Return a manifest's bytes."""
    return b"".join(entry.line() for entry in entries)


def read_manifest(data: bytes) -> list[Entry]:
    """Return the entries of a manifest; raise `SetupFailed` for one that is none."""
    try:
        return [Entry.parse(line) for line in data.splitlines()]
    except (ValueError, TypeError, IndexError) as error:
        raise SetupFailed(f"the manifest of an image cannot be read: {error}", key="image")


def walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every path below `root` and what it is, folders before what is in them; no link is followed."""
    todo = [""]
    while todo:
        folder = todo.pop()
        with os.scandir(root / folder) as found:
            for each in found:
                path = f"{folder}/{each.name}" if folder else each.name
                about = each.stat(follow_symlinks=False)
                yield path, about
                if stat.S_ISDIR(about.st_mode):
                    todo.append(path)


def scan(root: Path, tell: Tell = lambda _: None, *, settle: bool = False) -> list[Entry]:
    """Return the entries of a tree, in order; with `settle` every mode becomes what the store keeps.

    Raises `InvalidRequest` for what is no file, folder or link.
    """
    found = []
    for path, about in walk(root):
        found.append(_entry(root / path, path, about))
        if settle and found[-1].kind != "l":
            wanted = 0o755 if found[-1].kind == "d" or found[-1].executable else 0o644
            if stat.S_IMODE(about.st_mode) != wanted:
                os.chmod(root / path, wanted)
        tell(1)
    return sorted(found, key=lambda entry: os.fsencode(entry.path))


def _entry(place: Path, path: str, about: os.stat_result) -> Entry:
    if stat.S_ISDIR(about.st_mode):
        return Entry(path, "d")
    if stat.S_ISLNK(about.st_mode):
        return Entry(path, "l", target=os.readlink(place))
    if stat.S_ISREG(about.st_mode):
        return Entry(path, "f", bool(about.st_mode & 0o111), about.st_size, _hash(place))
    raise InvalidRequest(f"/{path}: an image has files, folders and links, and this is none of them", key="image")


def _hash(place: Path) -> str:
    found = hashlib.sha256()
    fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def difference(known: Iterable[Entry], found: Iterable[Entry]) -> str | None:
    """Return the first path at which two lists of entries differ, and how; None if they are equal."""
    before = {entry.path: entry for entry in known}
    after = {entry.path: entry for entry in found}
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            return f"/{path} is missing"
        if path not in before:
            return f"/{path} was not there"
        if before[path] != after[path]:
            return f"/{path} is not what it was"
    return None


def resolve(root: Path, path: str) -> str | None:
    """Return where `path`, absolute inside the tree, leads with every link followed inside; None where nothing is."""
    todo, done = [part for part in path.split("/") if part][::-1], list[str]()
    links = 0
    while todo:
        part = todo.pop()
        if part in (".", ""):
            continue
        if part == "..":
            del done[-1:]
            continue
        here = root.joinpath(*done, part)
        try:
            about = here.lstat()
        except OSError:
            return None
        if stat.S_ISLNK(about.st_mode):
            links += 1
            if links > 40:
                return None
            target = os.readlink(here)
            done = [] if target.startswith("/") else done
            todo += target.split("/")[::-1]
        else:
            done.append(part)
    return "/" + "/".join(done)
