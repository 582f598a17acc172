"""The three standard streams of a context's interpreter. Imports nothing: see `interpreter`."""

import posix
import sys
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

CONTROL, SPARE_OUT, SPARE_ERR = 63, 62, 61


class Streams:
    """The code's three streams. Whatever the code did to them, each run finds them as they should be.

    May be made ahead, in the process that forks: then descriptors 1 and 2 must be pipes there too.
    """

    def __init__(self) -> None:
        self._fed = False
        self._pipes: "Tuple[Tuple[int, int], ...]" = ()
        self._renew_output()
        self._renew_input()

    def install(self) -> None:
        """Become the streams of this process, whose pipes are at their spare numbers too."""
        self._pipes = _identity(0), _identity(SPARE_OUT), _identity(SPARE_ERR)
        sys.__stdout__, sys.__stderr__, sys.__stdin__ = self._out, self._err, self._in  # type: ignore[misc]

    def _renew_output(self) -> None:
        self._out, self._err = _text_output(1), _text_output(2)

    def _renew_input(self) -> None:
        self._in = TextIOWrapper(BufferedReader(FileIO(0, "r", False)), "utf-8", "surrogateescape")

    def ready(self, fed: bool) -> None:
        """Put descriptors 0 to 2 and their text objects right; `fed` says that input was just planted at 0."""
        source, out, err = self._pipes
        if _identity(1) != out:
            _replant(SPARE_OUT, 1)
        if _identity(2) != err:
            _replant(SPARE_ERR, 2)
        if self._out.closed or self._err.closed:
            self._renew_output()
        if fed or self._fed or self._in.closed or _identity(0) != source:
            if not fed:
                _close_input()
            self._fed = fed
            self._renew_input()
            self._pipes = _identity(0), out, err
        sys.stdout, sys.stderr, sys.stdin = self._out, self._err, self._in

    def flush(self) -> None:
        """Flush what the code printed: what it put in place of its streams, then the real ones."""
        theirs = getattr(sys, "stdout", None), getattr(sys, "stderr", None)
        ours = self._out, self._err
        untouched = theirs[0] is ours[0] and theirs[1] is ours[1]
        for stream in ours if untouched else (*theirs, *ours):
            try:
                stream.flush()  # type: ignore[union-attr]
            except BaseException:
                if stream is self._out or stream is self._err:
                    self._renew_output()


def prepare_streams() -> Streams:
    """Make the streams of interpreters to come, while descriptors 0 to 2 are what they will be there."""
    saved = [posix.dup(fd) for fd in range(3)]
    reader, writer = posix.pipe()
    null = posix.open("/dev/null", posix.O_RDONLY)
    try:
        for fd, source in enumerate((null, writer, writer)):
            posix.dup2(source, fd)
        return Streams()
    finally:
        for fd, source in enumerate(saved):
            posix.dup2(source, fd)
        for fd in (*saved, reader, writer, null):
            posix.close(fd)


def _text_output(fd: int) -> TextIOWrapper:
    return TextIOWrapper(BufferedWriter(FileIO(fd, "w", False)), "utf-8", "backslashreplace", None, True)


def _identity(fd: int) -> "Tuple[int, int]":
    try:
        number, device = posix.fstat(fd)[1:3]
    except OSError:
        return (-1, -1)
    return device, number


def _replant(spare: int, fd: int) -> None:
    try:
        posix.dup2(spare, fd)
    except OSError:
        pass  # the code closed the spare as well: it does not want to be heard


def _close_input() -> None:
    """Put an empty input at descriptor 0."""
    try:
        null = posix.open("/dev/null", posix.O_RDONLY)
    except OSError:
        null, writer = posix.pipe()
        posix.close(writer)
    posix.dup2(null, 0)
    if null:
        posix.close(null)


def receive_input() -> None:
    """Take the descriptor that the agent sent along and plant it at 0."""
    from _socket import CMSG_SPACE, socket

    control = socket(fileno=CONTROL)
    try:
        _, passed, _, _ = control.recvmsg(1, CMSG_SPACE(4))
    finally:
        control.detach()
    fd = int.from_bytes(passed[0][2][:4], sys.byteorder)
    posix.dup2(fd, 0)
    posix.close(fd)
