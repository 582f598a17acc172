"""What waits to be written to a non-blocking descriptor. Shared by host and guest.

Small frames that are put one after the other leave in one `writev`. The owner bounds what it puts by credit.
"""

from __future__ import annotations

import os
from collections import deque
from itertools import islice
from typing import Deque, Union

_AT_ONCE = 64
_SMALL = 16 * 1024

Part = Union[bytes, memoryview]


class Outbox:
    """A queue of buffers in front of a descriptor. `size` is the number of bytes that wait."""

    __slots__ = ("_fd", "_parts", "size")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._parts: Deque[Part] = deque()
        self.size = 0

    def attach(self, fd: int) -> None:
        """Write to `fd` from now on."""
        self._fd = fd

    def put(self, *parts: Part) -> None:
        """Queue buffers; they must not change until they are written."""
        for part in parts:
            if len(part):  # nothing would ever be written of an empty one, and it would never leave
                self._parts.append(part)
                self.size += len(part)

    def copy(self, head: bytes, view: memoryview) -> None:
        """Queue `head` and a view that changes as soon as this returns. What is large is written first, then copied."""
        if len(view) <= _SMALL:
            self.put(head + view)
        elif self.flush():
            try:
                count = os.writev(self._fd, (head, view) if head else (view,)) - len(head)
            except BlockingIOError:
                count = -len(head)
            if count < 0:
                self.put(head[count:], bytes(view))
            elif count < len(view):
                self.put(bytes(view[count:]))
        else:
            self.put(head, bytes(view))

    def flush(self) -> bool:
        """Write what the descriptor takes; return whether all is written. Raises `OSError` when the peer is gone."""
        parts = self._parts
        while parts:
            batch = list(parts) if len(parts) <= _AT_ONCE else list(islice(parts, _AT_ONCE))
            try:
                count = os.writev(self._fd, batch)
            except BlockingIOError:
                return False
            if count == self.size:
                self.clear()
            else:
                self._drop(count)
        return True

    def _drop(self, count: int) -> None:
        parts = self._parts
        self.size -= count
        while count:
            size = len(parts[0])
            if count < size:
                parts[0] = memoryview(parts[0])[count:]
                return
            count -= size
            parts.popleft()

    def clear(self) -> None:
        """Forget everything that waits."""
        self._parts.clear()
        self.size = 0
