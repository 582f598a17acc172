"""What the agent knows of one open channel, and the descriptors that feed it or are fed by it."""

from __future__ import annotations

import _socket as socket  # the plain module, without enums: see `children`
import fcntl
import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Container, Deque, Dict, Mapping, Optional, Tuple

from kooi.guest import frames
from kooi.guest.frames import CHUNK, Credit, FrameError
from kooi.guest.outbox import Outbox
from kooi.guest.poller import IN, OUT

if TYPE_CHECKING:
    from kooi.guest.agent import Agent

PIPE_BYTES = 64 * 1024
_WIDE_PIPE_BYTES = 256 * 1024
_F_SETPIPE_SZ = 1031


class Channel:
    """One operation. The base refuses input and has nothing to signal; `number` is its id on the stream."""

    def __init__(self, agent: Agent, number: int, fields: Mapping[str, Any]) -> None:
        self.agent = agent
        self.number = number
        self.fields = fields
        self.credit = Credit()

    def start(self) -> None:
        """Begin; may end the channel already."""
        raise NotImplementedError

    def data(self, view: memoryview) -> None:
        """Take input from the host; `view` is valid during the call only."""
        raise FrameError("DATA on a channel that takes none")

    def eof(self) -> None:
        """Take the end of the input."""
        raise FrameError("EOF on a channel that takes no input")

    def resume(self) -> None:
        """Go on after credit came."""

    def signal(self, number: int) -> None:
        """Take a signal of the host."""

    def end(self, value: Dict[str, Any]) -> None:
        """Say how it ended: the last frame."""
        self.agent.finish(self, frames.dumps(value))


class Talker(Channel):
    """A channel of a process with standard output and error: what it said goes out before what is said about it."""

    def __init__(self, agent: Agent, number: int, fields: Mapping[str, Any]) -> None:
        super().__init__(agent, number, fields)
        self.taps: Tuple[Tap, ...] = ()
        self._tidings: Deque[Tuple[int, bytes]] = deque()
        self._abandoned = False

    def announce(self, kind: int, payload: bytes) -> None:
        """Send an EVENT or END once everything that the process has written by now is sent."""
        # One look at all pipes, and no fruitless read of those that are empty.
        ready = self.agent.poller.ready()
        owed = False
        for tap in self.taps:
            owed = tap.owe(ready) or owed
        if kind == frames.END and not owed and not self._tidings:
            self.over(payload)
            return
        self._tidings.append((kind, payload))
        self.advance()

    def abandon(self) -> None:
        """Stop waiting for credit: the host does not want the rest."""
        self._abandoned = True
        self.advance()

    @property
    def backlog(self) -> int:
        """How many announcements wait."""
        return len(self._tidings)

    def resume(self) -> None:
        """Go on after credit came."""
        for tap in self.taps:
            tap.resume()
        self.advance()

    def advance(self) -> None:
        """Send the announcements whose turn has come."""
        while self._tidings:
            if not self._abandoned and not self._settled():
                return
            kind, payload = self._tidings[0]
            if kind == frames.EVENT and not self._abandoned:
                if self.credit.sendable < len(payload):
                    return
                self.credit.sendable -= len(payload)
                self.agent.put(frames.frame(kind, self.number, payload))
            self._tidings.popleft()
            if kind == frames.END:
                self.over(payload)
                return
            self.listen()

    def _settled(self) -> bool:
        settled = True
        for tap in self.taps:
            settled = tap.settle() and settled
        return settled

    def listen(self) -> None:
        """Take more of what the process says about itself, now that an announcement is out."""

    def over(self, payload: bytes) -> None:
        """End the channel."""
        self.agent.finish(self, payload)


class Tap:
    """The read end of a process's output. Read only while its channel has credit; dropped while it has no channel."""

    def __init__(self, agent: Agent, fd: int, kind: int) -> None:
        os.set_blocking(fd, False)
        self._agent = agent
        self._fd = fd
        self._kind = kind
        self._capacity = PIPE_BYTES
        self._owed = 0
        self._channel: Optional[Talker] = None
        self._watched = False
        self._watch()

    def _watch(self) -> None:
        if not self._watched and self._fd >= 0:
            self._watched = True
            self._agent.poller.watch(self._fd, IN, self._ready)

    def _pause(self) -> None:
        if self._watched:
            self._watched = False
            self._agent.poller.forget(self._fd)

    def attach(self, channel: Optional[Talker]) -> None:
        """Send to `channel` from now on; with `None` drop what comes."""
        self._channel = channel
        self._owed = 0
        if not self._watched:
            self._watch()

    def owe(self, ready: Container[int]) -> bool:
        """Note that what is in the pipe now must be sent before `settle` is true; return whether there may be some.

        `ready`: see `Poller.ready`.
        """
        empty = self._fd < 0 or (self._watched and self._fd not in ready)
        self._owed = 0 if empty else self._capacity
        return not empty

    def settle(self) -> bool:
        """Send what is owed, as far as credit goes; return whether none is left."""
        while self._owed and self._read():
            pass
        return not self._owed

    def resume(self) -> None:
        """Go on after credit came; whoever calls advances the channel."""
        self._watch()

    def _roomy(self) -> None:
        """Go on after the stream took more. What is owed may be in no pipe any more, so nothing else would wake us."""
        self._watch()
        if self._channel is not None:
            self._channel.advance()

    def _ready(self, events: int) -> None:
        if self._read() and self._channel is not None:
            self._channel.advance()

    def _read(self) -> bool:
        """Move one lump; return whether it is worth trying again at once."""
        channel, agent = self._channel, self._agent
        room = CHUNK if channel is None else min(channel.credit.sendable, CHUNK)
        if room == 0 or (channel is not None and agent.crowded(self._roomy)):
            self._pause()
            return False
        lump = agent.lump[:room]
        try:
            size = os.readv(self._fd, (lump,))
        except BlockingIOError:
            self._owed = 0
            return True
        if size == 0:
            self.close()
            return True
        if channel is not None:
            channel.credit.sendable -= size
            agent.emit(self._kind, channel.number, lump[:size])
        if size < min(room, self._capacity):
            self._owed = 0
            return True
        self._owed = max(0, self._owed - size)
        self._widen()
        return True

    def _widen(self) -> None:
        """Give a process that fills its pipe a larger one, so that it stops less often."""
        if self._capacity == PIPE_BYTES:
            self._capacity = _WIDE_PIPE_BYTES
            try:
                fcntl.fcntl(self._fd, _F_SETPIPE_SZ, _WIDE_PIPE_BYTES)
            except OSError:
                pass

    def close(self) -> None:
        """Stop; safe twice."""
        self._pause()
        self._owed = 0
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def send_descriptor(control: int, fd: int) -> None:
    """Pass `fd` over a socket, with one byte. Nothing happens when nobody is there to take it."""
    end = socket.socket(fileno=control)
    try:
        end.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, sys.byteorder))])
    except OSError:
        pass
    finally:
        end.detach()


class Feed:
    """The write end of a process's input. Gives credit back as the process takes what the host sent."""

    def __init__(self, agent: Agent, fd: int, channel: Optional[Channel] = None) -> None:
        os.set_blocking(fd, False)
        self.channel = channel
        self._agent = agent
        self._fd = fd
        self._outbox = Outbox(fd)
        self._ours = 0
        self._ended = False
        self._waiting = False

    def put(self, data: bytes) -> None:
        """Queue bytes of the agent's own, for which no credit is due; `push` or `flush` sends them."""
        self._outbox.put(data)
        self._ours += len(data)

    def push(self, view: memoryview) -> None:
        """Write input; what the process does not take now is copied and waits."""
        before = self._outbox.size + len(view)
        try:
            if self._fd < 0:
                raise BrokenPipeError
            self._outbox.copy(b"", view)
        except OSError:
            self._outbox.clear()
            self._ended = True
        self._settle(before)

    def flush(self) -> None:
        """Write what waits, as far as the process takes it."""
        self._settle(self._outbox.size)

    def end(self) -> None:
        """Close it once all is written."""
        self._ended = True
        self.flush()

    def _ready(self, events: int) -> None:
        self.flush()

    def _settle(self, before: int) -> None:
        try:
            done = self._fd < 0 or self._outbox.flush()
        except OSError:
            self._outbox.clear()
            done = self._ended = True
        written = before - self._outbox.size
        ours = min(self._ours, written)
        self._ours -= ours
        if self.channel is not None and written > ours:
            self._agent.consumed(self.channel, written - ours)
        if done and self._ended:
            self.close()
        elif done == self._waiting:
            self._waiting = not done
            if done:
                self._agent.poller.forget(self._fd)
            else:
                self._agent.poller.watch(self._fd, OUT, self._ready)

    def close(self) -> None:
        """Close it now; safe twice."""
        if self._fd >= 0:
            if self._waiting:
                self._agent.poller.forget(self._fd)
            os.close(self._fd)
            self._fd = -1
