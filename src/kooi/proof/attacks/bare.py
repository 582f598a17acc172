"""The control: the same program with the sandbox off, in a plain child process, bounded and cleaned up.

It shows that the program does the harm where nothing stops it. Without that, stopping it proves nothing. What the
host does here is what a careless host does: paths are joined and opened, pipes are read one after the other.
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
from kooi.proof.attacks.watch import Sighting, pids_named, watching

_KEEP_BYTES = 1 << 20
_ATTEMPTS = 3


class BareWorld:
    """No sandbox: a plain child process in a temporary directory, ended by its process group and by its name."""

    def __init__(self, program: Program, canaries: Canaries, params: Mapping[str, object]) -> None:
        self.params = {**params, **program.bare.params, "sandboxed": False, "level": "none"}
        self.directory = Path(tempfile.mkdtemp(prefix="kooi-proof-bare-"))
        self._program = program
        self._bare = program.bare
        self._canaries = canaries
        self._before = canaries.snapshot()
        self._tags: list[str] = []

    async def run(
        self, source: str, params: Mapping[str, object] | None = None, seconds: float | None = None
    ) -> Evidence:
        """Run `source` in a plain interpreter; past `seconds` it and its group are killed."""
        prepared = prepare(source, {**self.params, **(params or {})})
        self._tags.append(prepared.tag)
        script = self.directory / f".program-{len(self._tags)}.py"
        script.write_text(prepared.text)
        started = time.monotonic()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            async with watching(prepared.tag) as sighting:
                code = await self._child(script, out, err, seconds or self._bare.seconds)
            elapsed = time.monotonic() - started
            return self._evidence(prepared, code, elapsed, out, err, sighting)

    async def read(self, path: str) -> bytes:
        """Read the way a careless host does: join the paths and open."""
        return await asyncio.to_thread((self.directory / path).read_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """Write the way a careless host does."""
        await asyncio.to_thread((self.directory / path).write_bytes, data)

    async def another(self) -> World:
        """Return a second plain process's world: without a sandbox it is the very same one."""
        return self

    async def end(self) -> int:
        """Return how many processes are left when the program itself is over."""
        return max([await Sighting(tag).settle(0.5) for tag in self._tags], default=0)

    def check(self, *outputs: bytes) -> Evidence:
        """Return what the canaries saw, and what of theirs is in `outputs`."""
        return self._canaries.seen(self._before, *outputs)

    def close(self) -> None:
        """Kill what is left and remove the directory."""
        for tag in self._tags:
            for pid in pids_named(tag):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _evidence(
        self, prepared: Prepared, code: int | None, elapsed: float, out: BinaryIO, err: BinaryIO, sighting: Sighting
    ) -> Evidence:
        size = os.fstat(out.fileno()).st_size + os.fstat(err.fileno()).st_size
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
            facts={"exit_code": code, "kept_bytes": size},
        )

    async def _child(self, script: Path, out: BinaryIO, err: BinaryIO, seconds: float) -> int | None:
        ends: list[int] = []
        targets = [out.fileno(), err.fileno()]
        if self._bare.output != "file":
            pipes = [os.pipe(), os.pipe()]
            ends, targets = [read for read, _ in pipes], [write for _, write in pipes]
        environment = [f"{name}={value}" for name, value in self._program.env.items()]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", script.name, *self._bare.argv, *environment,
            stdin=asyncio.subprocess.DEVNULL, stdout=targets[0], stderr=targets[1],
            cwd=self.directory, start_new_session=self._bare.session, close_fds=not self._bare.inherit,
        )  # fmt: skip
        if ends:
            for fd in targets:
                os.close(fd)
        try:
            return await asyncio.wait_for(self._until_over(process, ends, (out, err)), seconds)
        except asyncio.TimeoutError:
            return None
        finally:
            _end(process, own_group=self._bare.session)
            await process.wait()
            for fd in ends:
                os.close(fd)

    async def _until_over(
        self, process: asyncio.subprocess.Process, ends: list[int], files: tuple[BinaryIO, BinaryIO]
    ) -> int:
        """Wait as the program's `bare.output` says; what is taken from `ends` is closed by whoever reads it."""
        if self._bare.output == "end":
            await asyncio.gather(*(asyncio.to_thread(_copy, ends.pop(0), file.fileno()) for file in files))
        for file in files:
            if ends:
                await asyncio.to_thread(_copy, ends.pop(0), file.fileno())
        return await process.wait()


def _copy(end: int, file: int) -> None:
    """Copy a pipe to its end, and close it."""
    try:
        # The file is duplicated: it may be closed by the time a late writer lets go of the pipe.
        with open(os.dup(file), "wb", buffering=0) as target:
            while block := os.read(end, 65536):
                target.write(block)
    finally:
        os.close(end)


def _end(process: asyncio.subprocess.Process, own_group: bool) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL) if own_group else process.kill()


def _head(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read(_KEEP_BYTES)


async def harm_without_sandbox(program: Program, canaries: Canaries, params: Mapping[str, object]) -> str | None:
    """Return the harm that the program does with the sandbox off, or `None` when it does none.

    On a busy machine it may not get round to it in its time, so it has several attempts.
    """
    hopeless = program.bare.root and os.geteuid() != 0
    for _ in range(1 if hopeless else _ATTEMPTS):
        world = BareWorld(program, canaries, params)
        try:
            harm = program.harm(await program.run(world))
        finally:
            world.close()
        if harm is not None:
            return harm
    return None
