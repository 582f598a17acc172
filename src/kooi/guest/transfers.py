"""The agent's side of file work: errands for the helper process, and the bytes of files.

Theory of operation: short errands are answered in order by one helper, started when it is first needed and again when
it was killed. A listing, or the removal of a tree, may take long and has a helper of its own that dies with its
channel. A descriptor that a helper passes is believed only as far as `fstat` shows a regular file.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import stat
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Mapping, Optional

from kooi.guest import files, frames, shapes
from kooi.guest.channel import Channel, Feed
from kooi.guest.frames import CHUNK, FrameError
from kooi.guest.poller import IN
from kooi.guest.processes import send

if TYPE_CHECKING:
    from kooi.guest.agent import Agent

_CONTROL = 3
_READ = 64 * 1024
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_GONE: Dict[str, Any] = {"errno": errno.EIO, "message": "the file helper was killed"}
_CANCELLED: Dict[str, Any] = {"errno": errno.ECANCELED, "message": "cancelled"}


class Helper:
    """A helper process and the channels that wait for its answers. Raises `OSError` when it cannot be started."""

    def __init__(self, agent: Agent) -> None:
        self.gone = False
        self._agent = agent
        self._waiting: Deque[Errand] = deque()
        self._passed: Deque[int] = deque()
        self._held = bytearray()
        self._watched = False
        self._control, theirs = socket.socketpair()
        home = agent.nursery.setup.home
        try:
            plan = [
                (agent.nursery.null, 0),
                (agent.nursery.null, 1),
                (agent.nursery.null, 2),
                (theirs.fileno(), _CONTROL),
            ]
            self._pid = agent.nursery.start(plan, lambda: files.serve(_CONTROL, home), dumpable=False)
        except OSError:
            self._control.close()
            raise
        finally:
            theirs.close()
        self._control.setblocking(False)
        self._feed = Feed(agent, os.dup(self._control.fileno()))
        agent.family.adopt(self._pid, lambda status: self.dismiss())
        self.listen()

    def ask(self, errand: Errand) -> None:
        """Send the request of `errand`, whose `answered` gets the answer."""
        self._waiting.append(errand)
        payload = frames.dumps(errand.fields)
        self._feed.put(len(payload).to_bytes(4, "big") + payload)
        self._feed.flush()

    def listen(self) -> None:
        """Take answers."""
        if not self._watched and not self.gone:
            self._watched = True
            self._agent.poller.watch(self._control.fileno(), IN, self._ready)

    def pause(self) -> None:
        """Take no answers until `listen`."""
        if self._watched:
            self._watched = False
            self._agent.poller.forget(self._control.fileno())

    def dismiss(self) -> None:
        """Kill it; whoever waits for it is told so. Safe twice."""
        if self.gone:
            return
        self.pause()
        self.gone = True
        self._control.close()
        self._feed.close()
        send(self._pid, signal.SIGKILL, group=False)
        while self._waiting:
            self._waiting.popleft().answered(_GONE, -1)
        while self._passed:
            os.close(self._passed.popleft())

    def _ready(self, events: int) -> None:
        try:
            data, passed, _, _ = self._control.recvmsg(_READ, socket.CMSG_SPACE(4 * 8), _CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, passed = b"", []
        for _, _, numbers in passed:
            for start in range(0, len(numbers) - 3, 4):
                self._passed.append(int.from_bytes(numbers[start : start + 4], sys.byteorder))
        self._held += data
        try:
            if not data:
                raise FrameError("the helper is gone")
            self._take_answers()
        except FrameError:
            self.dismiss()

    def _take_answers(self) -> None:
        held = self._held
        while len(held) >= 4 and not self.gone:
            size = int.from_bytes(held[:4], "big")
            if size > frames.MAX_JSON or not self._waiting:
                raise FrameError("an answer that nobody wants")
            if len(held) < 4 + size:
                return
            payload = bytes(held[4 : 4 + size])
            del held[: 4 + size]
            self._take(payload, frames.loads(payload))

    def _take(self, payload: bytes, value: Dict[str, Any]) -> None:
        errand = self._waiting[0]
        if "type" in value:
            shapes.check_event(errand.op, value)
            errand.page(payload)
            return
        fd = -1
        if "errno" in value or not errand.wants_descriptor:
            shapes.check_end(errand.op, value)
        elif not self._passed:
            raise FrameError("no descriptor came")
        else:
            fd = self._passed.popleft()
        self._waiting.popleft()
        errand.answered(value, fd)


class Errand(Channel):
    """A file operation that the helper does alone."""

    wants_descriptor = False

    def __init__(self, agent: Agent, number: int, fields: Mapping[str, Any]) -> None:
        super().__init__(agent, number, fields)
        self.op: str = fields["op"]
        self._over = False
        self._own: Optional[Helper] = None

    def start(self) -> None:
        """Send the helper."""
        try:
            if self.op == "file.list" or self.fields.get("recursive"):
                self._own = Helper(self.agent)
            (self._own or self.agent.helper()).ask(self)
        except OSError as error:
            self._finish({"errno": error.errno or errno.EAGAIN, "message": f"cannot start the file helper: {error}"})

    def answered(self, value: Dict[str, Any], fd: int) -> None:
        """Take the helper's last answer, and the descriptor that came with it."""
        self._finish(value)

    def page(self, payload: bytes) -> None:
        """Take a part of a listing."""
        raise FrameError("a page that was not asked for")

    def signal(self, number: int) -> None:
        """Give up on 9; what the helper has begun it may still do."""
        if number == signal.SIGKILL:
            self._finish(_CANCELLED)

    def _finish(self, value: Dict[str, Any]) -> None:
        if self._over:
            return
        self._over = True
        if self._own is not None:
            self._own.dismiss()
        self.end(value)


class Listing(Errand):
    """A listing: pages as fast as the host takes them."""

    def __init__(self, agent: Agent, number: int, fields: Mapping[str, Any]) -> None:
        super().__init__(agent, number, fields)
        self._pages: Deque[bytes] = deque()
        self._last: Optional[Dict[str, Any]] = None

    def page(self, payload: bytes) -> None:
        """Pass a page on, or make the helper wait."""
        self._pages.append(payload)
        self.resume()

    def answered(self, value: Dict[str, Any], fd: int) -> None:
        """Take the end of the listing."""
        if value is _GONE:
            self._pages.clear()
        self._last = value
        self.resume()

    def resume(self) -> None:
        """Send the pages that the host has credit for."""
        while self._pages and len(self._pages[0]) <= self.credit.sendable and not self._over:
            payload = self._pages.popleft()
            self.credit.sendable -= len(payload)
            self.agent.put(frames.frame(frames.EVENT, self.number, payload))
        if self._pages:
            if self._own is not None:
                self._own.pause()
        elif self._last is not None:
            self._finish(self._last)
        elif self._own is not None:
            self._own.listen()


class _Transfer(Errand):
    """An operation that moves the bytes of a regular file."""

    wants_descriptor = True

    def __init__(self, agent: Agent, number: int, fields: Mapping[str, Any]) -> None:
        super().__init__(agent, number, fields)
        self._fd = -1
        self._size = 0

    def answered(self, value: Dict[str, Any], fd: int) -> None:
        """Take the file."""
        if fd < 0:
            self._finish(value)
        elif self._over or not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            self._finish({"errno": errno.EINVAL, "message": "not a regular file"})
        else:
            self._fd = fd
            self._go_on()

    def _go_on(self) -> None:
        raise NotImplementedError

    def _finish(self, value: Dict[str, Any]) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        super()._finish(value)

    def _fail(self, error: OSError) -> None:
        self._finish({"errno": error.errno or errno.EIO, "message": error.strerror or str(error)})


class Read(_Transfer):
    """A file on its way to the host."""

    def resume(self) -> None:
        """Go on after credit came or the stream took more."""
        self._go_on()

    def _go_on(self) -> None:
        agent = self.agent
        while self._fd >= 0:
            room = min(self.credit.sendable, CHUNK)
            if room == 0 or agent.crowded(self._go_on):
                return
            lump = agent.lump[:room]
            try:
                size = os.readv(self._fd, (lump,))
            except OSError as error:
                self._fail(error)
                return
            if size == 0:
                agent.put(frames.frame(frames.EOF, self.number))
                self._finish({"size": self._size})
                return
            self._size += size
            self.credit.sendable -= size
            agent.emit(frames.DATA, self.number, lump[:size])


class Write(_Transfer):
    """A file on its way from the host."""

    def __init__(self, agent: Agent, number: int, fields: Mapping[str, Any]) -> None:
        super().__init__(agent, number, fields)
        self._early: List[bytes] = []
        self._eof = False

    def data(self, view: memoryview) -> None:
        """Write, or keep until the file is open."""
        if self._eof:
            raise FrameError("DATA after EOF")
        if self._fd < 0:
            self._early.append(bytes(view))
        else:
            self._write(view)

    def eof(self) -> None:
        """Take the end of the file."""
        if self._eof:
            raise FrameError("a second EOF")
        self._eof = True
        if self._fd >= 0:
            self._finish({"size": self._size})

    def _go_on(self) -> None:
        early, self._early = self._early, []
        for data in early:
            if self._fd >= 0:
                self._write(memoryview(data))
        if self._eof and self._fd >= 0:
            self._finish({"size": self._size})

    def _write(self, view: memoryview) -> None:
        size = len(view)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self._fail(error)
            return
        self._size += size
        self.agent.consumed(self, size)
