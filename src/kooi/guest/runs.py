"""One run: its code until the interpreter has it, then its input and its output."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any, List, Mapping, Optional

from kooi.guest.channel import Feed, Talker
from kooi.guest.frames import FrameError

if TYPE_CHECKING:
    from kooi.guest.agent import Agent


class Run(Talker):
    """A run in a context, which it asks for an interpreter as soon as it is opened."""

    def __init__(self, agent: Agent, number: int, fields: Mapping[str, Any]) -> None:
        super().__init__(agent, number, fields)
        self.code_bytes: int = fields["code_bytes"]
        self.code_left = self.code_bytes
        self.held: List[bytes] = []
        self.wants_input: bool = fields["stdin"]
        self._started = False
        self._input: Optional[Feed] = None
        self._early: List[bytes] = []
        self._eof = False
        self._context = agent.context(fields["context"])

    def start(self) -> None:
        """Ask for the interpreter."""
        self._context.submit(self)

    def data(self, view: memoryview) -> None:
        """Take code, then input."""
        if not self._started and len(view) == self.code_left:
            self.code_left = 0
            self.held.append(bytes(view))
            return self._context.wake()
        code, rest = view[: self.code_left], view[self.code_left :]
        self.code_left -= len(code)
        if rest and not self.wants_input:
            raise FrameError("DATA beyond the code of a run without input")
        if self._started:
            if code:
                self._context.feed(code)
            if rest and self._input is not None:
                self._input.push(rest)
            return
        if code:
            self.held.append(bytes(code))
        if rest:
            self._early.append(bytes(rest))
        self._context.wake()

    def eof(self) -> None:
        """Take the end of the input."""
        if not self.wants_input or self.code_left or self._eof:
            raise FrameError("EOF that does not fit the run")
        self._eof = True
        if self._input is not None:
            self._input.end()

    def open_input(self) -> int:
        """Make the pipe of the input of a run that wants some; return its read end."""
        reader, writer = os.pipe()
        self._input = Feed(self.agent, writer, self)
        return reader

    def begin(self) -> None:
        """Note that the interpreter has the code; pass on the input that came early."""
        self._started = True
        self.held.clear()
        if self._input is not None:
            for data in self._early:
                self._input.push(memoryview(data))
            if self._eof:
                self._input.end()
        self._early.clear()

    def signal(self, number: int) -> None:
        """Signal the interpreter; 9 kills it with all that descends from it."""
        if number == signal.SIGKILL:
            self._context.kill(self)
        elif self._started:
            self._context.signal(self, number)

    def listen(self) -> None:
        """Hear more from the interpreter."""
        self._context.listen()

    def over(self, payload: bytes) -> None:
        """End the channel and let the next run have the interpreter."""
        if self._input is not None:
            self._input.close()
        super().over(payload)
        self._context.release(self)
