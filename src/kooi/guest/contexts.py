"""The agent's side of contexts: one interpreter each, its output, and the runs that wait for it.

Theory of operation: a context's pipes live as long as the context, so that an interpreter that ended is replaced behind
them, and what it left behind may still write without harm. The default context's interpreter is started before the
agent reads its first frame, so that both get ready at once; others are forked with the code of their first run already
in memory. What an interpreter says on its control socket is a claim of the code in it: it is parsed with caps,
counts only for the run that is on, and an interpreter that breaks its form is killed.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from typing import TYPE_CHECKING, Callable, Deque, Dict, List, Optional

from kooi.guest import frames
from kooi.guest.answers import Answers, BadAnswer, displayed, ended, exited, failed
from kooi.guest.channel import Feed, Tap, send_descriptor
from kooi.guest.hatch import First, Hatched, Pipes, anew, hatch, lay
from kooi.guest.intake import execution
from kooi.guest.interpreter import DONE, FAILED, RESULT, WARM, WARM_UP, request
from kooi.guest.poller import IN
from kooi.guest.processes import send
from kooi.guest.runs import Run

if TYPE_CHECKING:
    from kooi.guest.agent import Agent

_IN_MEMORY = frames.WINDOW // 2
_BACKLOG = 8
_READ = 8 * 1024


class Context:
    """One context. `pipes` and `hatched` are given when its interpreter was started ahead of the first run."""

    def __init__(self, agent: Agent, pipes: Optional[Pipes] = None, hatched: Optional[Hatched] = None) -> None:
        self.stale = False
        self._agent = agent
        self._pid = 0
        self._count = 0
        self._run: Optional[Run] = None
        self._said = False
        self._waiting: Deque[Run] = deque()
        self._control = -1
        self._feed: Optional[Feed] = None
        self._answers = Answers()
        self._listening = False
        self._dying = False
        self._status = 0
        self._on_warm: Optional[Callable[[], None]] = None
        self._pipes = pipes or lay()
        self._taps = (Tap(agent, self._pipes.out, frames.OUT), Tap(agent, self._pipes.err, frames.ERR))
        if hatched is not None:
            self._take_over(hatched)
            agent.family.expect(self._pid)

    # Runs

    def submit(self, run: Run) -> None:
        """Queue a run."""
        self._waiting.append(run)
        if not run.code_left or run.code_bytes > _IN_MEMORY:
            self.wake()  # else its code does so, when it is here

    def wake(self) -> None:
        """Start the next run if the interpreter is free and enough of the code is here."""
        if self._run is not None or self._dying or not self._waiting:
            return
        run = self._waiting[0]
        small = run.code_bytes <= _IN_MEMORY
        if small and run.code_left:
            return
        in_memory = small and not self._pid and not self._agent.nursery.setup.fresh
        self._run = self._waiting.popleft()
        self._said = False
        self._count += 1
        for tap in self._taps:
            tap.attach(run)
        run.taps = self._taps
        reader = -1
        try:
            reader = run.open_input() if run.wants_input else -1
            if in_memory:
                self._launch(reader, (self._count, b"".join(run.held), reader >= 0))
                self._agent.consumed(run, run.code_bytes)
            else:
                self._hand_over(run, reader)
            run.begin()
        except OSError as error:
            self._end(run, ended("error", error=failed(error, "cannot start the interpreter")))
        finally:
            if reader >= 0:
                os.close(reader)

    def _hand_over(self, run: Run, reader: int) -> None:
        """Send the run to the interpreter that is there, or start one."""
        starts = not self._pid
        if starts:
            self._launch(reader)
        config = self._agent.nursery.configuration() if self.stale else b""
        self.stale = False
        fed = 0 if reader < 0 else 2 if starts else 1
        head = request(self._count, config, run.code_bytes, fed)
        if fed == 1:
            self._send(head)
            send_descriptor(self._control, reader)
            head = b""
        code = run.held[0] if len(run.held) == 1 else b"".join(run.held)
        self._send(head + config + code, run, len(code))

    def _send(self, data: bytes, run: Optional[Run] = None, credited: int = 0) -> None:
        """Write to the interpreter, by a feed if it does not take all. The last `credited` bytes are the host's."""
        feed = self._feed
        if feed is None:
            try:
                sent = os.write(self._control, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                sent = len(data)  # it has ended, and its end will tell
            if sent == len(data):
                if run is not None:
                    self._agent.consumed(run, credited)
                return
            feed = self._feed = Feed(self._agent, os.dup(self._control))
            own = len(data) - credited
            if sent > own and run is not None:
                self._agent.consumed(run, sent - own)
            data, credited = data[sent:], min(credited, len(data) - sent)
        feed.channel = run
        feed.put(data[: len(data) - credited])
        feed.push(memoryview(data)[len(data) - credited :])

    def feed(self, code: memoryview) -> None:
        """Pass on code that came after its run had started."""
        if self._pid:
            try:
                self._send(bytes(code), self._run, len(code))
            except OSError:
                return  # it closed its end: its death is the end of the run

    def release(self, run: Run) -> None:
        """Note that `run` is over; start the next one."""
        if run is self._run:
            self._run = None
            for tap in self._taps:
                tap.attach(None)
            self.wake()

    def _end(self, run: Run, payload: bytes) -> None:
        self._said = True
        run.announce(frames.END, payload)

    def signal(self, run: Run, number: int) -> None:
        """Signal the interpreter's process group, if `run` is on."""
        if run is self._run and not self._said and self._pid:
            send(self._pid, number, group=True)

    def kill(self, run: Run) -> None:
        """End `run`: with its interpreter and all that descends from that, unless it is over or has not begun."""
        if run in self._waiting:
            self._waiting.remove(run)
            run.over(exited(signal.SIGKILL, self._agent.family.left()))
            self.wake()  # the one behind it may have waited for its code only
        elif self._said or not self._pid:
            run.abandon()
        elif not self._dying:
            self._dying = True
            self._agent.family.kill(self._pid, self._killed)

    def close(self) -> None:
        """Listen to nothing any more, and close what it listened to but the control socket."""
        self._deafen()
        for tap in self._taps:
            tap.close()

    def _killed(self) -> None:
        self._dying = False
        run = self._run
        if run is not None and not self._said:
            self._end(run, exited(self._status, self._agent.family.left()))
            run.abandon()
        else:
            self.wake()

    # The interpreter

    def warm(self, ready: Callable[[], None]) -> None:
        """Let the interpreter take the page faults of a first run; `ready()` is called when it has, or cannot."""
        self._on_warm = ready
        try:
            if not self._pid:
                self._launch(-1)
            self._send(WARM_UP)
        except OSError:
            self._warmed()

    def renew(self) -> None:
        """Let the interpreter, which was given no run yet, execute a new one in its place."""
        command, program = anew(self._agent.nursery)
        self._send(execution(command) + program)

    def _warmed(self) -> None:
        ready, self._on_warm = self._on_warm, None
        if ready is not None:
            ready()

    def _launch(self, reader: int, first: Optional[First] = None) -> None:
        """Start the interpreter, with its first run in memory or without one."""
        agent = self._agent
        self._take_over(hatch(agent.nursery, self._pipes, reader if reader >= 0 else agent.nursery.null, first))
        self.stale = False

    def _take_over(self, hatched: Hatched) -> None:
        self._pid, self._control, owed = hatched
        self._answers = Answers()
        self.listen()
        self._agent.family.adopt(self._pid, self._exited)
        if owed:
            self._send(owed)

    def _exited(self, status: int) -> None:
        """Take the end of the interpreter, after the last it said."""
        self._status = status
        while self._listening and self._hear():
            pass
        self._deafen()
        os.close(self._control)
        if self._feed is not None:
            self._feed.close()
        self._pid, self._control, self._feed = 0, -1, None
        self._warmed()
        if self._run is not None and not self._said and not self._dying:
            self._end(self._run, exited(status, self._agent.family.left()))

    # What the interpreter says

    def listen(self) -> None:
        """Watch the control socket."""
        if self._control >= 0 and not self._listening:
            self._listening = True
            self._agent.poller.watch(self._control, IN, self._ready)

    def _deafen(self) -> None:
        if self._listening:
            self._listening = False
            self._agent.poller.forget(self._control)

    def _ready(self, events: int) -> None:
        self._hear()

    def _hear(self) -> bool:
        """Take what the interpreter says; return whether there may be more."""
        if self._run is not None and self._run.backlog >= _BACKLOG:
            self._deafen()
            return False
        try:
            data = os.read(self._control, _READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._deafen()
            return False
        try:
            for kind, number, texts in self._answers.feed(data):
                self._take(kind, number, texts)
        except BadAnswer:
            self._deafen()
            send(self._pid, signal.SIGKILL, group=True)
            return False
        return True

    def _take(self, kind: bytes, number: int, texts: List[str]) -> None:
        if kind == WARM:
            self._warmed()
            return
        run = self._run
        if run is None or number != self._count or self._said or self._dying:
            return
        if kind == RESULT and texts and len(texts) % 2 == 0:
            run.announce(frames.EVENT, displayed(texts))
        elif kind == DONE and not texts:
            self._end(run, ended("ok", left=self._agent.family.left(self._pid)))
        elif kind == FAILED and len(texts) == 3:
            told: Dict[str, str] = dict(zip(("name", "value", "traceback"), texts))  # noqa: B905
            self._end(run, ended("error", error=told, left=self._agent.family.left(self._pid)))
        else:
            raise BadAnswer
