"""The host's half of the guest protocol: calls multiplexed over a box's one stream.

Theory of operation: everything happens in the event loop's thread, in callbacks of `add_reader` and `add_writer`; there
is no task and no buffer per frame. `open` writes to the stream before it returns. What the guest sends is hostile: each
frame is judged by `guest.frames`, each JSON object by `guest.shapes`, each byte against the channel's credit, so that
one call holds at most 1 MiB that its owner did not consume, and a client at most 256 calls. At the first violation
the client stops reading and every call fails; killing the box is the owner's business.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kooi.contract.backend import Stream
from kooi.contract.errors import InvalidRequest, KooiError
from kooi.engine.call import Call, GuestGone, GuestViolation, OnBytes, OnEvent
from kooi.guest import frames, shapes
from kooi.guest.frames import FrameError, Parser
from kooi.guest.outbox import Outbox

__all__ = ["Call", "Client", "GuestGone", "GuestViolation"]

_HIGH = 256 * 1024
_SMALL = 16 * 1024
_thread = threading.local()
_TALKERS = ("run", "exec")


class Client:
    """The host's end of one guest's stream. Make it, and use it, in a running event loop's thread."""

    def __init__(self, stream: Stream) -> None:
        self.loop = asyncio.get_running_loop()
        self._stream = stream
        self._parser = Parser(frames.FROM_GUEST, _scratch())
        self._outbox = Outbox(stream.write_fd)
        self._calls: dict[int, Call] = {}
        self._feeding: dict[int, Call] = {}
        self._next_channel = 1
        self._configured = False
        self._error: KooiError | None = None
        self._writing = False
        self._hello: asyncio.Future[Mapping[str, Any]] = self.loop.create_future()
        self.loop.add_reader(stream.read_fd, self._readable)

    def configure(self, env: Mapping[str, str], cwd: str) -> None:
        """Set the environment (added to the guest's base) and the working directory of all code. Once, before any call.

        Travels with the first call, or alone when none is made before the loop runs on.
        """
        if self._configured or self._next_channel != 1:
            raise InvalidRequest("a guest is configured once, before its first call", key="env")
        value = {"env": dict(env), "cwd": cwd}
        self._outbox.put(frames.frame(frames.CONFIG, 0, _encode(value, shapes.check_config, "env")))
        self._configured = True
        self.loop.call_soon(self._flush)

    async def hello(self) -> Mapping[str, Any]:
        """Wait until the guest is ready; return its HELLO. Raises `GuestGone` or `GuestViolation`."""
        return await asyncio.shield(self._hello)

    def open(
        self,
        op: str,
        fields: Mapping[str, Any],
        *,
        body: bytes = b"",
        end_input: bool = True,
        on_out: OnBytes | None = None,
        on_err: OnBytes | None = None,
        on_data: OnBytes | None = None,
        on_event: OnEvent | None = None,
    ) -> Call:
        """Start an operation (see docs/protocol.md) and send `body`, as far as credit goes, before returning.

        `body` is the code of a run followed by its standard input, or the input of another op; it must not change.
        With `end_input=False` more may follow by `write`. The callbacks run in the loop, in the order of arrival; one
        that returns False withholds credit until `grant`. Raises `InvalidRequest` for fields the guest would refuse and
        for the 257th open call, `GuestGone` or `GuestViolation` when the guest is lost already.
        """
        if self._error is not None:
            raise self._error
        if len(self._calls) >= frames.MAX_CHANNELS:
            raise InvalidRequest(f"{frames.MAX_CHANNELS} calls are open already", fix="wait for one to end")
        channel = self._next_channel
        payload, takes_input = _opening(op, fields)
        if not takes_input and len(body) != fields.get("code_bytes", 0):
            raise InvalidRequest(f"{op} takes no input beyond its code", key="body")
        self._next_channel += 2
        call = self._calls[channel] = Call(self, channel, op, takes_input)
        if op in _TALKERS:
            call._callbacks = {frames.OUT: on_out, frames.ERR: on_err}
        elif op == "file.read":
            call._callbacks = {frames.DATA: on_data}
        call._on_event = on_event
        call._body_ended = end_input
        if end_input and len(body) <= _SMALL:
            # All of it in one piece.
            call._credit.sendable -= len(body)
            call._takes_input = False
            self._send(frames.opening(channel, payload, body, takes_input))
        else:
            self._outbox.put(frames.frame(frames.OPEN, channel, payload))
            call._feed(body)
            self._pump(call)
        return call

    def close(self) -> None:
        """Close the stream; every open call fails with `GuestGone`. Safe twice."""
        self._fail(GuestGone("the client was closed"))
        self._stream.close()

    # Sending

    def _send(self, data: bytes) -> None:
        if self._error is None:
            self._outbox.put(data)
            self._flush()

    def _flush(self) -> None:
        if self._error is not None:
            return
        try:
            done = self._outbox.flush()
        except OSError:
            self._deaf()
            return
        if not done and not self._writing:
            self._writing = True
            self.loop.add_writer(self._stream.write_fd, self._writable)
        elif done and self._writing:
            self._writing = False
            self.loop.remove_writer(self._stream.write_fd)
            if self._feeding:
                # A call that waits for nothing but room hears of it from nobody else.
                self.loop.call_soon(self._writable)

    def _deaf(self) -> None:
        """The guest reads no more. What it still says counts, so the end of the stream decides, not this."""
        self._outbox.clear()
        if self._writing:
            self._writing = False
            self.loop.remove_writer(self._stream.write_fd)

    def _writable(self) -> None:
        self._flush()
        for call in list(self._feeding.values()):
            self._pump(call)

    def _pump(self, call: Call) -> None:
        """Send as much of the call's input as its credit and the outbox take."""
        if not call._open:
            return
        while call._body and call._credit.sendable and self._outbox.size < _HIGH:
            self._send_chunk(call)
            if self._outbox.size >= _HIGH:
                self._flush()
        if call._body:
            self._feeding[call._channel] = call
        else:
            self._feeding.pop(call._channel, None)
            call._release()
            if call._body_ended and call._takes_input:
                call._takes_input = False
                self._outbox.put(frames.frame(frames.EOF, call._channel))
        self._flush()

    def _send_chunk(self, call: Call) -> None:
        view = call._body[0]
        size = min(len(view), call._credit.sendable, frames.CHUNK)
        call._credit.sendable -= size
        self._outbox.put(frames.header(frames.DATA, call._channel, size), view[:size])
        if size == len(view):
            call._body.popleft()
        else:
            call._body[0] = view[size:]

    # Receiving

    def _readable(self) -> None:
        try:
            count = os.readv(self._stream.read_fd, self._parser.buffers())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(GuestGone(f"the stream to the guest broke: {error.strerror}"))
            return
        if count == 0:
            self._fail(GuestGone("the guest is gone"))
            return
        arrived: list[tuple[int, int, bytes]] = []
        violation = None
        try:
            self._parser.cut(count, arrived)
        except FrameError as error:
            violation = error
        try:
            for kind, channel, payload in arrived:
                self._take(kind, channel, payload)
        except FrameError as error:
            violation = error
        if violation is not None:
            self._fail(GuestViolation(f"the guest broke the protocol: {violation}"))

    def _take(self, kind: int, channel: int, payload: bytes) -> None:
        if self._error is not None:
            return
        if kind == frames.HELLO:
            self._take_hello(payload)
            return
        if not self._hello.done():
            raise FrameError("something came before HELLO")
        call = self._calls.get(channel)
        if call is None:
            raise FrameError(f"channel {channel} is not open")
        if kind in call._callbacks:
            call._credit.received(len(payload))
            callback = call._callbacks[kind]
            if callback is None or self._tell(call, callback, payload):
                self._consumed(call, len(payload))
        elif kind == frames.EVENT:
            self._take_event(call, payload)
        elif kind == frames.END:
            self._take_end(call, payload)
        elif kind == frames.CREDIT:
            call._credit.granted(int.from_bytes(payload, "big"))
            self._pump(call)
        else:
            self._take_eof(call, kind)

    def _take_hello(self, payload: bytes) -> None:
        if self._hello.done():
            raise FrameError("a second HELLO")
        value = frames.loads(payload)
        shapes.check_hello(value)
        self._hello.set_result(value)

    def _take_event(self, call: Call, payload: bytes) -> None:
        call._credit.received(len(payload))
        value = frames.loads(payload)
        shapes.check_event(call.op, value)
        if call._on_event is None or self._tell(call, call._on_event, value):
            self._consumed(call, len(payload))

    def _take_eof(self, call: Call, kind: int) -> None:
        if kind != frames.EOF or frames.DATA not in call._callbacks:
            raise FrameError(f"frame of kind {kind} on a channel of {call.op}")
        del call._callbacks[frames.DATA]

    def _take_end(self, call: Call, payload: bytes) -> None:
        value = shapes.PLAIN_ENDS.get(payload) if call.op in _TALKERS else None
        if value is None:
            value = frames.loads(payload)
            shapes.check_end(call.op, value)
        del self._calls[call._channel]
        if self._feeding:
            self._feeding.pop(call._channel, None)
        call._finish(value, None)

    def _tell(self, call: Call, callback: Callable[[Any], bool | None], value: object) -> bool:
        """Call back; return whether credit may be given. A callback that raises fails its call and hears no more."""
        try:
            return callback(value) is not False
        except Exception as error:
            call._settle(None, error)
            call._callbacks = dict.fromkeys(call._callbacks)
            call._on_event = None
            return True

    def _consumed(self, call: Call, size: int) -> None:
        amount = call._credit.consumed(size)
        if amount:
            self._send(frames.credit_frame(call._channel, amount))

    def _fail(self, error: KooiError) -> None:
        if self._error is not None:
            return
        self._error = error
        self.loop.remove_reader(self._stream.read_fd)
        self._deaf()
        if not self._hello.done():
            self._hello.set_exception(error)
            self._hello.exception()
        for call in list(self._calls.values()):
            call._finish(None, error)
        self._calls.clear()
        self._feeding.clear()


def _scratch() -> memoryview:
    """Return this thread's buffer to read into: one for all its clients, because fresh memory costs page faults."""
    try:
        found: memoryview = _thread.scratch
    except AttributeError:
        found = _thread.scratch = memoryview(bytearray(frames.SCRATCH_BYTES))
    return found


def _opening(op: str, fields: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Return the JSON of OPEN, and whether the call takes input."""
    payload = shapes.plain_run(fields) if op == "run" else None
    if payload is not None:
        return payload, fields["stdin"]
    request = {"op": op, **fields}
    return _encode(request, shapes.check_open, "fields"), shapes.takes_input(request)


def _encode(value: dict[str, Any], check: Callable[[dict[str, Any]], None], key: str) -> bytes:
    """Return the JSON of a frame of ours; raise `InvalidRequest` for what the guest would refuse."""
    try:
        check(value)
        return frames.json_payload(value)
    except FrameError as error:
        raise InvalidRequest(str(error), key=key) from None
