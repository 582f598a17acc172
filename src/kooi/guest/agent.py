"""The agent: process 1 of a box. It serves the host over the stream and never runs the code itself.

Theory of operation: one thread, one poll loop. Frames that arrive open channels, or go to the channel they are for;
everything that leaves is queued and written once per turn of the loop, so that the frames of one turn leave in one
system call. Interpreters, commands and file work are children; the agent moves their bytes, only while their channel
has credit, and reaps whatever dies. The host is trusted to hold the protocol and no further: when it breaks
it, or the stream ends, everything dies.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # see `children`
import os
import sys
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Tuple

from kooi.guest import frames, shapes
from kooi.guest.channel import Channel
from kooi.guest.children import Nursery, Setup
from kooi.guest.commands import Command
from kooi.guest.contexts import Context
from kooi.guest.frames import CHUNK, LATE_OPENS, MAX_CHANNELS, SCRATCH_BYTES, FrameError, Parser
from kooi.guest.hatch import Hatched, Pipes
from kooi.guest.outbox import Outbox
from kooi.guest.poller import IN, OUT, Poller
from kooi.guest.processes import Family
from kooi.guest.runs import Run
from kooi.guest.transfers import Errand, Helper, Listing, Read, Write

_HIGH = 256 * 1024
_SMALL = 16 * 1024
_SWEEP_SECONDS = 0.002


class StreamEnded(Exception):
    """The host is gone."""


class Ping(Channel):
    """The op `ping`."""

    def start(self) -> None:
        """Answer."""
        self.end({})


_OPS: Mapping[str, Callable[[Agent, int, Mapping[str, Any]], Channel]] = {
    "run": Run,
    "exec": Command,
    "file.read": Read,
    "file.write": Write,
    "file.list": Listing,
    "file.stat": Errand,
    "file.mkdir": Errand,
    "file.remove": Errand,
    "ping": Ping,
}


class Agent:
    """What one box's agent holds. It may be made ahead: `connect` gives it its descriptors."""

    family: Family
    poller: Poller

    def __init__(self, setup: Setup) -> None:
        self.nursery = Nursery(setup)
        self.lump = _private_memory(CHUNK)
        self._parser = Parser(frames.FROM_HOST, _private_memory(SCRATCH_BYTES))
        self._read_fd = self._write_fd = self._children_fd = -1
        self._outbox = Outbox(-1)
        self._channels: Dict[int, Channel] = {}
        self._contexts: Dict[str, Context] = {}
        self._helper: Optional[Helper] = None
        self._last_opened = -1
        self._greeted = False
        self._blocked = False
        self._unhurried = 0
        self._stalled: List[Callable[[], None]] = []

    # The loop

    def settle(self, pipes: Optional[Pipes] = None, hatched: Optional[Hatched] = None) -> None:
        """Take what belongs to this process alone. The default context's interpreter may be there already."""
        self.poller = Poller()
        self.family = Family(hidden=self.nursery.setup.code_uid is not None)
        self._contexts[""] = Context(self, pipes, hatched)
        self._watch_children()

    def connect(self, read_fd: int, write_fd: int) -> None:
        """Take the stream."""
        os.set_blocking(read_fd, False)
        if write_fd != read_fd:
            os.set_blocking(write_fd, False)
        self._read_fd, self._write_fd = read_fd, write_fd
        self._outbox.attach(write_fd)

    def play(self, fd: int, name: str, context: Context) -> None:
        """Take a stream and a context that are not real (see `rehearsal`)."""
        self.connect(fd, fd)
        self._contexts[name] = context
        self.poller.watch(fd, IN, self._stream_ready)

    def turn(self) -> None:
        """Do what is there to do now."""
        self.poller.wait(0)
        self._flush()

    def forget(self, fd: int, name: str, pid: int) -> None:
        """Be as before `play`."""
        self.poller.forget(fd)
        self.family.disown(pid)
        del self._contexts[name]
        self._channels.clear()
        self._outbox.clear()
        self._last_opened = -1
        self._greeted = False
        self._unhurried = 0

    def serve(self) -> NoReturn:
        """Serve until the host goes; raise what ended it."""
        # Before all: a run must not be handed to an interpreter that was killed in stock.
        self.family.reap()
        self._read()
        self.poller.watch(self._read_fd, IN, self._stream_ready)
        if self._last_opened < 0:
            self._contexts[""].warm(self._greet)
        while True:
            if self._outbox.size > self._unhurried or self._stalled or self._blocked:
                self._unhurried = 0
                self._flush()
            self.poller.wait(_SWEEP_SECONDS if self.family.sweeps else -1)
            if self.family.sweeps:
                self.family.reap()

    def _watch_children(self) -> None:
        """Wake up when a child dies. No other signal has a handler: as process 1 the agent is deaf to them."""
        self._children_fd, writer = os.pipe()
        os.set_blocking(self._children_fd, False)
        os.set_blocking(writer, False)
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL if os.getpid() == 1 else _signal.SIG_IGN)
        _signal.signal(_signal.SIGCHLD, _noted)
        _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self.poller.watch(self._children_fd, IN, self._died)

    def _died(self, events: int) -> None:
        try:
            os.read(self._children_fd, 4096)
        except BlockingIOError:
            pass
        self.family.reap()

    def _greet(self) -> None:
        """Say HELLO, the first of all frames."""
        if self._greeted:
            return
        self._greeted = True
        hello = b'{"protocol":1,"python":"%d.%d.%d","pid":%d}' % (*sys.version_info[:3], os.getpid())
        self._outbox.put(frames.frame(frames.HELLO, 0, hello))

    # What comes from the host

    def _stream_ready(self, events: int) -> None:
        if events & OUT:
            self._flush()
        if events & ~OUT:
            self._read()

    def _read(self) -> None:
        try:
            count = os.readv(self._read_fd, self._parser.buffers())
        except BlockingIOError:
            return
        if count == 0:
            raise StreamEnded
        if count <= _SMALL:
            arrived: List[Tuple[int, int, bytes]] = []
            self._parser.cut(count, arrived)
            for kind, channel, payload in arrived:
                if kind == frames.OPEN:
                    self._open(channel, payload)
                else:
                    self._take(kind, channel, memoryview(payload))
            return
        for kind, channel, view in self._parser.advance(count):
            self._take(kind, channel, view)

    def _take(self, kind: int, number: int, view: memoryview) -> None:
        channel = self._channels.get(number)
        if channel is not None and kind == frames.DATA:
            channel.credit.received(len(view))
            channel.data(view)
        elif kind == frames.OPEN:
            self._open(number, bytes(view))
        elif kind == frames.CONFIG:
            self._configure(frames.loads(bytes(view)))
        elif channel is None:
            if number % 2 == 0 or not self._last_opened - 2 * LATE_OPENS < number <= self._last_opened:
                raise FrameError(f"channel {number} is not open")
        elif kind == frames.EOF:
            channel.eof()
        elif kind == frames.CREDIT:
            channel.credit.granted(int.from_bytes(view, "big"))
            channel.resume()
        else:
            value = frames.loads(bytes(view))
            shapes.check_control(value)
            channel.signal(value["signal"])

    def _configure(self, value: Dict[str, Any]) -> None:
        shapes.check_config(value)
        if self._last_opened >= 0:
            raise FrameError("CONFIG after an OPEN")
        cwd = self.nursery.cwd if value["cwd"] == self.nursery.setup.alias else value["cwd"]
        if value["env"] or cwd != self.nursery.cwd:
            self.nursery.configure(value["env"], cwd)
            for context in self._contexts.values():
                context.stale = True

    def _open(self, number: int, payload: bytes) -> None:
        fields = shapes.read_plain_run(payload)
        if fields is None:
            fields = frames.loads(payload)
            shapes.check_open(fields)
        if number % 2 == 0 or number <= self._last_opened or len(self._channels) >= MAX_CHANNELS:
            raise FrameError(f"channel {number} cannot be opened")
        self._last_opened = number
        if not self._greeted:
            self._greet()
            # The host asked before it heard of us: it hears of us with the first that comes of it.
            self._unhurried = self._outbox.size
        channel = self._channels[number] = _OPS[fields["op"]](self, number, fields)
        channel.start()

    # What goes to the host

    def put(self, data: bytes) -> None:
        """Queue a frame."""
        self._outbox.put(data)

    def emit(self, kind: int, number: int, view: memoryview) -> None:
        """Queue a frame with a payload that changes as soon as this returns."""
        self._unhurried = 0  # a large one goes out at once, with what waits
        self._outbox.copy(frames.header(kind, number, len(view)), view)

    def crowded(self, resume: Callable[[], None]) -> bool:
        """Return whether the host must read first; if so, `resume()` is called when it has."""
        if self._outbox.size < _HIGH:
            return False
        self._stalled.append(resume)
        return True

    def consumed(self, channel: Channel, size: int) -> None:
        """Give the host credit for `size` bytes of input that were used up."""
        if channel.number in self._channels:
            amount = channel.credit.consumed(size)
            if amount:
                self._outbox.put(frames.credit_frame(channel.number, amount))

    def finish(self, channel: Channel, payload: bytes) -> None:
        """Queue a channel's END and forget the channel."""
        del self._channels[channel.number]
        self._outbox.put(frames.frame(frames.END, channel.number, payload))

    def _flush(self) -> None:
        # The stalled may wait although nothing is queued any more: a large frame of another channel goes out at once,
        # and all that was queued before it.
        while self._outbox.size or self._stalled:
            if not self._outbox.flush():
                self._watch_stream(True)
                return
            stalled, self._stalled = self._stalled, []
            for resume in stalled:
                resume()
        if self._blocked:
            self._watch_stream(False)

    def _watch_stream(self, blocked: bool) -> None:
        if blocked == self._blocked:
            return
        self._blocked = blocked
        if self._read_fd == self._write_fd:
            self.poller.watch(self._read_fd, IN | OUT if blocked else IN, self._stream_ready)
        elif blocked:
            self.poller.watch(self._write_fd, OUT, lambda events: self._flush())
        else:
            self.poller.forget(self._write_fd)

    # What channels share

    def context(self, name: str) -> Context:
        """Return the context `name`; it is made when it is first asked for."""
        context = self._contexts.get(name)
        if context is None:
            context = self._contexts[name] = Context(self)
        return context

    def helper(self) -> Helper:
        """Return the process that does short file work; it is started when there is none."""
        if self._helper is None or self._helper.gone:
            self._helper = Helper(self)
        return self._helper


def _noted(number: int, frame: object) -> None:
    """Stand in for a handler: the wake-up descriptor does the work."""


def _private_memory(size: int) -> memoryview:
    """Return a buffer whose pages cost nothing until they are touched, and that children do not share."""
    return memoryview(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS))
