"""What a run came to: its status, its output, what it used, and what held it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Status = Literal[
    "ok", "error", "signal", "timeout", "cpu_limit", "oom", "pids_limit", "disk_limit",
    "output_limit", "denied", "killed", "lost", "sandbox_error",
]  # fmt: skip
STATUSES: tuple[str, ...] = get_args(Status)

Grade = Literal["kernel", "polled", "per_process", "remote", "none"]
GRADES: tuple[str, ...] = get_args(Grade)
Strength = Literal["none", "kernel-shared", "emulated", "kernel-own", "machine", "remote"]
DecidedBy = Literal["host", "agent", "code"]

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of policy or limits: what holds it at this level and how well.

    `name` is a field of `Limits`, or one of: host_files, host_metadata, network, environment, processes_hidden, kill,
    landlock.
    `overshoot` says by how much a `polled` clause may be exceeded, in words and units.
    """

    name: str
    mechanism: str
    grade: Grade
    overshoot: str | None = None


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What holds a spec at a level on this host."""

    level: str
    strength: Strength
    clauses: tuple[Clause, ...]
    waivers: tuple[str, ...] = ()

    def grade(self, name: str) -> Grade:
        """Return the grade of clause `name`; raise `KeyError` for an unknown one."""
        for clause in self.clauses:
            if clause.name == name:
                return clause.grade
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run or sandbox used, measured from outside. `None` where the level cannot see it."""

    wall_seconds: float | None = None
    cpu_seconds: float | None = None
    memory_peak_bytes: int | None = None
    processes_peak: int | None = None
    processes_now: int | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class RichItem:
    """One displayed value: a MIME bundle (MIME type to text). Written by the code: hostile input."""

    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str | None:
        """The plain-text form, if there is one."""
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        """The HTML form, if there is one: never to be shown outside a sandboxed frame."""
        return self.data.get("text/html")

    @property
    def markdown(self) -> str | None:
        """The Markdown form, if there is one."""
        return self.data.get("text/markdown")

    @property
    def svg(self) -> str | None:
        """The SVG form, if there is one: may hold scripts."""
        return self.data.get("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        """The PNG image, if there is one in valid base64. Nothing has looked at the image itself."""
        return self._decoded("image/png")

    @property
    def jpeg(self) -> bytes | None:
        """The JPEG image, if there is one in valid base64. Nothing has looked at the image itself."""
        return self._decoded("image/jpeg")

    def _decoded(self, mime: str) -> bytes | None:
        lines = self.data.get(mime)
        if lines is None:
            return None
        try:
            return base64.b64decode("".join(lines.split()), validate=True)
        except (binascii.Error, ValueError):
            return None

    def __repr__(self) -> str:
        text = "" if self.text is None else f" text={_beginning(self.text)}"
        return f"<RichItem {', '.join(_beginning(mime) for mime in list(self.data)[:8])}{text}>"


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An uncaught exception, as the code told it."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Result:
    """How one run ended. Nothing here defaults to success."""

    status: Status
    exit_code: int | None
    signal: int | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_total_bytes: int
    stderr_total_bytes: int
    results: tuple[RichItem, ...]
    error: ErrorInfo | None
    events: tuple[str, ...]
    usage: Usage
    level: str
    strength: Strength
    policy_digest: str
    enforcement: Enforcement
    decided_by: DecidedBy
    files_changed: tuple[str, ...] | None = None

    @property
    def stdout(self) -> str:
        """Standard output as text; undecodable bytes are replaced."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; undecodable bytes are replaced."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def truncated(self) -> bool:
        """Whether the code wrote more than was kept."""
        return self.stdout_total_bytes > len(self.stdout_bytes) or self.stderr_total_bytes > len(self.stderr_bytes)

    @property
    def waivers(self) -> tuple[str, ...]:
        """The clauses that nothing held, by name."""
        return self.enforcement.waivers

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end without an error."""
        return self.status == "ok"

    def __repr__(self) -> str:
        ended = f" exit_code={self.exit_code}" if self.exit_code is not None else ""
        ended += f" signal={self.signal}" if self.signal is not None else ""
        streams = [("stdout", self.stdout_bytes, self.stdout_total_bytes)]
        if self.stderr_total_bytes:
            streams.append(("stderr", self.stderr_bytes, self.stderr_total_bytes))
        written = "".join(f" {name}={_beginning_of_bytes(kept)} of {total} bytes" for name, kept, total in streams)
        error = "" if self.error is None else f" error={_beginning(self.error.name)}"
        return f"<Result {self.status}{ended} level={self.level}{error}{written}>"


def _beginning(text: str) -> str:
    """Return the first characters of `text` in quotes, everything unprintable escaped."""
    return repr(text[:_SHOWN])


def _beginning_of_bytes(data: bytes) -> str:
    return _beginning(data[:_SHOWN].decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One thing a run did while it ran: `kind` is stdout, stderr, result, error or notice."""

    kind: Literal["stdout", "stderr", "result", "error", "notice"]
    data: bytes = b""
    item: RichItem | None = None
    error: ErrorInfo | None = None

    @property
    def text(self) -> str:
        """`data` as text; undecodable bytes are replaced."""
        return self.data.decode("utf-8", "replace")
