"""What an interpreter says on its control socket, which is whatever its code wants to say; and how a process ended.

The form is binary (see `interpreter.answer`): a kind, a length, the run's number, texts with their lengths. Here it is
cut with caps and made into JSON that always fits a frame.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from kooi.guest import frames, shapes
from kooi.guest.interpreter import TEXT_LIMIT

_HEAD = 5
#: an answer without texts
_SHORT, _SHORT_SIZE = 9, b"\0\0\0\4"
_MOST = 4 * TEXT_LIMIT
_ROOM = 4096

Answer = Tuple[bytes, int, List[str]]


class BadAnswer(Exception):
    """The interpreter, or code in it, broke the form."""


class Answers:
    """Cuts what comes from the socket into answers."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterable[Answer]:
        """Give the answers that `data` completes, as kind, run number and texts; raise `BadAnswer`."""
        if len(data) == _SHORT and data[1:_HEAD] == _SHORT_SIZE and not self._held:
            return ((data[:1], int.from_bytes(data[_HEAD:], "big"), []),)
        return self._cut(data)

    def _cut(self, data: bytes) -> Iterator[Answer]:
        held = self._held
        held += data
        while len(held) >= _HEAD:
            size = int.from_bytes(held[1:_HEAD], "big")
            if not 4 <= size <= _MOST:
                raise BadAnswer
            if len(held) < _HEAD + size:
                return
            kind, body = bytes(held[:1]), bytes(held[_HEAD : _HEAD + size])
            del held[: _HEAD + size]
            yield kind, int.from_bytes(body[:4], "big"), _texts(body, 4)


def _texts(body: bytes, position: int) -> List[str]:
    texts = []
    while position < len(body):
        start = position + 4
        position = start + int.from_bytes(body[position:start], "big")
        if position > len(body):
            raise BadAnswer
        texts.append(body[start:position].decode("utf-8", "replace"))
    return texts


def fitting(value: Dict[str, Any], texts: Dict[str, str]) -> bytes:
    """Return `value` as JSON; shorten the longest of `texts`, a part of it, until it fits a frame."""
    while True:
        try:
            payload = frames.dumps(value)
        except frames.FrameError:
            raise BadAnswer from None
        if len(payload) <= frames.MAX_JSON - _ROOM:
            return payload
        longest = max(texts, key=lambda key: len(texts[key]))
        texts[longest] = texts[longest][: len(texts[longest]) // 2]


def displayed(texts: List[str]) -> bytes:
    """Return the JSON of a value to display, given as MIME types and texts in turn."""
    data = dict(zip(texts[::2], texts[1::2]))  # noqa: B905
    # The host would take it for a guest that breaks the protocol; and only the texts can be shortened.
    if not shapes.bundle(data):
        raise BadAnswer
    return fitting({"type": "result", "data": data}, data)


def ended(status: str, *, error: Optional[Dict[str, str]] = None, left: Optional[int] = None) -> bytes:
    """Return the JSON of an END whose word is the interpreter's, or of one that could not start."""
    if error is None:
        return b'{"status":"%s","exit_code":null,"signal":null,"error":null,"left":%s}' % (
            status.encode(),
            b"null" if left is None else b"%d" % left,
        )
    value = {"status": status, "exit_code": None, "signal": None, "error": error, "left": left}
    return fitting(value, error)


def exited(status: int, left: Optional[int]) -> bytes:
    """Return the JSON of an END for a process with the wait status `status`."""
    if os.WIFSIGNALED(status):
        how: Dict[str, Any] = {"status": "signal", "exit_code": None, "signal": os.WTERMSIG(status)}
    else:
        how = {"status": "exit", "exit_code": os.WEXITSTATUS(status), "signal": None}
    return frames.dumps({**how, "error": None, "left": left})


def failed(error: BaseException, what: str) -> Dict[str, str]:
    """Return the `error` of an END for something that could not start."""
    return {"name": type(error).__name__, "value": f"{what}: {error}", "traceback": ""}
