"""Messages between host, spawner, zygotes and blanks: one packet each, a JSON head and raw bytes after a NUL.

Used inside the cell too: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import array
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MAX_MESSAGE = 1 << 18
# To a blank: go on, and hatch an interpreter by forking or by executing one; or, with a request waiting that is not a
# fresh one, go on without doing anything ahead that the request does not need.
GO, GO_FRESH, GO_NOW = b"go", b"go fresh", b"go now"
_MAX_FDS = 4


def send(connection: socket.socket, head: Mapping[str, Any], body: bytes = b"", fds: Sequence[int] = ()) -> None:
    """Send one packet with descriptors; raise `OSError` when the peer is gone or its queue is full."""
    data = json.dumps(head, separators=(",", ":")).encode()
    parts = [data, b"\0", body] if body else [data]
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg(parts, rights)


def receive_packet(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one packet as it is, and its descriptors (close-on-exec); empty at the end of the stream."""
    received = array.array("i")
    # Room for the largest would be mapped and given back for each, which costs more than to ask for its size.
    size = min(connection.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC), MAX_MESSAGE)
    data, ancillary, _flags, _address = connection.recvmsg(
        max(size, 1), socket.CMSG_SPACE(_MAX_FDS * received.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
    return data, list(received)


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, bytes, list[int]]:
    """Receive one packet: its head (None at the end of the stream), body and descriptors.

    Raises `ValueError` for anything that is not a message; its descriptors are closed.
    """
    data, fds = receive_packet(connection)
    if not data:
        close_all(fds)
        return None, b"", []
    head, _, body = data.partition(b"\0")
    try:
        value = json.loads(head)
        if not isinstance(value, dict):
            raise ValueError("a message must be a JSON object")
    except (ValueError, RecursionError) as error:
        close_all(fds)
        raise ValueError(f"not a message: {error}") from None
    return value, body, fds


class Outbox:
    """Sends on a non-blocking socket and keeps what does not fit; `want_write` is told when to watch for room."""

    def __init__(self, connection: socket.socket, want_write: Callable[[bool], None]) -> None:
        self._connection = connection
        self._want_write = want_write
        self._queue: deque[tuple[Mapping[str, Any], bytes, list[int]]] = deque()

    def send(self, head: Mapping[str, Any], body: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Send one packet now or as soon as there is room, in order. Raises `OSError` when the peer is gone."""
        if not self._queue:
            try:
                send(self._connection, head, body, fds)
                return
            except BlockingIOError:
                self._want_write(True)
        self._queue.append((head, body, [os.dup(fd) for fd in fds]))

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        while self._queue:
            head, body, fds = self._queue[0]
            try:
                send(self._connection, head, body, fds)
            except BlockingIOError:
                return
            self._queue.popleft()
            close_all(fds)
        self._want_write(False)

    def clear(self) -> None:
        """Forget what waits: nobody will take it."""
        while self._queue:
            close_all(self._queue.popleft()[2])


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that came with a message nobody wanted."""
    for fd in fds:
        os.close(fd)
