"""One operation in a guest, as its caller holds it: its end, its input, its credit. Made by `Client.open`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kooi.contract.errors import InvalidRequest, KooiError
from kooi.guest import frames
from kooi.guest.frames import Credit

if TYPE_CHECKING:
    from kooi.engine.client import Client

OnBytes = Callable[[bytes], bool | None]
OnEvent = Callable[[Mapping[str, Any]], bool | None]
OnEnd = Callable[[Mapping[str, Any] | None, Exception | None], None]


class GuestGone(KooiError):
    """The stream to the guest ended before the call did."""

    code = "guest_gone"


class GuestViolation(KooiError):
    """The guest broke the protocol; it must not be trusted any more."""

    code = "guest_violation"


class Call:
    """One operation in the guest.

    `done` gives END's JSON, checked; it raises `GuestGone` or `GuestViolation` when there will be none. Cancelling
    `done` does not end the operation; `signal(9)` does. `on_end` hears the same as `done`, at once and not a turn of
    the loop later.
    """

    __slots__ = (
        "_body", "_body_ended", "_callbacks", "_channel", "_client", "_credit", "_on_event", "_open", "_takes_input",
        "_waiters", "done", "on_end", "op",
    )  # fmt: skip

    def __init__(self, client: Client, channel: int, op: str, takes_input: bool) -> None:
        self.op = op
        self.done: asyncio.Future[Mapping[str, Any]] = client.loop.create_future()
        self._client = client
        self._channel = channel
        self._credit = Credit()
        self._callbacks: dict[int, OnBytes | None] = {}
        self._on_event: OnEvent | None = None
        self.on_end: OnEnd | None = None
        self._open = True
        self._takes_input = takes_input
        self._body: deque[memoryview] = deque()
        self._body_ended = False
        self._waiters: list[asyncio.Future[None]] = []

    def signal(self, number: int) -> None:
        """Send signal `number` (1 to 64) to what the call started; 9 ends the call itself. No effect after END."""
        if not 1 <= number <= 64:
            raise InvalidRequest(f"signal {number} is not between 1 and 64", key="signal")
        if self._open:
            self._client._send(frames.json_frame(frames.CONTROL, self._channel, {"signal": number}))

    async def write(self, data: bytes) -> None:
        """Send input; return once it is on its way, so that no caller runs ahead of the guest.

        `data` must not change meanwhile. What the guest no longer wants, because the call has ended, is dropped, as a
        closed pipe would. Raises `InvalidRequest` when the call takes no input or its end was said.
        """
        if not self._takes_input or self._body_ended:
            raise InvalidRequest(f"this {self.op} takes no more input", key="data")
        self._feed(data)
        self._client._pump(self)
        if self._body:
            waiter: asyncio.Future[None] = self._client.loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def end_input(self) -> None:
        """Say that no more input will come. Safe twice."""
        if self._takes_input and not self._body_ended:
            self._body_ended = True
            self._client._pump(self)

    def grant(self, amount: int | None = None) -> None:
        """Let the guest send more, after a callback returned False; `None` means all that was withheld.

        Raises `InvalidRequest` for more than was withheld.
        """
        withheld = self._credit.outstanding
        amount = withheld if amount is None else amount
        if not 0 <= amount <= withheld:
            raise InvalidRequest(f"a grant of {amount} bytes, {withheld} are withheld", key="amount")
        if self._open:
            self._client._consumed(self, amount)

    def _feed(self, data: bytes) -> None:
        if data and self._open:
            self._body.append(memoryview(data).cast("B"))

    def _finish(self, result: Mapping[str, Any] | None, error: Exception | None) -> None:
        """Close the channel: nothing more is sent or delivered on it."""
        self._open = False
        self._body.clear()
        if self._waiters:
            self._release()
        self._settle(result, error)

    def _settle(self, result: Mapping[str, Any] | None, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(result or {})
        else:
            self.done.set_exception(error)
            self.done.exception()  # an unawaited call that failed with its client is not worth a log line
        if self.on_end is not None:
            self.on_end(result, error)

    def _release(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
