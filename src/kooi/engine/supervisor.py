"""One run in one box: feed, cap, deadline, kill, verdict. Written once for every level.

Theory of operation. A run is one channel of the client. While it is open four things may happen: output arrives (it is
counted, and kept up to the cap), the wall deadline passes, a look at the box's CPU time shows that limit met, or the
caller gives up. Each but the first *condemns* the run: the reason is noted and the guest is told to kill it. A guest
that does not answer within a grace period loses the whole box. The run is over when the guest says END or when its
stream is gone; only then is the verdict made, from all that was noted. No reading of output ends before that, so what
the code wrote is never lost.

CPU time is looked at where it can matter: first when the limit could be met at the earliest (all CPUs busy), then
again after the remainder divided by the CPUs, at least 1 ms. With a CPU limit that the wall limit implies, never.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Mapping
from typing import Any, Literal, NamedTuple

from kooi.contract.errors import KooiError, SetupFailed
from kooi.contract.result import ErrorInfo, Result, RunEvent, Status, Usage
from kooi.engine.client import Call, GuestGone, GuestViolation
from kooi.engine.openbox import OpenBox, persist
from kooi.engine.output import NO_TAPS, Capture, Results, Taps
from kooi.engine.verdict import Ending, told, verdict

KILL_GRACE_SECONDS = 1.0
OOM_NOTICE_SECONDS = 0.05  # how much later than the death the kernel's word about it may arrive
LEAST_LOOK_SECONDS = 0.001
BLIND_LOOKS = 3  # failed looks at the CPU time in a row that end the run


class Job(NamedTuple):
    """What to run: the operation, its fields, and the bytes that follow it (code, then standard input)."""

    op: str
    fields: Mapping[str, object]
    body: bytes
    wall_seconds: float | None
    taps: Taps = NO_TAPS


async def supervise(held: OpenBox, job: Job, *, last: bool = False) -> Result:
    """Run `job` and return how it ended; with `last` the box is dead and gone by then.

    Raises `SetupFailed` when the box never started, and what a tap raised. Cancelled, it leaves when the run is dead.
    """
    run = _Run(held, job)
    before = 0.0 if held.started == 0 else await held.cpu_seconds()
    if held.has_news:
        await asyncio.sleep(0)  # a limit met before it is told by an event, and is not this run's
    try:
        await run.watch(before)
    except (GuestGone, GuestViolation):
        # The box had died before this run could begin.
        await held.end(run.why)
        held.check()
        raise
    if last or run.box_is_over:
        await held.end(run.why)
    usage = run.used(before, await held.usage())
    if held.lost is None:
        if held.has_news:
            await asyncio.sleep(0)  # a limit that this look at the box found met is told by an event
        if run.may_be_oom:
            await held.settle(OOM_NOTICE_SECONDS)
    if held.failed is not None:
        raise SetupFailed(f"the sandbox did not start: {held.failed}")
    result = run.result(usage)
    if run.raised is not None:
        raise run.raised
    return result


class _Run:
    """A run that is being supervised."""

    def __init__(self, held: OpenBox, job: Job) -> None:
        limits = held.prepared.spec.limits
        self.held = held
        self.job = job
        self.call: Call
        self.taps = job.taps
        self.out = Capture(limits.output_bytes, job.taps.stdout)
        self.err = Capture(limits.output_bytes, job.taps.stderr)
        self.results = Results()
        self.ending = Ending(file_size=held.prepared.file_size, command=job.op == "exec")
        self.raised: BaseException | None = None
        self.blind = 0
        self.alarms: dict[str, int] = {}
        self.grace: asyncio.TimerHandle | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    # -- while it runs

    async def watch(self, before: float | None) -> None:
        """Start the run and return when it is over."""
        held, job = self.held, self.job
        self.loop = loop = held.client.loop
        self.over: asyncio.Future[None] = loop.create_future()
        self.began = self.ended = loop.time()
        self.oom, self.pids = held.oom, held.pids
        self.call = held.client.open(
            job.op, job.fields, body=job.body, on_out=self._on_out, on_err=self._on_err, on_event=self._on_event
        )
        self.call.on_end = self._on_end
        self._enter()
        self._arm(before)
        try:
            await self.over
        except asyncio.CancelledError:
            self._condemn("killed")
            await persist(self._dead)
            raise
        finally:
            self._leave()

    def doom(self, reason: str) -> None:
        """Note why the host ends this run together with its box."""
        if not self.call.done.done():
            self.ending.condemned.add(reason)

    def _enter(self) -> None:
        self.held.started += 1
        self.number = self.held.started
        self.alone = not self.held.inflight
        self.held.inflight.add(self)

    def _leave(self) -> None:
        for number in self.alarms.values():
            self.held.alarm.drop(number)
        if self.grace is not None:
            self.grace.cancel()
        self.held.inflight.discard(self)
        self.alone = self.alone and self.held.started == self.number

    def _arm(self, before: float | None) -> None:
        prepared, wall = self.held.prepared, self.job.wall_seconds
        cpu = prepared.spec.limits.cpu_seconds
        if wall is not None:
            self.alarms["wall"] = self.held.alarm.set(self.began + wall, self._late)
        if cpu is not None and before is not None and (wall is None or cpu < wall * prepared.cpus):
            self._look_later(cpu, before + cpu)

    def _late(self) -> None:
        self._condemn("timeout")

    def _look_later(self, remaining: float, limit: float) -> None:
        delay = max(remaining / self.held.prepared.cpus, LEAST_LOOK_SECONDS)
        self.alarms["cpu"] = self.held.alarm.set(self.loop.time() + delay, lambda: self._spawn(self._look(limit)))

    async def _look(self, limit: float) -> None:
        try:
            used = await self.held.cpu_seconds()
        except (KooiError, OSError):
            # A box that is dying cannot be read; one that lives and cannot be read has no CPU limit any more.
            self.blind += 1
            if self.blind >= BLIND_LOOKS:
                raise
            return self._look_later(LEAST_LOOK_SECONDS * 10, limit)
        self.blind = 0
        if used is None or self.call.done.done():
            return
        if used >= limit:
            self._condemn("cpu_limit")
        else:
            self._look_later(limit - used, limit)

    def _condemn(self, reason: str) -> None:
        if self.call.done.done():
            return
        self.ending.condemned.add(reason)
        if self.grace is None:
            self.call.signal(signal.SIGKILL)
            self.grace = self.loop.call_later(KILL_GRACE_SECONDS, lambda: self._spawn(self._end_box()))

    async def _end_box(self) -> None:
        try:
            await self.held.end(f"it did not end a run ({', '.join(sorted(self.ending.condemned))})")
        finally:
            self._finish()

    async def _dead(self) -> None:
        if not self.call.done.done():
            await asyncio.wait([self.call.done])

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.raised = self.raised or error
            self._condemn("killed")

    # -- what the guest sends

    def _on_out(self, data: bytes) -> None:
        self._take(self.out, "stdout", data)

    def _on_err(self, data: bytes) -> None:
        self._take(self.err, "stderr", data)

    def _take(self, capture: Capture, kind: Literal["stdout", "stderr"], data: bytes) -> None:
        try:
            kept = capture.add(data)
            if kept and self.taps.event is not None:
                self.taps.event(RunEvent(kind, kept))
        except Exception as error:
            self._fail(error)
        if capture.total > capture.kept:
            self._condemn("output_limit")

    def _on_event(self, event: Mapping[str, Any]) -> None:
        item = self.results.add(event["data"])
        if item is None:
            return self._condemn("output_limit")
        try:
            self.taps.show_item(item)
        except Exception as error:
            self._fail(error)

    def _on_end(self, word: Mapping[str, Any] | None, error: Exception | None) -> None:
        self.ended = self.loop.time()
        if word is not None:
            self.ending.told = told(word)
        elif isinstance(error, GuestViolation):
            self.ending.violated = True
        elif not isinstance(error, GuestGone):
            self.raised = self.raised or error
        self._finish()

    def _finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def _fail(self, error: Exception) -> None:
        """A tap raised: call none again, end the run, and let the error leave the call."""
        self.raised = self.raised or error
        self.taps = NO_TAPS
        self.out.untap()
        self.err.untap()
        self._condemn("killed")

    # -- when it is over

    @property
    def box_is_over(self) -> bool:
        """Whether the box cannot serve another run."""
        return self.ending.told is None or self.ending.violated

    @property
    def may_be_oom(self) -> bool:
        """Whether it died as one does whose memory ran out, and the kernel's word may still be under way."""
        word, limits = self.ending.told, self.held.prepared.spec.limits
        died = word is not None and word.signal == signal.SIGKILL and not self.ending.condemned
        return died and limits.memory_bytes is not None and self.held.oom == self.oom

    @property
    def why(self) -> str:
        """Why the box ends with this run."""
        return "it broke the guest protocol" if self.ending.violated else "its guest is gone"

    def used(self, before: float | None, after: Usage) -> Usage:
        """Return what this run used: the difference, and the box's peaks."""
        cpu = None
        if after.cpu_seconds is not None and before is not None:
            cpu = max(after.cpu_seconds - before, 0.0)
        return Usage(
            wall_seconds=self.ended - self.began,
            cpu_seconds=cpu,
            memory_peak_bytes=after.memory_peak_bytes,
            processes_peak=after.processes_peak,
            processes_now=after.processes_now,
            shared=not self.alone,
        )

    def result(self, usage: Usage) -> Result:
        """Make the verdict and write it all down."""
        ending, prepared, word = self.ending, self.held.prepared, self.ending.told
        ending.oom, ending.pids = self.held.oom - self.oom, self.held.pids - self.pids
        ending.struck = self.held.struck
        status, decided_by = verdict(ending)
        error = word.error if word else None
        events = self._events(status)
        stdout, stderr = self._finish_output(error, events)
        return Result(
            status=status,
            exit_code=word.exit_code if word else None,
            signal=word.signal if word else None,
            stdout_bytes=stdout,
            stderr_bytes=stderr,
            stdout_total_bytes=self.out.total,
            stderr_total_bytes=self.err.total,
            results=tuple(self.results.items),
            error=error,
            events=events,
            usage=usage,
            level=prepared.enforcement.level,
            strength=prepared.enforcement.strength,
            policy_digest=prepared.digest,
            enforcement=prepared.enforcement,
            decided_by=decided_by,
        )

    def _finish_output(self, error: ErrorInfo | None, events: tuple[str, ...]) -> tuple[bytes, bytes]:
        if self.taps is NO_TAPS:
            return self.out.finish(), self.err.finish()
        try:
            kept = self.out.finish(), self.err.finish()
            self.taps.show_end(error, events)
        except Exception as raised:
            self._fail(raised)
            kept = self.out.finish(), self.err.finish()
        return kept

    def _events(self, status: Status) -> tuple[str, ...]:
        ending, said = self.ending, []
        if ending.oom > 0 and status != "oom":
            said.append(f"oom: the memory limit was met {ending.oom} times")
        if ending.pids > 0 and status != "pids_limit":
            said.append(f"pids_limit: {ending.pids} times a process was refused")
        if ending.told is not None and ending.told.left > 0 and self.held.lost is None:
            said.append(f"left: {ending.told.left} processes of the code are still alive")
        return tuple(said)
