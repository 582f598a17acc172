"""One JSON line per run, for whoever has to know later what was run under which policy. Never the code itself."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict

from kooi.contract.result import Result

Sink = Callable[[str], object]

_log = logging.getLogger("kooi.audit")


class Audit:
    """Writes a line to `sink` for every run; a sink that fails is logged and costs no run its result."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def record(self, result: Result, code: bytes) -> None:
        """Write down one run: when, what (a SHA-256), under which spec, and how it ended."""
        line = json.dumps(
            {
                "time": round(time.time(), 3),
                "level": result.level,
                "strength": result.strength,
                "spec": result.policy_digest,
                "waivers": result.waivers,
                "code_sha256": hashlib.sha256(code).hexdigest(),
                "code_bytes": len(code),
                "status": result.status,
                "decided_by": result.decided_by,
                "exit_code": result.exit_code,
                "signal": result.signal,
                "stdout_bytes": result.stdout_total_bytes,
                "stderr_bytes": result.stderr_total_bytes,
                "usage": asdict(result.usage),
                "events": result.events,
            },
            separators=(",", ":"),
        )
        try:
            self._sink(line)
        except Exception:
            _log.exception("an audit line was not written: %s", line)


class AuditFile:
    """A sink: a file, made with mode 0600, to which each line is appended in one write."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)

    def __call__(self, line: str) -> None:
        """Append one line."""
        os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        """Close the file; safe twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
