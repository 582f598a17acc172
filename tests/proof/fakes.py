"""Sandboxes that are broken on purpose, and one that is none at all: no proof may take them for safe ones."""

from __future__ import annotations

import asyncio
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kooi.contract.limits import Limits
from kooi.contract.result import Clause, Enforcement, Grade, Result, Status, Usage

CLAUSES = ("wall_seconds", "cpu_seconds", "memory_bytes", "processes", "disk_bytes", "host_files", "network")


def enforcement(level: str, grade: Grade, **grades: Grade) -> Enforcement:
    """Return an enforcement that grades every clause alike, except `grades`."""
    return Enforcement(level, "kernel-shared", tuple(Clause(n, "fake", grades.get(n, grade)) for n in CLAUSES))


def result(status: Status, stdout: bytes, held: Enforcement, code: int | None = 0) -> Result:
    """Return a result with little in it."""
    return Result(
        status=status, exit_code=code, signal=None, stdout_bytes=stdout, stderr_bytes=b"",
        stdout_total_bytes=len(stdout), stderr_total_bytes=0, results=(), error=None, events=(), usage=Usage(),
        level=held.level, strength=held.strength, policy_digest="", enforcement=held, decided_by="host",
    )  # fmt: skip


class PlainFiles:
    """Files of a plain directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def read_bytes(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    async def write(self, path: str, data: bytes) -> int:
        return (self._root / path).write_bytes(data)


class PlainBox:
    """A plain child process with a clock (and resource limits when `limited`): no boundary."""

    def __init__(self, level: str, limits: Limits, held: Enforcement, limited: bool = False) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="kooi-fake-"))
        self.files = PlainFiles(self.root)
        self.level, self.limits, self.held, self.limited = level, limits, held, limited

    async def run(self, code: str) -> Result:
        with tempfile.TemporaryFile() as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-c", code, cwd=self.root, stdin=asyncio.subprocess.DEVNULL,
                stdout=out, stderr=asyncio.subprocess.DEVNULL,
                preexec_fn=self._limit if self.limited else None,
            )  # fmt: skip
            try:
                returncode = await asyncio.wait_for(process.wait(), self.limits.wall_seconds)
            except asyncio.TimeoutError:
                process.kill()
                returncode = await process.wait()
            out.seek(0)
            status: Status = "timeout" if returncode < 0 else "ok" if returncode == 0 else "error"
            return result(status, out.read(), self.held, returncode)

    async def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def _limit(self) -> None:
        assert self.limits.memory_bytes and self.limits.disk_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (self.limits.memory_bytes,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.limits.disk_bytes,) * 2)


class ScriptedBox(PlainBox):
    """Answers `print(1)` rightly and everything else as `answer(code)` says."""

    answer: Callable[[str], tuple[Status, bytes]] = staticmethod(lambda code: ("ok", b""))

    async def run(self, code: str) -> Result:
        if code == "print(1)":
            return result("ok", b"1\n", self.held)
        status, out = self.answer(code)
        return result(status, out, self.held)
