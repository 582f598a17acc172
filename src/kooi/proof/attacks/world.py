"""A sandbox as a place for hostile programs: the public API, watched from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from kooi.contract.limits import Limits
from kooi.contract.policy import Policy
from kooi.contract.result import Result
from kooi.contract.spec import Spec
from kooi.proof.access import BoxLike, Opener, open_box
from kooi.proof.attacks.canaries import Canaries
from kooi.proof.attacks.model import Evidence, Program, World
from kooi.proof.attacks.source import Prepared, prepare, read_marks
from kooi.proof.attacks.watch import Sighting, pids_named, watching

GRACE_SECONDS = 10.0


class SandboxWorld:
    """One sandbox of a level, opened for one program and closed after it."""

    def __init__(
        self,
        program: Program,
        level: str,
        canaries: Canaries,
        params: Mapping[str, object],
        opener: Opener = open_box,
    ) -> None:
        self.params: dict[str, object] = {**params, "sandboxed": True, "level": level}
        self.ended = False
        self.level = level
        self.tags: list[str] = []
        self._program = program
        self._canaries = canaries
        self._before = canaries.snapshot()
        self._opener = opener
        self._boxes: list[BoxLike] = []
        self._others: list[SandboxWorld] = []

    @property
    def limits(self) -> Limits:
        """The limits of the sandbox: the defaults, with a short clock and what the program changes."""
        base = Limits(wall_seconds=self._program.seconds, cpu_seconds=self._program.seconds)
        changes: dict[str, object] = dict(self._program.limits)
        return replace(base, **changes)  # type: ignore[arg-type]

    @property
    def spec(self) -> Spec:
        """What is opened."""
        return Spec(level=self.level, preload=(), policy=Policy(env=self._program.env), limits=self.limits)

    async def open(self) -> None:
        """Open a sandbox, the first one or a new one."""
        self._boxes.append(await self._opener(self.spec))

    @property
    def box(self) -> BoxLike:
        """The sandbox that was opened last."""
        return self._boxes[-1]

    async def run(
        self, source: str, params: Mapping[str, object] | None = None, seconds: float | None = None
    ) -> Evidence:
        """Run `source`; a call that does not return within its limit and a grace is evidence too."""
        prepared = prepare(source, {**self.params, **(params or {})})
        self.tags.append(prepared.tag)
        wall = self.limits.wall_seconds if seconds is None else seconds
        started = time.monotonic()
        async with watching(prepared.tag) as sighting:
            task = asyncio.ensure_future(self.box.run(prepared.text))
            await asyncio.wait({task}, timeout=(wall or self._program.seconds) + GRACE_SECONDS)
            elapsed = time.monotonic() - started
            result = task.result() if task.done() else None
            task.cancel()
            after = await self._after(sighting, result)
        return self._evidence(prepared, result, elapsed, sighting.peak, after)

    async def read(self, path: str) -> bytes:
        """Read a file through the files API."""
        return await self.box.files.read_bytes(path)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file through the files API."""
        await self.box.files.write(path, data)

    async def another(self) -> World:
        """Open a second sandbox beside this one."""
        other = SandboxWorld(self._program, self.level, self._canaries, self.params, self._opener)
        self._others.append(other)
        await other.open()
        return other

    async def end(self) -> int:
        """Close the sandbox; return how many processes of the program are left."""
        self.ended = True
        return len(await self.close())

    def check(self, *outputs: bytes) -> Evidence:
        """Return what the canaries saw, and what of theirs is in `outputs`."""
        return self._canaries.seen(self._before, *outputs)

    async def close(self) -> list[int]:
        """Close everything; return the processes of the program that are still there a moment later."""
        for other in self._others:
            self.tags += other.tags
            await other.close()
        for box in self._boxes:
            await box.close()
        left: list[int] = []
        for tag in self.tags:
            if await Sighting(tag).settle(2.0):
                left += pids_named(tag)
        return left

    async def _after(self, sighting: Sighting, result: Result | None) -> int:
        if result is not None and result.status not in ("ok", "error"):
            return await sighting.settle(2.0)
        return sighting.look()

    def _evidence(self, prepared: Prepared, result: Result | None, elapsed: float, peak: int, after: int) -> Evidence:
        if result is None:
            return Evidence(status=None, elapsed_seconds=elapsed, returned=False, seen_peak=peak, seen_after=after,
                            hits=self._canaries.since(self._before))  # fmt: skip
        shown = "\n".join(text for item in result.results for text in item.data.values()).encode()
        told = "" if result.error is None else f"{result.error.name}: {result.error.value}"
        traceback = b"" if result.error is None else result.error.traceback.encode()
        return Evidence(
            status=result.status,
            elapsed_seconds=elapsed,
            marks=read_marks(result.stdout_bytes, prepared.nonce),
            output=result.stdout_bytes,
            errors=result.stderr_bytes,
            decided_by=result.decided_by,
            error=told or None,
            truncated=result.truncated,
            total_bytes=result.stdout_total_bytes + result.stderr_total_bytes,
            spoils=self._canaries.spoils(result.stdout_bytes, result.stderr_bytes, shown, told.encode(), traceback),
            hits=self._canaries.since(self._before),
            seen_peak=peak,
            seen_after=after,
            facts={
                "kept_bytes": len(result.stdout_bytes) + len(result.stderr_bytes),
                "exit_code": result.exit_code,
                "signal": result.signal,
                "events": result.events,
                "usage": result.usage,
            },
        )  # fmt: skip
