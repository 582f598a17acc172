"""Programs run inside a sandbox, supervised like code: the same limits, caps, statuses and results."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence

from kooi.contract.result import Result
from kooi.engine import requests
from kooi.engine.output import Taps
from kooi.engine.supervisor import Job

Supervise = Callable[[Job], Awaitable[Result]]


class Commands:
    """The programs of one sandbox."""

    def __init__(self, supervise: Supervise, wall_seconds: float | None) -> None:
        self._supervise = supervise
        self._wall_seconds = wall_seconds

    async def run(
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
        """Run a program to its end and return its result; text is a shell command, a list is an argument vector.

        `env` is added to the sandbox's; `cwd` is relative to its home; `timeout` (seconds) only narrows `wall_seconds`.
        A program that exits with another code than 0, or cannot be started, is status `error`.
        """
        fields = {
            **requests.command(command),
            "cwd": None if cwd is None else requests.path(cwd, "cwd"),
            "env": requests.environment(env),
            "stdin": stdin is not None,
        }
        requests.fitting("command", fields)
        body = b"" if stdin is None else requests.content(stdin, "stdin")
        wall = requests.seconds(timeout, self._wall_seconds)
        return await self._supervise(Job("exec", fields, body, wall, Taps(on_stdout, on_stderr)))
