"""The sandbox: files and processes of one isolated world, with one fixed policy.

`AsyncSandbox` puts together what the rooms below do: `contract` says what is wanted, `engine.registry` finds the level,
`engine.openbox` opens a box that holds every clause, `engine.supervisor` runs code in it, `engine.filesystem` and
`engine.commands` do the rest. `run` is one sandbox for one piece of code. `blocking.Sandbox` is the same without
`await`.
"""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from kooi.contract.backend import Posture
from kooi.contract.errors import InvalidRequest, SandboxClosed, Unsupported
from kooi.contract.limits import Limits
from kooi.contract.policy import Policy
from kooi.contract.result import Enforcement, ErrorInfo, Result, RichItem, RunEvent, Usage
from kooi.contract.spec import Spec
from kooi.engine import requests
from kooi.engine.audit import Audit
from kooi.engine.commands import Commands
from kooi.engine.filesystem import Files
from kooi.engine.lifetime import Lifetime
from kooi.engine.openbox import OpenBox, Prepared, open_box, prepare
from kooi.engine.output import NO_TAPS, Taps
from kooi.engine.streaming import RunStream
from kooi.engine.supervisor import Job, supervise
from kooi.settings import load_spec

PolicySource = Policy | Mapping[str, Any] | str | os.PathLike[str] | None
LimitsSource = Limits | Mapping[str, Any] | None
Content = str | bytes

_DEFAULT_LEVEL = "jail"
_PLAIN_SPECS = 64
_NO_FUNCTIONS = (None, None, None, None)
_plain: dict[tuple[str | None, bool], Spec] = {}
_closing: set[asyncio.Task[None]] = set()


class AsyncSandbox:
    """One isolated world with one fixed policy, opened by `async with` or by its first call.

    `level`: an isolation level's name; None is the policy file's, else "jail". `policy`: a `Policy`, a table of its
    fields, or the path of a `kooi.toml`, which may also hold limits and image. `limits`: a `Limits` or a table of some
    of its fields; they only narrow those of a policy file. `image`: None is the running interpreter. `preload`: modules
    to have imported before the first run; None is the image's own set. `env`: added to the policy's. `files`: name to
    content, written before the first run. `fresh`: execute a new interpreter instead of forking a warm one. `spec`:
    instead of all these but env and files. `audit`: called with one JSON line per run. `detach`: let the sandbox
    outlive the calling process; this version cannot, and raises `Unsupported` for True.

    Raises `InvalidPolicy`, `InvalidRequest`, `LevelUnavailable` or `PolicyUnenforceable` at once, before anything is
    started. State is kept between runs. Cancelling a call kills what it started before it returns.
    """

    def __init__(
        self,
        level: str | None = None,
        *,
        policy: PolicySource = None,
        limits: LimitsSource = None,
        image: str | None = None,
        preload: tuple[str, ...] | None = None,
        env: Mapping[str, str] | None = None,
        files: Mapping[str, Content] | None = None,
        fresh: bool = False,
        spec: Spec | None = None,
        audit: Callable[[str], object] | None = None,
        detach: bool = False,
    ) -> None:
        if detach:
            raise Unsupported(
                "a sandbox of this version lives in the process that opened it, and ends with it",
                key="detach",
                fix="keep that process as long as the sandbox is wanted; a later version has a keeper for this",
            )
        if spec is None:
            spec = _spec(level, policy, limits, image, preload, fresh)
        elif (level, policy, limits, image, preload, fresh) != (None, None, None, None, None, False):
            raise InvalidRequest("spec says it all", key="spec", fix="give spec alone, or level, policy, limits...")
        self._env = requests.environment(env)
        self._uploads = _contents(files)
        self._prepared: Prepared = prepare(spec)
        self._audit = None if audit is None else Audit(audit)
        self._held: OpenBox | None = None
        self._lifetime: Lifetime | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._turn = asyncio.Lock()

    @property
    def spec(self) -> Spec:
        """What this sandbox was built from."""
        return self._prepared.spec

    @property
    def enforcement(self) -> Enforcement:
        """What holds each clause of policy and limits, and which were waived."""
        return self._prepared.enforcement

    @property
    def files(self) -> Files:
        """The files inside."""
        return Files(self._ready)

    @property
    def commands(self) -> Commands:
        """The programs inside."""
        return Commands(self._command, self.spec.limits.wall_seconds)

    async def run(
        self,
        code: Content,
        *,
        stdin: Content | None = None,
        timeout: float | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_result: Callable[[RichItem], object] | None = None,
        on_error: Callable[[ErrorInfo], object] | None = None,
    ) -> Result:
        """Run code and return how it ended; variables and imports of earlier runs are there.

        `timeout` in seconds only narrows `wall_seconds`. The `on_` functions are called while the code runs; one that
        raises kills the run. Runs of one sandbox take turns. Raises `InvalidRequest`, `SandboxClosed`, `SandboxLost`.
        """
        given = (on_stdout, on_stderr, on_result, on_error)
        taps = NO_TAPS if given == _NO_FUNCTIONS else Taps(*given)
        return await self._in_turn(self._job(code, stdin, timeout, taps))

    def stream(self, code: Content, *, stdin: Content | None = None, timeout: float | None = None) -> RunStream:
        """Return the events of a run as they come (iterate), its `result` at the end; arguments as for `run`."""
        job = self._job(code, stdin, timeout, NO_TAPS)

        async def start(put: Callable[[RunEvent], None]) -> Result:
            return await self._in_turn(Job(job.op, job.fields, job.body, job.wall_seconds, Taps(event=put)))

        return RunStream(start)

    async def posture(self) -> Posture:
        """Return the ids, capabilities, seccomp mode, namespaces, descriptors and mounts, read from outside."""
        return await (await self._ready()).box.posture()

    async def usage(self) -> Usage:
        """Return what the sandbox used so far, measured from outside."""
        return await (await self._ready()).usage()

    async def kill(self) -> None:
        """Kill everything inside now. Runs in flight end as `killed`; later calls raise `SandboxClosed`. Safe twice."""
        await self._close("it was killed")

    async def close(self) -> None:
        """Kill everything inside and give back all it held; nothing is left when this returns. Safe twice."""
        await self._close("close() was called")

    async def __aenter__(self) -> AsyncSandbox:
        """Open the sandbox."""
        await self._ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the sandbox."""
        await self.close()

    def __del__(self) -> None:
        """Close a sandbox that was forgotten, and say so."""
        held: OpenBox | None = getattr(self, "_held", None)
        if held is None or held.closed is not None or self._loop is None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(_close_forgotten, held)
        said = f"a sandbox of level {self.spec.level!r} was never closed"
        warnings.warn(said, ResourceWarning, stacklevel=2, source=self)

    async def _once(self, job: Job) -> Result:
        """Run one job in a box of its own, which is dead and gone when this returns."""
        held = await open_box(self._prepared, self._env)
        try:
            if self._uploads:
                await _upload(held, self._uploads)
            result = await supervise(held, job, last=True)
        except BaseException:
            await held.end("the run did not end")
            raise
        return self._noted(job, result)

    def _job(self, code: Content, stdin: Content | None, timeout: float | None, taps: Taps) -> Job:
        source, text = requests.code_bytes(code, stdin)
        fields = {"context": "", "code_bytes": len(source), "stdin": stdin is not None, "limits": {}}
        wall = requests.seconds(timeout, self.spec.limits.wall_seconds)
        return Job("run", fields, source + text, wall, taps)

    async def _in_turn(self, job: Job) -> Result:
        await self._turn.acquire()
        try:
            return await self._command(job)
        finally:
            self._turn.release()

    async def _command(self, job: Job) -> Result:
        held = await self._ready()
        result = await supervise(held, job)
        if self._lifetime is not None:
            self._lifetime.touch()
        return self._noted(job, result)

    def _noted(self, job: Job, result: Result) -> Result:
        if self._audit is not None:
            self._audit.record(result, _identity(job))
        return result

    async def _ready(self) -> OpenBox:
        held = self._held or await self._open()
        held.check()
        if self._lifetime is not None:
            self._lifetime.touch()
        return held

    async def _open(self) -> OpenBox:
        async with self._opening:
            if self._held is not None:
                return self._held
            if self._closed:
                raise SandboxClosed("the sandbox was closed")
            held = await open_box(self._prepared, self._env)
            try:
                held.watch()
                await _upload(held, self._uploads)
            except BaseException:
                await held.end("it could not be set up")
                raise
            self._loop = asyncio.get_running_loop()
            self._held, self._lifetime = held, Lifetime(held)
            return held

    async def _close(self, why: str) -> None:
        self._closed = True
        async with self._opening:
            if self._lifetime is not None:
                self._lifetime.stop()
            if self._held is not None:
                await self._held.close(why)


async def run(
    code: Content,
    *,
    level: str | None = None,
    policy: PolicySource = None,
    limits: LimitsSource = None,
    image: str | None = None,
    files: Mapping[str, Content] | None = None,
    env: Mapping[str, str] | None = None,
    stdin: Content | None = None,
    preload: tuple[str, ...] | None = None,
    fresh: bool = False,
    spec: Spec | None = None,
) -> Result:
    """Run code in a sandbox of its own and return how it ended; nothing of the sandbox is left when this returns.

    `stdin` is what the code can read; the other arguments, and what is raised, are those of `AsyncSandbox`.
    """
    box = AsyncSandbox(
        level, policy=policy, limits=limits, image=image, preload=preload, env=env, files=files, fresh=fresh, spec=spec
    )
    return await box._once(box._job(code, stdin, None, NO_TAPS))


def _spec(
    level: str | None,
    policy: PolicySource,
    limits: LimitsSource,
    image: str | None,
    preload: tuple[str, ...] | None,
    fresh: bool,
) -> Spec:
    if policy is None and limits is None and image is None and preload is None:
        # The common case, worked out once: building and checking a spec costs more than finding it.
        spec = _plain.get((level, fresh))
        if spec is None:
            spec = Spec(level=_DEFAULT_LEVEL if level is None else level, fresh=fresh)
            if len(_plain) < _PLAIN_SPECS:
                _plain[level, fresh] = spec
        return spec
    if isinstance(policy, (str, os.PathLike)):
        base = load_spec(policy, level=level)
        narrowed = base.limits if limits is None else _limits(limits, base.limits).within(base.limits)
    else:
        allowed = policy if isinstance(policy, Policy) else Policy.from_mapping({} if policy is None else policy)
        base = Spec(level=_DEFAULT_LEVEL if level is None else level, policy=allowed)
        narrowed = base.limits if limits is None else _limits(limits, base.limits)
    return Spec(
        level=base.level,
        image=base.image if image is None else image,
        preload=base.preload if preload is None else preload,
        policy=base.policy,
        limits=narrowed,
        fresh=base.fresh or fresh,
    )


def _limits(limits: Limits | Mapping[str, Any], base: Limits) -> Limits:
    """Return `limits`; what a table does not name is that of `base`."""
    if isinstance(limits, Limits):
        return limits
    given = limits if isinstance(limits, Mapping) else Limits.from_mapping(limits)  # which says what is wrong
    return Limits.from_mapping({**base.to_mapping(), **given})


def _contents(files: Mapping[str, Content] | None) -> dict[str, bytes]:
    if files is None:
        return {}
    if not isinstance(files, Mapping):
        raise InvalidRequest("files is not a mapping", key="files", fix="give names and contents")
    return {requests.path(name, "files"): requests.content(data, f"files.{name}") for name, data in files.items()}


async def _upload(held: OpenBox, files: Mapping[str, bytes]) -> None:
    async def ready() -> OpenBox:
        return held

    inside = Files(ready)
    for folder in sorted({posixpath.dirname(name) for name in files} - {"", "/"}):
        await inside.mkdir(folder, parents=True)
    for name, data in files.items():
        await inside.write(name, data)


def _identity(job: Job) -> bytes:
    """Return what an audit line hashes: the code of a run, the command line of a command."""
    if job.op == "run":
        return job.body[: int(str(job.fields["code_bytes"]))]
    return json.dumps(job.fields.get("shell", job.fields.get("argv"))).encode()


def _close_forgotten(held: OpenBox) -> None:
    task = asyncio.get_running_loop().create_task(held.close("it was forgotten"))
    _closing.add(task)  # a task that nobody holds may be collected
    task.add_done_callback(_closing.discard)
