"""Frames of the guest protocol: encode them, parse them, keep their credit. Shared by host and guest.

Theory of operation: the peer is hostile on either side, so a frame's header is judged (kind, direction, size)
before a byte of its payload is kept, and JSON is read strictly. `Parser` owns no large buffer: it reads into a
scratch buffer that many parsers of one thread may share, hands out views of it, and keeps only the frame that the
read cut in two. Every byte is copied at most once on its way in.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any, Dict, Iterator, List, Mapping, Tuple

HELLO, CONFIG, OPEN, DATA, EOF, OUT, ERR, EVENT, END, CREDIT, CONTROL = range(1, 12)

HEADER_BYTES = 9
MAX_PAYLOAD = 1 << 20
MAX_JSON = 256 * 1024
MAX_DEPTH = 32
MAX_CHANNELS = 256
WINDOW = 1 << 20
LATE_OPENS = 1024
SCRATCH_BYTES = 256 * 1024
CHUNK = 128 * 1024

_HEADER = Struct(">IBI")
_GRANT = Struct(">IBII")
_KEEP = 256 * 1024
_GRANT_AT = WINDOW // 4
_MAX_DIGITS = 20

_BYTES = (1, MAX_PAYLOAD)
_JSON = (2, MAX_JSON)
_NEVER = (1, 0)

#: kind -> (least, most) payload bytes, for what each side may send.
FROM_HOST: Mapping[int, Tuple[int, int]] = {
    CONFIG: _JSON,
    OPEN: _JSON,
    DATA: _BYTES,
    EOF: (0, 0),
    CREDIT: (4, 4),
    CONTROL: _JSON,
}
FROM_GUEST: Mapping[int, Tuple[int, int]] = {
    HELLO: _JSON,
    DATA: _BYTES,
    EOF: (0, 0),
    OUT: _BYTES,
    ERR: _BYTES,
    EVENT: _JSON,
    END: _JSON,
    CREDIT: (4, 4),
}

Frame = Tuple[int, int, memoryview]


class FrameError(Exception):
    """The peer broke the protocol."""


def header(kind: int, channel: int, size: int) -> bytes:
    """Return the header of a frame whose payload of `size` bytes follows separately."""
    return _HEADER.pack(size, kind, channel)


def frame(kind: int, channel: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return _HEADER.pack(len(payload), kind, channel) + payload


def json_frame(kind: int, channel: int, value: Mapping[str, object]) -> bytes:
    """Return a whole frame with a JSON payload; raise `FrameError` when it is over the cap."""
    return frame(kind, channel, json_payload(value))


def json_payload(value: Mapping[str, object]) -> bytes:
    """Return a JSON payload; raise `FrameError` when it is over the cap."""
    payload = dumps(value)
    if len(payload) > MAX_JSON:
        raise FrameError(f"JSON of {len(payload)} bytes, at most {MAX_JSON} fit in a frame")
    return payload


def opening(channel: int, payload: bytes, body: bytes, ended: bool) -> bytes:
    """Return OPEN with what follows it at once: `body` as DATA, and EOF if that is all that ever comes."""
    parts = [_HEADER.pack(len(payload), OPEN, channel), payload]
    if body:
        parts += _HEADER.pack(len(body), DATA, channel), body
    if ended:
        parts.append(_HEADER.pack(0, EOF, channel))
    return b"".join(parts)


def credit_frame(channel: int, amount: int) -> bytes:
    """Return a frame that lets the peer send `amount` more credited bytes."""
    return _GRANT.pack(4, CREDIT, channel, amount)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def dumps(value: Mapping[str, object]) -> bytes:
    """Return compact JSON; raise `FrameError` for what the other side would refuse."""
    try:
        return _encode(value).encode("utf-8")
    except (UnicodeEncodeError, ValueError) as error:
        raise FrameError(f"cannot be sent as JSON: {error}") from None


def _unique(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise FrameError("duplicate key in JSON")
    return result


def _constant(name: str) -> object:
    raise FrameError(f"{name} in JSON")


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise FrameError("absurd integer in JSON")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if value - value != 0:
        raise FrameError("infinite number in JSON")
    return value


_decode = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_constant, parse_int=_integer, parse_float=_real
).decode


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        below: List[object] = []
        for item in level:
            inner = item.values() if type(item) is dict else item if type(item) is list else ()
            below += [each for each in inner if type(each) is dict or type(each) is list]
        if not below:
            return
        level = below
    raise FrameError("JSON nested too deeply")


def loads(payload: bytes) -> Dict[str, Any]:
    """Return the JSON object in `payload`, read strictly; raise `FrameError` for anything else.

    Refused: more than 256 KiB, text that is not UTF-8, lone surrogates, duplicate keys, NaN, infinity, integers of
    more than 20 digits, nesting deeper than 32, anything but an object at the top.
    """
    if len(payload) > MAX_JSON:
        raise FrameError("JSON too long")
    try:
        value = _decode(payload.decode("utf-8"))
        if b"\\ud" in payload or b"\\uD" in payload:
            _encode(value).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise FrameError(f"bad JSON: {error}") from None
    if type(value) is not dict:
        raise FrameError("JSON is not an object")
    if payload.count(b"{") + payload.count(b"[") > MAX_DEPTH:
        _check_depth(value)
    return value


class Parser:
    """Cut a byte stream into frames.

    Read into `buffers()`, then take the frames of `advance(count)`. A frame's payload is a view that is valid until
    the next frame is asked for. `scratch` may be shared by parsers of one thread, because nothing stays in it between
    `advance` and the next `buffers`.
    """

    __slots__ = ("_have", "_kinds", "_need", "_partial", "_scratch", "_tail")

    def __init__(self, kinds: Mapping[int, Tuple[int, int]], scratch: memoryview) -> None:
        self._kinds = kinds
        self._scratch = scratch
        self._tail = b""
        self._partial = bytearray()
        self._need = 0
        self._have = 0

    def buffers(self) -> List[memoryview]:
        """Return the buffers to read into, in order."""
        if self._need:
            return [memoryview(self._partial)[self._have : self._need], self._scratch]
        if self._tail:
            self._scratch[: len(self._tail)] = self._tail
            return [self._scratch[len(self._tail) :]]
        return [self._scratch]

    def advance(self, count: int) -> Iterator[Frame]:
        """Yield the frames that are complete now that `count` bytes were read; raise `FrameError` at the first bad one.

        Take all of them before the next read. After a `FrameError` the parser is of no further use.
        """
        if self._need:
            taken = min(count, self._need - self._have)
            self._have += taken
            count -= taken
            if self._have < self._need:
                return
            view = memoryview(self._partial)[: self._need]
            self._need = 0
            _, kind, channel = _HEADER.unpack_from(view)
            yield kind, channel, view[HEADER_BYTES:]
            del view
            if len(self._partial) > _KEEP:
                self._partial = bytearray()
        else:
            count += len(self._tail)
            self._tail = b""
        yield from self._scan(count)

    def _scan(self, count: int) -> Iterator[Frame]:
        scratch, position = self._scratch, 0
        while count - position >= HEADER_BYTES:
            size, kind, channel = _HEADER.unpack_from(scratch, position)
            self._judge(size, kind, channel)
            start = position + HEADER_BYTES
            end = start + size
            if end > count:
                self._keep(scratch[position:count], HEADER_BYTES + size)
                return
            yield kind, channel, scratch[start:end]
            position = end
        self._tail = bytes(scratch[position:count])

    def cut(self, count: int, into: List[Tuple[int, int, bytes]]) -> None:
        """Do what `advance` does, with copies of the payloads: they are appended to `into`."""
        if self._need or self._tail:
            into.extend((kind, channel, bytes(view)) for kind, channel, view in self.advance(count))
            return
        scratch, position, kinds = self._scratch, 0, self._kinds
        while count - position >= HEADER_BYTES:
            size, kind, channel = _HEADER.unpack_from(scratch, position)
            least, most = kinds.get(kind, _NEVER)
            if not least <= size <= most or (channel == 0) != (kind <= CONFIG):
                self._judge(size, kind, channel)
            start = position + HEADER_BYTES
            if start + size > count:
                self._keep(scratch[position:count], HEADER_BYTES + size)
                return
            position = start + size
            into.append((kind, channel, bytes(scratch[start:position])))
        self._tail = bytes(scratch[position:count])

    def _judge(self, size: int, kind: int, channel: int) -> None:
        bounds = self._kinds.get(kind)
        if bounds is None:
            raise FrameError(f"frame of kind {kind} is unknown or goes the wrong way")
        if not bounds[0] <= size <= bounds[1]:
            raise FrameError(f"frame of kind {kind} with {size} bytes, allowed are {bounds[0]} to {bounds[1]}")
        if (channel == 0) != (kind <= CONFIG):
            raise FrameError(f"frame of kind {kind} on channel {channel}")

    def _keep(self, view: memoryview, need: int) -> None:
        if len(self._partial) < need:
            self._partial = bytearray(need)
        self._partial[: len(view)] = view
        self._have = len(view)
        self._need = need

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes; for callers that have the bytes already."""
        view = memoryview(data)
        while view:
            filled = 0
            for buffer in self.buffers():
                part = view[: len(buffer)]
                buffer[: len(part)] = part
                view = view[len(part) :]
                filled += len(part)
                if not view:
                    break
            yield from self.advance(filled)


class Credit:
    """Both directions of one channel's credit.

    `sendable`: bytes we may still send. `expected`: bytes the peer may still send. Credit only gives back what was
    received: neither ever exceeds `WINDOW`, so that is also the most that either side must hold for a channel.
    """

    __slots__ = ("_owed", "expected", "sendable")

    def __init__(self) -> None:
        self.sendable = WINDOW
        self.expected = WINDOW
        self._owed = 0

    def granted(self, amount: int) -> None:
        """Take a CREDIT of the peer; raise `FrameError` for zero or for more than it received."""
        if not 0 < amount <= WINDOW - self.sendable:
            raise FrameError(f"credit of {amount} bytes was never spent")
        self.sendable += amount

    def received(self, size: int) -> None:
        """Count `size` credited bytes of the peer; raise `FrameError` when it had no credit for them."""
        if size > self.expected:
            raise FrameError(f"{size} bytes sent on a credit of {self.expected}")
        self.expected -= size

    def consumed(self, size: int) -> int:
        """Note that `size` received bytes were used up; return the amount to grant to the peer now, 0 for none yet."""
        owed = self._owed = self._owed + size
        if owed < _GRANT_AT and self.expected >= _GRANT_AT:
            return 0
        self._owed = 0
        self.expected += owed
        return owed

    @property
    def outstanding(self) -> int:
        """Bytes received and not consumed yet."""
        return WINDOW - self.expected - self._owed
