"""What only the right moment shows: the end of a channel while the host's stream is full."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import Any, cast

from kooi.guest import frames
from kooi.guest.channel import Talker, Tap
from kooi.guest.poller import Poller

_F_SETPIPE_SZ = 1031


class Narrow:
    """An agent whose stream takes one large frame, and then no more until `drain`."""

    def __init__(self) -> None:
        self.poller = Poller()
        self.lump = memoryview(bytearray(frames.CHUNK))
        self.said: list[object] = []
        self._stalled: list[Callable[[], None]] = []
        self._full = False

    def emit(self, kind: int, number: int, view: memoryview) -> None:
        self.said.append(len(view))
        self._full = len(view) == frames.CHUNK

    def crowded(self, resume: Callable[[], None]) -> bool:
        if self._full:
            self._stalled.append(resume)
        return self._full

    def finish(self, channel: Any, payload: bytes) -> None:
        self.said.append(payload)

    def drain(self) -> None:
        self._full = False
        stalled, self._stalled = self._stalled, []
        for resume in stalled:
            resume()


def test_an_end_that_waited_for_the_stream_needs_no_more_output_to_go_on() -> None:
    agent = Narrow()
    reader, writer = os.pipe()
    fcntl.fcntl(writer, _F_SETPIPE_SZ, 2 * frames.CHUNK)
    os.set_blocking(writer, False)
    tap = Tap(cast(Any, agent), reader, frames.OUT)
    talker = Talker(cast(Any, agent), 1, {})
    talker.taps = (tap,)
    tap.attach(talker)
    try:
        # A pipe that was full before is large, so more may be owed than there is.
        for _ in range(3):
            assert os.write(writer, bytes(frames.CHUNK)) == frames.CHUNK
            agent.poller.wait(0)
            agent.drain()
        assert os.write(writer, bytes(frames.CHUNK)) == frames.CHUNK
        talker.announce(frames.END, b"end")
        assert agent.said == [frames.CHUNK] * 4
        agent.drain()
        assert agent.said[4:] == [b"end"]
    finally:
        tap.close()
        os.close(writer)
