"""A sandbox that is none: it runs trusted test programs in a plain subprocess and reports as a sandbox does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kooi.contract.result import DecidedBy, Enforcement, ErrorInfo, Result, RichItem, Status, Usage


def a_result(
    status: Status = "ok",
    stdout: bytes = b"",
    stderr: bytes = b"",
    *,
    stdout_total: int | None = None,
    exit_code: int | None = 0,
    signal: int | None = None,
    results: tuple[RichItem, ...] = (),
    error: ErrorInfo | None = None,
    events: tuple[str, ...] = (),
    decided_by: DecidedBy = "code",
) -> Result:
    return Result(
        status=status,
        exit_code=exit_code,
        signal=signal,
        stdout_bytes=stdout,
        stderr_bytes=stderr,
        stdout_total_bytes=len(stdout) if stdout_total is None else stdout_total,
        stderr_total_bytes=len(stderr),
        results=results,
        error=error,
        events=events,
        usage=Usage(wall_seconds=0.01),
        level="fake",
        strength="none",
        policy_digest="0" * 64,
        enforcement=Enforcement(level="fake", strength="none", clauses=()),
        decided_by=decided_by,
    )


class FakeSandbox:
    """Answers every run with what `answer` makes of the code, and remembers the code."""

    def __init__(self, answer: Callable[[str], Result]) -> None:
        self.answer = answer
        self.codes: list[str] = []

    def run(self, code: str) -> Result:
        self.codes.append(code)
        return self.answer(code)


class FakeAsyncSandbox(FakeSandbox):
    async def run(self, code: str) -> Result:  # type: ignore[override]
        self.codes.append(code)
        return self.answer(code)


class SubprocessSandbox(FakeSandbox):
    """Runs each code in its own interpreter in `folder`; for trusted test programs only."""

    def __init__(self, folder: Path) -> None:
        super().__init__(self._run)
        self._folder = folder

    def _run(self, code: str) -> Result:
        done = subprocess.run([sys.executable, "-c", code], cwd=self._folder, capture_output=True, timeout=60)
        status: Status = "ok" if done.returncode == 0 else "error"
        return a_result(status, done.stdout, done.stderr, exit_code=done.returncode)
