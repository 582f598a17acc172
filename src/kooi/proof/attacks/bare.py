"""The control: the same program with the sandbox off, in a plain child process, bounded and cleaned up.

It shows that the program does the harm where nothing stops it. Without that, stopping it proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from kooi.proof.attacks.canaries import Canaries
from kooi.proof.attacks.model import Evidence, Program, World
from kooi.proof.attacks.source import Prepared, prepare, read_marks
from kooi.proof.attacks.watch import pids_named, watching

_KEEP_BYTES = 1 << 20


class BareWorld:
    """No sandbox: a plain child process in a temporary directory, ended by its process group and by its name."""

    def __init__(self, program: Program, canaries: Canaries, params: Mapping[str, object]) -> None:
        self.params = {**params, **program.bare_params, "sandboxed": False}
        self.directory = Path(tempfile.mkdtemp(prefix="kooi-proof-bare-"))
        self._program = program
        self._canaries = canaries
        self._before = canaries.snapshot()
        self._others: list[BareWorld] = []

    async def run(
        self, source: str, params: Mapping[str, object] | None = None, seconds: float | None = None
    ) -> Evidence:
        """Run `source` in a plain interpreter; past `seconds` everything it started is killed."""
        prepared = prepare(source, {**self.params, **(params or {})})
        (self.directory / ".program.py").write_text(prepared.text)
        started = time.monotonic()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            async with watching(prepared.tag) as sighting:
                code = await self._child(prepared, out, err, seconds or self._program.bare_seconds)
            elapsed = time.monotonic() - started
            size = os.fstat(out.fileno()).st_size
            output, errors = _head(out), _head(err)
        return Evidence(
            status=None if code is None else ("ok" if code == 0 else "error"),
            elapsed_seconds=elapsed,
            marks=read_marks(output, prepared.nonce),
            output=output,
            errors=errors,
            error=errors.decode(errors="replace").strip().rpartition("\n")[2] or None,
            returned=code is not None,
            total_bytes=size,
            spoils=self._canaries.spoils(output, errors),
            hits=self._canaries.since(self._before),
            seen_peak=sighting.peak,
            facts={"exit_code": code},
        )

    async def read(self, path: str) -> bytes:
        """Read the way a careless host does: join the paths and open."""
        return await asyncio.to_thread((self.directory / path).read_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """Write the way a careless host does."""
        await asyncio.to_thread((self.directory / path).write_bytes, data)

    async def another(self) -> World:
        """Return a second plain process's world: without a sandbox it is the very same one."""
        return self

    def check(self) -> Evidence:
        """Return what the canaries saw."""
        return Evidence(status=None, elapsed_seconds=0.0, hits=self._canaries.since(self._before))

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)

    async def _child(self, prepared: Prepared, out: BinaryIO, err: BinaryIO, seconds: float) -> int | None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", ".program.py",
            stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err,
            cwd=self.directory, start_new_session=self._program.bare_session,
        )  # fmt: skip
        try:
            return await asyncio.wait_for(process.wait(), seconds)
        except asyncio.TimeoutError:
            return None
        finally:
            _end(process, own_group=self._program.bare_session)
            await process.wait()
            for pid in pids_named(prepared.tag):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _end(process: asyncio.subprocess.Process, own_group: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        if own_group:
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            process.kill()


def _head(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read(_KEEP_BYTES)


async def harm_without_sandbox(program: Program, canaries: Canaries, params: Mapping[str, object]) -> str | None:
    """Return the harm that the program does with the sandbox off, or `None` when it does none."""
    world = BareWorld(program, canaries, params)
    try:
        return program.harm(await program.run(world))
    finally:
        world.close()
