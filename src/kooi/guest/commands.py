"""Commands: a program with arguments, or a line for the shell, each in a session of its own."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, List, Mapping, Optional

from kooi.guest import frames
from kooi.guest.answers import ended, exited
from kooi.guest.channel import Feed, Talker, Tap
from kooi.guest.processes import send

if TYPE_CHECKING:
    from kooi.guest.agent import Agent

_SHELL = "/bin/sh"


class Command(Talker):
    """One command. It is over when its process has ended, whoever else still holds its output."""

    def __init__(self, agent: Agent, number: int, fields: Mapping[str, Any]) -> None:
        super().__init__(agent, number, fields)
        self._input: Optional[Feed] = None
        self._pid = 0
        self._failure = -1
        self._killing = False
        self._status = 0
        self._said = False

    def start(self) -> None:
        """Start the process."""
        fields = self.fields
        argv = list(fields["argv"]) if "argv" in fields else [_SHELL, "-c", fields["shell"]]
        environment = {**self.agent.nursery.environment, **fields["env"]}
        try:
            self._launch(argv, environment, fields["cwd"], fields["stdin"])
        except OSError as error:
            self._fail(type(error).__name__, f"cannot start a process: {error}")

    def _launch(self, argv: List[str], environment: Mapping[str, str], cwd: Optional[str], fed: bool) -> None:
        family = self.agent.family
        ends = [os.pipe(), os.pipe(), os.pipe(), *([os.pipe()] if fed else [])]
        (out, out_w), (err, err_w), (self._failure, failed) = ends[:3]
        source, feed = ends[3] if fed else (self.agent.nursery.null, -1)
        try:
            plan = [(source, 0), (out_w, 1), (err_w, 2)]
            body = lambda: _execute(argv, environment, cwd)  # noqa: E731
            self._pid = self.agent.nursery.start(plan, body, executes=True, failed=failed)
        except OSError:
            for fd in (out, err, *([feed] if fed else [])):
                os.close(fd)
            raise
        finally:
            for fd in (out_w, err_w, failed, *([source] if fed else [])):
                os.close(fd)
        self.taps = (Tap(self.agent, out, frames.OUT), Tap(self.agent, err, frames.ERR))
        for tap in self.taps:
            tap.attach(self)
        if fed:
            self._input = Feed(self.agent, feed, self)
        family.adopt(self._pid, self._exited)

    def data(self, view: memoryview) -> None:
        """Take input."""
        if self._input is None:
            if self._pid:
                raise frames.FrameError("DATA for a command without input")
            return
        self._input.push(view)

    def eof(self) -> None:
        """Take the end of the input."""
        if self._input is None:
            raise frames.FrameError("EOF for a command without input")
        self._input.end()

    def signal(self, number: int) -> None:
        """Signal the command's process group; 9 kills all that descends from it."""
        if self._said or not self._pid:
            self.abandon()
        elif number != signal.SIGKILL:
            send(self._pid, number, group=True)
        elif not self._killing:
            self._killing = True
            self.agent.family.kill(self._pid, self._killed)

    def _exited(self, status: int) -> None:
        self._status = status
        if self._input is not None:
            self._input.close()
        problem = os.read(self._failure, 4096) if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 127 else b""
        os.close(self._failure)
        self._failure = -1
        if problem:
            name, _, text = problem.decode("utf-8", "replace").partition("\0")
            self._fail(name, text)
        elif not self._killing:
            self._end(exited(status, self.agent.family.left()))

    def _killed(self) -> None:
        if not self._said:
            self._end(exited(self._status, self.agent.family.left()))
        self.abandon()

    def _fail(self, name: str, text: str) -> None:
        told = {"name": name, "value": text, "traceback": ""}
        self._end(ended("error", error=told, left=self.agent.family.left()))

    def _end(self, payload: bytes) -> None:
        self._said = True
        self.announce(frames.END, payload)

    def over(self, payload: bytes) -> None:
        """End the channel; what still comes from processes that it left behind is dropped."""
        for tap in self.taps:
            tap.attach(None)
        super().over(payload)


def _execute(argv: List[str], environment: Mapping[str, str], cwd: Optional[str]) -> None:
    """Become the program. Runs in the child."""
    if cwd is not None:
        os.chdir(cwd)
    os.execvpe(argv[0], argv, environment)
