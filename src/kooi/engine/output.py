"""What a run writes, caught on the host: exact counts, a cap, and the caller's taps.

Every byte that arrives is counted; exactly the first `cap` bytes of each stream are kept and shown to the taps.
Rich results are capped together: they are text that the code wrote.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO

from kooi.contract.result import ErrorInfo, RichItem, RunEvent

MAX_RESULTS = 1_000
MAX_RESULT_CHARACTERS = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Taps:
    """The caller's functions, called on the event loop while the run runs; each may be None.

    Text is decoded as UTF-8 across chunks, undecodable bytes replaced. An exception raised by one kills the run and
    leaves the call.
    """

    stdout: Callable[[str], object] | None = None
    stderr: Callable[[str], object] | None = None
    result: Callable[[RichItem], object] | None = None
    error: Callable[[ErrorInfo], object] | None = None
    event: Callable[[RunEvent], object] | None = None

    def show_item(self, item: RichItem) -> None:
        """Show a rich result."""
        if self.result is not None:
            self.result(item)
        if self.event is not None:
            self.event(RunEvent("result", item=item))

    def show_end(self, error: ErrorInfo | None, notices: tuple[str, ...]) -> None:
        """Show how the run ended."""
        if error is not None and self.error is not None:
            self.error(error)
        if self.event is not None:
            if error is not None:
                self.event(RunEvent("error", error=error))
            for notice in notices:
                self.event(RunEvent("notice", notice.encode()))


NO_TAPS = Taps()


class Capture:
    """One stream of a run."""

    __slots__ = ("_buffer", "_decoder", "_first", "_text", "cap", "kept", "total")

    def __init__(self, cap: int | None, text: Callable[[str], object] | None = None) -> None:
        self.cap = cap
        self.kept = 0
        self.total = 0
        # One chunk is most often all. More go into a buffer that grows in place and gives its content away uncopied;
        # joining chunks would touch all memory twice.
        self._first = b""
        self._buffer: BytesIO | None = None
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if text else None

    def add(self, data: bytes) -> bytes:
        """Count `data`, keep what fits under the cap, and return that part."""
        self.total += len(data)
        if self.cap is not None and self.kept + len(data) > self.cap:
            data = data[: self.cap - self.kept]
        if data:
            if self.kept == 0:
                self._first = data
            else:
                self._append(data)
            self.kept += len(data)
            if self._text is not None:
                self._show(data, False)
        return data

    def _append(self, data: bytes) -> None:
        if self._buffer is None:
            self._buffer = BytesIO()
            self._buffer.write(self._first)
            self._first = b""
        self._buffer.write(data)

    def finish(self) -> bytes:
        """Show what the decoder still holds and return all that was kept."""
        if self._text is not None:
            self._show(b"", True)
        return self._first if self._buffer is None else self._buffer.getvalue()

    def untap(self) -> None:
        """Show nothing from now on."""
        self._text = None

    def _show(self, data: bytes, final: bool) -> None:
        if self._text is not None and self._decoder is not None and (text := self._decoder.decode(data, final)):
            self._text(text)


@dataclass(slots=True)
class Results:
    """The rich results of a run."""

    items: list[RichItem] = field(default_factory=list)
    characters: int = 0

    def add(self, data: Mapping[str, str]) -> RichItem | None:
        """Keep one MIME bundle; return None when the cap is met."""
        self.characters += sum(len(kind) + len(text) for kind, text in data.items())
        if self.characters > MAX_RESULT_CHARACTERS or len(self.items) >= MAX_RESULTS:
            return None
        item = RichItem(dict(data))
        self.items.append(item)
        return item
