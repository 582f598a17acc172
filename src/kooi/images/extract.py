"""Reads one tar archive into a folder, member by member, and refuses what an honest archive does not have.

Runs inside the helper (`unpack`). Only the parser of the standard library's tarfile is used, none of its
extraction: every folder is opened from the one above it without following a link, every file is made new, and every
name, link and size is checked here first. What a member is called is data; errors name it.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, BinaryIO, cast

from kooi.images.furnish import make_folder, remove

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
MOST_DEPTH = 128
_CHUNK = 1 << 18
_MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}
_TELL_EVERY = 1000


class Refused(Exception):
    """The archive is not what it should be."""


@dataclass
class Budget:
    """What all archives of one image may have together. `ratio` is how many times their own size, beyond `free`."""

    members: int = 500_000
    bytes: int = 32 << 30
    ratio: int = 100
    free: int = 256 << 20
    archive: int | None = None
    tell: Callable[[int], None] = lambda _: None
    seen_members: int = 0
    seen_bytes: int = 0

    def member(self) -> None:
        """Count one member."""
        self.seen_members += 1
        if self.seen_members > self.members:
            raise Refused(f"it has more than {self.members} members")
        if self.seen_members % _TELL_EVERY == 0:
            self.tell(self.seen_members)

    def take(self, size: int) -> None:
        """Count bytes of content before they are there."""
        self.seen_bytes += size
        if self.seen_bytes > self.bytes:
            raise Refused(f"it holds more than {self.bytes} bytes")
        if self.archive is not None and self.seen_bytes > max(self.free, self.archive * self.ratio):
            raise Refused(f"it holds more than {self.ratio} times its own {self.archive} bytes")


def unpack(
    stream: BinaryIO, root: int, budget: Budget, *, layer: bool = False, renamed: Mapping[str, str] | None = None
) -> None:
    """Read the archive on `stream`, compressed or not, into the open folder `root`.

    A `layer` may replace what is there and take it away (whiteouts). `renamed` are first components with what to put
    in their place. Raises `Refused`.
    """
    reader = _Reader(root, budget, layer, renamed or {})
    name = "its first header"
    try:
        with _opened(stream) as tar:
            for member in tar:
                name = member.name
                budget.member()
                reader.add(tar, member)
                tar.members = []  # type: ignore[attr-defined]  # a list of all that went by is of no use here
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise Refused(f"it is damaged at or after {name!r}: {error}")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Refused(f"{name!r}: {error.strerror or error}")
    except _lzma_errors() as error:
        raise Refused(f"it is damaged at or after {name!r}: {error}")


def _lzma_errors() -> tuple[type[Exception], ...]:
    import lzma
    import zlib

    return (lzma.LZMAError, zlib.error)


def _opened(stream: BinaryIO) -> tarfile.TarFile:
    buffered = io.BufferedReader(cast(io.RawIOBase, stream), _CHUNK) if not hasattr(stream, "peek") else stream
    head = buffered.peek(6)[:6]
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
    if kind == "zst":
        try:
            from compression import zstd  # type: ignore[import-not-found]  # Python 3.14
        except ImportError:
            raise Refused("it is compressed with zstd, which this Python cannot read; `zstd -d` it first")
        return tarfile.open(fileobj=zstd.open(buffered), mode="r|", tarinfo=_Member)
    return tarfile.open(fileobj=buffered, mode=f"r|{kind}", tarinfo=_Member)  # type: ignore[call-overload,no-any-return]


class _Member(tarfile.TarInfo):
    """A member whose header must be one: the library takes a damaged or missing header for the archive's end."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _Member:
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise Refused(f"after {tar.offset} bytes comes what is no header of a member: {error}")


class _Reader:
    def __init__(self, root: int, budget: Budget, layer: bool, renamed: Mapping[str, str]) -> None:
        self._root = root
        self._budget = budget
        self._layer = layer
        self._renamed = renamed
        self._seen: dict[tuple[str, ...], str] = {}

    def add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Make what one member stands for."""
        parts = self._parts(member.name, member.name)
        if not parts:
            return
        if self._layer and parts[-1].startswith(WHITEOUT):
            self._whiteout(parts, member)
            return
        self._note(parts, member)
        folder = self._folder(parts[:-1], member)
        try:
            if member.isdir():
                self._make_folder(folder, parts[-1], member)
                return
            self._clear(folder, parts[-1], member)
            if member.isreg() or member.issparse():
                self._make_file(folder, parts[-1], tar, member)
            elif member.issym():
                os.symlink(member.linkname, parts[-1], dir_fd=folder)
            elif member.islnk():
                self._make_hard_link(folder, parts[-1], member)
            else:
                raise Refused(f"{member.name!r} is a device, a pipe or something else that an image does not have")
        finally:
            os.close(folder)

    def _parts(self, name: str, member: str) -> tuple[str, ...]:
        if name.startswith("/"):
            raise Refused(f"{member!r} has an absolute name")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise Refused(f"{member!r} leads out of the archive with '..'")
        if "\0" in name or len(parts) > MOST_DEPTH:
            raise Refused(f"{member!r} is no path that an image has")
        if parts and parts[0] in self._renamed:
            parts[:1] = self._renamed[parts[0]].split("/")
        return tuple(parts)

    def _note(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        kind = "folder" if member.isdir() else "other"
        if self._seen.get(parts, kind) != kind or (parts in self._seen and kind == "other"):
            raise Refused(f"{member.name!r} is there twice")
        self._seen[parts] = kind

    def _folder(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> int:
        try:
            return make_folder(self._root, parts, replace=False)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise Refused(f"{member.name!r} goes through a link or a file as if it were a folder")
            raise

    def _clear(self, folder: int, name: str, member: tarfile.TarInfo) -> None:
        """Make room for what is not a folder: only a layer replaces what is there."""
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not self._layer:
            raise Refused(f"{member.name!r} is there twice")
        remove(folder, [name])

    def _make_folder(self, folder: int, name: str, member: tarfile.TarInfo) -> None:
        try:
            os.mkdir(name, 0o755, dir_fd=folder)
        except FileExistsError:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                return
            self._clear(folder, name, member)
            os.mkdir(name, 0o755, dir_fd=folder)

    def _make_file(self, folder: int, name: str, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        if member.size < 0:
            raise Refused(f"{member.name!r} has a negative size")
        self._budget.take(member.size)
        source = tar.extractfile(member)
        if source is None:
            raise Refused(f"{member.name!r} has no content")
        mode = 0o755 if member.mode & 0o111 else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, mode, dir_fd=folder)
        with open(fd, "wb", buffering=0) as file:
            _copy(source, file, member)

    def _make_hard_link(self, folder: int, name: str, member: tarfile.TarInfo) -> None:
        parts = self._parts(member.linkname, member.name)
        if not parts:
            raise Refused(f"{member.name!r} is a link to nothing")
        source = self._folder(parts[:-1], member)
        try:
            about = os.stat(parts[-1], dir_fd=source, follow_symlinks=False)
            if not stat.S_ISREG(about.st_mode):
                raise Refused(f"{member.name!r} is a hard link to something that is no file")
            self._budget.take(about.st_size)
            os.link(parts[-1], name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            raise Refused(f"{member.name!r} is a hard link to {member.linkname!r}, which is not there before it")
        finally:
            os.close(source)

    def _whiteout(self, parts: tuple[str, ...], member: tarfile.TarInfo) -> None:
        """Take away what an earlier layer has: one name, or all that is in a folder."""
        folder = self._folder(parts[:-1], member)
        try:
            if parts[-1] == OPAQUE:
                for name in os.listdir(folder):
                    if (*parts[:-1], name) not in self._seen and not self._has_below((*parts[:-1], name)):
                        remove(folder, [name])
            else:
                name = parts[-1][len(WHITEOUT) :]
                if name in ("", ".", ".."):
                    raise Refused(f"{member.name!r} takes away what has no name")
                remove(folder, [name])
        finally:
            os.close(folder)

    def _has_below(self, parts: tuple[str, ...]) -> bool:
        return any(seen[: len(parts)] == parts for seen in self._seen)


def _copy(source: IO[bytes], file: io.FileIO | io.RawIOBase, member: tarfile.TarInfo) -> None:
    left = member.size
    while left:
        chunk = source.read(min(_CHUNK, left))
        if not chunk:
            raise Refused(f"{member.name!r} is cut off")
        left -= len(chunk)
        view = memoryview(chunk)
        while view:
            written = file.write(view)
            view = view[written or 0 :]
