"""What a context's interpreter hears from its agent, but for the runs. Imports nothing: see `interpreter`.

Code may raise from a signal handler at any moment: so reading bytes and keeping them are one call here, and whoever was
interrupted goes on where it was.
"""

import posix

from kooi.guest.streams import CONTROL, SPARE_ERR, SPARE_OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, NoReturn, Optional, Sequence

HEADER_BYTES = 18
#: how the header begins that has, in place of a run's, a program to execute
EXECUTE = b"X"

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


def execution(command: "Sequence[str]") -> bytes:
    """Return what makes an interpreter execute `command` in its place."""
    body = "\0".join(command).encode("utf-8", "surrogateescape")
    return EXECUTE + len(body).to_bytes(HEADER_BYTES - 1, "big") + body


def execute(head: bytes) -> "NoReturn":
    """Execute the command that follows `head`. What is not a new interpreter then is none at all."""
    try:
        body = Body(int.from_bytes(head[1:], "big"))
        body.fill()
        command = (body.value() or b"").split(b"\0")
        for fd in (CONTROL, SPARE_OUT, SPARE_ERR):
            posix.set_inheritable(fd, True)
        posix.execv(command[0], command)
    finally:
        posix._exit(127)
