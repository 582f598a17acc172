"""The arguments of one call, checked before anything happens; each error names the argument.

What passes here can be sent: it fits in a frame, it is valid Unicode, and no argument hides a NUL.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence

from kooi.contract.errors import InvalidRequest
from kooi.contract.policy import checked_env

MAX_HEADER_BYTES = 250_000  # of the 256 KiB that a JSON frame may have
MAX_BODY_BYTES = 1 << 30


def code_bytes(code: str | bytes, stdin: str | bytes | None) -> tuple[bytes, bytes]:
    """Return code and standard input as bytes."""
    source = _bytes("code", code)
    return source, b"" if stdin is None else _bytes("stdin", stdin)


def seconds(timeout: float | None, limit: float | None) -> float | None:
    """Return the wall limit of a call: `timeout` can only narrow the sandbox's own `limit`."""
    if timeout is None:
        return limit
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise _refuse("timeout", f"is {type(timeout).__name__}", "give a number of seconds above 0")
    if not 0 < timeout or not math.isfinite(timeout):
        raise _refuse("timeout", f"is {timeout!r}", "give a number of seconds above 0, or None for the sandbox's limit")
    return float(timeout) if limit is None else min(float(timeout), limit)


def command(value: str | Sequence[str]) -> dict[str, object]:
    """Return the fields of a command: text is for the shell inside, a sequence is an argument vector."""
    if isinstance(value, str):
        return {"shell": text("command", value)}
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Sequence):
        raise _refuse("command", f"is {type(value).__name__}", "give a shell command as text, or a list of arguments")
    argv = [text(f"command[{at}]", part, empty=at > 0) for at, part in enumerate(value)]
    if not argv:
        raise _refuse("command", "has no arguments", "give at least the program's name")
    return {"argv": fitting("command", argv)}


def environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """Return a checked copy of an environment."""
    if env is None:
        return {}
    checked = dict(checked_env(env, key="env", error=InvalidRequest))
    fitting("env", checked)
    return checked


def path(value: str | os.PathLike[str], key: str = "path") -> str:
    """Return a path inside as text."""
    try:
        plain = os.fspath(value)
    except TypeError:
        raise _refuse(key, f"is {type(value).__name__}", "give a path as text") from None
    return text(key, plain)


def content(data: str | bytes, key: str = "data") -> bytes:
    """Return the content of a file as bytes; text as UTF-8."""
    return _bytes(key, data)


def text(key: str, value: object, *, empty: bool = False) -> str:
    """Return `value` if it is text without NUL and lone surrogates."""
    if not isinstance(value, str):
        raise _refuse(key, f"is {type(value).__name__}", "give text")
    if not value and not empty:
        raise _refuse(key, "is empty", "give text")
    if "\0" in value:
        raise _refuse(key, f"has a NUL character at {value.index(chr(0))}", "remove it")
    _encoded(key, value)
    return value


def fitting(key: str, value: object) -> object:
    """Return `value` if its JSON fits in a frame."""
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MAX_HEADER_BYTES:
        fix = f"at most {MAX_HEADER_BYTES} fit; put larger data in a file or on standard input"
        raise _refuse(key, f"takes {size} bytes", fix)
    return value


def _bytes(key: str, value: str | bytes) -> bytes:
    if isinstance(value, str):
        value = _encoded(key, value)
    elif isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    elif not isinstance(value, bytes):
        raise _refuse(key, f"is {type(value).__name__}", "give text or bytes")
    if len(value) > MAX_BODY_BYTES:
        raise _refuse(key, f"has {len(value)} bytes", f"at most {MAX_BODY_BYTES} can be sent at once")
    return value


def _encoded(key: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        bad = f"has the lone surrogate {value[error.start]!r} at {error.start}"
        raise _refuse(key, bad, "give valid Unicode, or bytes") from None


def _refuse(key: str, what: str, fix: str) -> InvalidRequest:
    return InvalidRequest(f"{key} {what}", key=key, fix=fix)
