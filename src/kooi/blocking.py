"""`Sandbox` and `run`: the same as `sandbox.AsyncSandbox` and `sandbox.run`, without `await`.

One line a method; what each does is said, and copied, there. The lines run on the portal's loop, so they work inside a
running loop (a notebook), from any thread, and after a fork. Functions given as `on_...` run in the calling thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType

from kooi._portal import portal
from kooi.contract.backend import Posture
from kooi.contract.result import Enforcement, ErrorInfo, Result, RichItem, RunEvent, Usage
from kooi.contract.spec import Spec
from kooi.engine import commands, filesystem, streaming
from kooi.engine.filesystem import MAX_READ_BYTES, FileEntry
from kooi.sandbox import AsyncSandbox, Content, LimitsSource, PolicySource
from kooi.sandbox import run as async_run


class Files:
    """The files of one sandbox, blocking."""

    def __init__(self, files: filesystem.Files) -> None:
        self._files = files

    def read(self, path: str | os.PathLike[str], *, max_bytes: int = MAX_READ_BYTES) -> str:
        return portal().call(self._files.read, path, max_bytes=max_bytes)

    def read_bytes(self, path: str | os.PathLike[str], *, max_bytes: int = MAX_READ_BYTES) -> bytes:
        return portal().call(self._files.read_bytes, path, max_bytes=max_bytes)

    def write(
        self, path: str | os.PathLike[str], data: str | bytes, *, append: bool = False, mode: int | None = None
    ) -> int:
        return portal().call(self._files.write, path, data, append=append, mode=mode)

    def list(self, path: str | os.PathLike[str] = ".", *, recursive: bool = False) -> tuple[FileEntry, ...]:
        return portal().call(self._files.list, path, recursive=recursive)

    def stat(self, path: str | os.PathLike[str]) -> FileEntry:
        return portal().call(self._files.stat, path)

    def mkdir(self, path: str | os.PathLike[str], *, parents: bool = False) -> None:
        return portal().call(self._files.mkdir, path, parents=parents)

    def remove(self, path: str | os.PathLike[str], *, recursive: bool = False) -> None:
        return portal().call(self._files.remove, path, recursive=recursive)


class Commands:
    """The programs of one sandbox, blocking."""

    def __init__(self, commands: commands.Commands) -> None:
        self._commands = commands

    def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
    ) -> Result:
        return portal().call(
            self._commands.run, command, cwd=cwd, env=env, stdin=stdin, timeout=timeout,
            on_stdout=on_stdout, on_stderr=on_stderr,
        )  # fmt: skip


class RunStream:
    """The events of a run as they happen, blocking; `result` is there when the iteration has ended."""

    def __init__(self, stream: streaming.RunStream) -> None:
        self._stream = stream
        self._events = portal().iterate(stream)

    @property
    def result(self) -> Result:
        return self._stream.result

    def __iter__(self) -> Iterator[RunEvent]:
        return self

    def __next__(self) -> RunEvent:
        return next(self._events)

    def close(self) -> None:
        """Kill the run if it still runs. Safe twice."""
        portal().call(self._stream.aclose)

    def __enter__(self) -> RunStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Sandbox:
    """A blocking `AsyncSandbox`."""

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
        self._sandbox = AsyncSandbox(
            level, policy=policy, limits=limits, image=image, preload=preload, env=env, files=files, fresh=fresh,
            spec=spec, audit=audit, detach=detach,
        )  # fmt: skip

    @property
    def spec(self) -> Spec:
        return self._sandbox.spec

    @property
    def enforcement(self) -> Enforcement:
        return self._sandbox.enforcement

    @property
    def files(self) -> Files:
        return Files(self._sandbox.files)

    @property
    def commands(self) -> Commands:
        return Commands(self._sandbox.commands)

    def run(
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
        return portal().call(
            self._sandbox.run, code, stdin=stdin, timeout=timeout,
            on_stdout=on_stdout, on_stderr=on_stderr, on_result=on_result, on_error=on_error,
        )  # fmt: skip

    def stream(self, code: Content, *, stdin: Content | None = None, timeout: float | None = None) -> RunStream:
        return RunStream(self._sandbox.stream(code, stdin=stdin, timeout=timeout))

    def posture(self) -> Posture:
        return portal().call(self._sandbox.posture)

    def usage(self) -> Usage:
        return portal().call(self._sandbox.usage)

    def kill(self) -> None:
        return portal().call(self._sandbox.kill)

    def close(self) -> None:
        return portal().call(self._sandbox.close)

    def __enter__(self) -> Sandbox:
        portal().call(self._sandbox.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run(
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
    return portal().call(
        async_run, code, level=level, policy=policy, limits=limits, image=image, files=files, env=env, stdin=stdin,
        preload=preload, fresh=fresh, spec=spec,
    )  # fmt: skip


def _copy_docs(to: type, source: type) -> None:
    for name, member in vars(to).items():
        said = getattr(source, name, None)
        if said is not None and member.__doc__ is None and not isinstance(member, property):
            member.__doc__ = said.__doc__


for _to, _from in (
    (Files, filesystem.Files),
    (Commands, commands.Commands),
    (RunStream, streaming.RunStream),
    (Sandbox, AsyncSandbox),
):
    _copy_docs(_to, _from)
run.__doc__ = async_run.__doc__
Sandbox.__doc__ = (AsyncSandbox.__doc__ or "").replace("`async with`", "`with`")
