"""What a context's interpreter hears from its agent. Imports nothing: see `interpreter`.

Code may raise from a signal handler at any moment: so reading bytes and keeping them are one call here, and whoever was
interrupted goes on where it was.
"""

import posix

from kooi.guest.streams import CONTROL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

_CHUNK = 256 * 1024


class Gone(BaseException):
    """The agent is gone."""


def receive(into: "List[bytes]", size: int) -> None:
    """Read at most `size` bytes from the agent into a list. Raises `Gone` without an agent."""
    try:
        into.extend(map(posix.read, (CONTROL,), (size,)))
    except OSError as error:
        if error.errno is not None:
            raise Gone from None
    if into and not into[-1]:
        raise Gone


class Body:
    """Exactly `size` bytes from the agent, as far as they have come."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._parts: "List[bytes]" = []
        self._dropped = 0

    def fill(self) -> None:
        """Read until all is here or, where it does not fit in memory, gone by. May go on after an exception."""
        while left := self._size - self._dropped - sum(map(len, self._parts)):
            try:
                receive(self._parts, min(left, _CHUNK))
            except MemoryError:
                parts, self._parts = self._parts, []
                self._dropped += sum(map(len, parts))

    def value(self) -> "Optional[bytes]":
        """Return the bytes; None when they do not fit in memory."""
        if self._dropped:
            return None
        try:
            return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        except MemoryError:
            return None
