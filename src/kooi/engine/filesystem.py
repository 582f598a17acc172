"""Files of a sandbox. Every operation is done by the guest, inside: no path is ever resolved on the host.

What the guest answers is hostile input: sizes, names and numbers are checked, reads and lists are capped, and a guest
that stops answering loses its box instead of holding the caller.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from types import MappingProxyType
from typing import Any, Literal

from kooi.engine import requests
from kooi.engine.client import Call, GuestGone, GuestViolation
from kooi.engine.openbox import OpenBox

MAX_READ_BYTES = 1 << 30
MAX_ENTRIES = 1_000_000
MAX_LIST_CHARACTERS = 64 << 20
IDLE_SECONDS = 30.0
SLOWEST_BYTES_PER_SECOND = 1_000_000
NO_FIELDS: Mapping[str, object] = MappingProxyType({})

Kind = Literal["file", "dir", "link", "other"]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file inside, as the guest describes it: hostile input.

    `exact` is False for a name that is not UTF-8; its undecodable bytes are shown as `\\xNN`.
    """

    name: str
    path: str
    type: Kind
    size: int
    mode: int
    mtime: float
    target: str | None = None
    exact: bool = True


class Files:
    """The files of one sandbox. Paths are relative to its home; failures are the `OSError` that happened inside."""

    def __init__(self, ready: Callable[[], Awaitable[OpenBox]]) -> None:
        self._ready = ready

    async def read(self, path: str | os.PathLike[str], *, max_bytes: int = MAX_READ_BYTES) -> str:
        """Return a file's text, which must be UTF-8; a file of more than `max_bytes` (1 GiB) is an `OSError`."""
        return (await self.read_bytes(path, max_bytes=max_bytes)).decode()

    async def read_bytes(self, path: str | os.PathLike[str], *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return a file's content; a file of more than `max_bytes` (1 GiB) is an `OSError`."""
        return await _Exchange(await self._ready(), requests.path(path)).read(max_bytes)

    async def write(
        self, path: str | os.PathLike[str], data: str | bytes, *, append: bool = False, mode: int | None = None
    ) -> int:
        """Write a file (text as UTF-8) and return the bytes written; `mode` sets its permission bits."""
        body = requests.content(data)
        return await _Exchange(await self._ready(), requests.path(path)).write(body, append=append, mode=mode)

    async def list(self, path: str | os.PathLike[str] = ".", *, recursive: bool = False) -> tuple[FileEntry, ...]:
        """Return the entries of a folder, in the guest's order; symbolic links are not followed.

        More than 1,000,000 entries, or 64 Mi characters of names and paths, are an `OSError`.
        """
        return await _Exchange(await self._ready(), requests.path(path)).list(recursive)

    async def stat(self, path: str | os.PathLike[str]) -> FileEntry:
        """Return what is at `path`, a symbolic link itself."""
        end = await _Exchange(await self._ready(), requests.path(path)).do("file.stat")
        return FileEntry(**end["entry"])

    async def mkdir(self, path: str | os.PathLike[str], *, parents: bool = False) -> None:
        """Make a folder; with `parents` also those above it, and one that is there already is fine."""
        await _Exchange(await self._ready(), requests.path(path)).do("file.mkdir", {"parents": bool(parents)})

    async def remove(self, path: str | os.PathLike[str], *, recursive: bool = False) -> None:
        """Remove a file or empty folder; with `recursive` a folder and all in it."""
        await _Exchange(await self._ready(), requests.path(path)).do("file.remove", {"recursive": bool(recursive)})


class _Exchange:
    """One operation on one path."""

    def __init__(self, held: OpenBox, path: str) -> None:
        self.held = held
        self.path = path
        self.call: Call
        self.arrived = 0
        self.most = 0
        self.characters = 0
        self.too_much = ""
        self.content = BytesIO()
        self.entries: list[FileEntry] = []

    async def read(self, max_bytes: int) -> bytes:
        self.most = max_bytes
        await self.do("file.read", on_data=self._on_data)
        return self.content.getvalue()

    async def write(self, body: bytes, *, append: bool, mode: int | None) -> int:
        patience = IDLE_SECONDS + len(body) / SLOWEST_BYTES_PER_SECOND
        fields = {"append": bool(append), "mode": mode}
        size: int = (await self.do("file.write", fields, body=body, patience=patience))["size"]
        return size

    async def list(self, recursive: bool) -> tuple[FileEntry, ...]:
        await self.do("file.list", {"recursive": bool(recursive)}, on_event=self._on_entries)
        return tuple(self.entries)

    async def do(
        self,
        op: str,
        fields: Mapping[str, object] = NO_FIELDS,
        *,
        body: bytes = b"",
        patience: float = IDLE_SECONDS,
        on_data: Callable[[bytes], None] | None = None,
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> Mapping[str, Any]:
        """Do one operation and return its END; raise the `OSError` that happened inside."""
        self.held.transfers += 1
        try:
            self.call = self.held.client.open(
                op, {"path": self.path, **fields}, body=body, on_data=on_data, on_event=on_event
            )
            end = await self._answer(patience)
        except (GuestGone, GuestViolation) as error:
            await self.held.end(error.message)
            self.held.check()
            raise
        finally:
            self.held.transfers -= 1
        if self.too_much:
            # The guest says that it was cancelled; why it was is ours to say.
            raise OSError(errno.EFBIG, self.too_much, self.path)
        if "errno" in end:
            raise OSError(end["errno"], end["message"], self.path)
        return end

    async def _answer(self, patience: float) -> Mapping[str, Any]:
        """Wait for END; a guest from which nothing comes for `patience` seconds loses its box."""
        seen = -1
        try:
            while not self.call.done.done():
                if seen == self.arrived:
                    await self.held.end(f"its guest did not answer for {patience:.0f} s")
                    break
                seen = self.arrived
                await asyncio.wait([self.call.done], timeout=patience)
        except asyncio.CancelledError:
            self.call.signal(signal.SIGKILL)
            raise
        return await self.call.done

    def _on_data(self, data: bytes) -> None:
        self.arrived += len(data)
        if self.arrived <= self.most:
            self.content.write(data)
        else:
            self._enough(f"larger than {self.most} bytes")

    def _on_entries(self, event: Mapping[str, Any]) -> None:
        page = event["entries"]
        self.arrived += len(page)
        # Deep paths are long, and every entry has its whole path: ten thousand files can make a gigabyte.
        self.characters += sum(len(each["name"]) + len(each["path"]) + len(each["target"] or "") for each in page)
        if self.arrived <= MAX_ENTRIES and self.characters <= MAX_LIST_CHARACTERS:
            self.entries += [FileEntry(**entry) for entry in page]
        else:
            self._enough(f"more than {MAX_ENTRIES} entries or {MAX_LIST_CHARACTERS} characters")

    def _enough(self, why: str) -> None:
        self.too_much = why
        self.content = BytesIO()
        self.entries.clear()
        self.call.signal(signal.SIGKILL)
