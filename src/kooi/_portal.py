"""One event loop in one daemon thread per process, and the way into it for blocking callers.

Theory of operation. A caller hands a coroutine function to the loop's thread and waits on a lock until its task is
done. Whatever interrupts that wait (Ctrl-C above all) cancels the task and waits again until it is really done, so no
call returns while what it started still runs. Callbacks of the caller are not run on the loop's thread, where a slow
one would hold up every other sandbox: they are queued and run by the waiting caller itself.

After a fork the child has the parent's portal object but not its thread. It forgets the object without closing it
(closing would unregister descriptors from an epoll instance that both processes share) and makes its own when needed.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Callbacks = SimpleQueue[Callable[[], object] | None]

_lock = threading.Lock()
_portal: Portal | None = None
_graves: list[Portal] = []
_hooked = False


def portal() -> Portal:
    """Return this process's portal, started when first needed."""
    global _portal, _hooked
    if _portal is None:
        with _lock:
            if not _hooked:
                os.register_at_fork(after_in_child=_after_fork)
                _hooked = True
            if _portal is None:
                _portal = Portal()
    return _portal


def _after_fork() -> None:
    global _lock, _portal
    _lock = threading.Lock()  # another thread of the parent may have held it
    if _portal is not None:
        _graves.append(_portal)  # kept, so that nothing of it is closed by being collected
        _portal = None


class _Ticket(Generic[T]):
    """One call on its way through the portal."""

    __slots__ = ("_cancelled", "_error", "_queue", "_task", "_value", "_waiting", "over")

    def __init__(self, queue: Callbacks | None) -> None:
        self._task: asyncio.Task[None] | None = None
        self._value: T
        self._error: BaseException | None = None
        self._cancelled = False
        self._queue = queue
        self._waiting = threading.Lock()
        self._waiting.acquire()
        self.over = False

    # On the loop's thread:

    def start(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        if not self._cancelled:
            self._task = loop.create_task(self._carry_out(work))

    async def _carry_out(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Do the work and let the caller go on within the task's last step, not a turn of the loop later."""
        try:
            self._value = await work()
        except BaseException as error:
            self._error = error
        self._release()

    def cancel(self) -> None:
        """End the task, or see to it that it never starts: what was handed over first comes first."""
        self._cancelled = True
        if self._task is None:
            self._release()
        else:
            self._task.add_done_callback(self._finish)
            self._task.cancel()

    def _finish(self, task: asyncio.Task[None]) -> None:
        """Take the end of a task that was cancelled before its first step."""
        if not self.over:
            self._error = asyncio.CancelledError()
            self._release()

    def _release(self) -> None:
        if self.over:
            return
        self.over = True
        self._waiting.release()
        if self._queue is not None:
            self._queue.put(None)

    # On the caller's thread:

    def wait(self) -> T:
        """Run the callbacks that come until the task is done, and return its result."""
        if self._queue is None:
            self._waiting.acquire()
        else:
            while (callback := self._queue.get()) is not None:
                callback()
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            self._error = None  # no cycle of error, traceback and ticket

    def wait_over(self) -> None:
        """Wait until the task is done; return at once if it was, whoever took the lock."""
        while not self.over:
            self._waiting.acquire(timeout=1.0)


class Portal:
    """The loop and its thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._arrivals: deque[Callable[[], None]] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if hasattr(os, "eventfd") else -1
        if self._bell >= 0:
            self.loop.add_reader(self._bell, self._arrived)
        self._thread = threading.Thread(target=self._serve, name="kooi", daemon=True)
        self._thread.start()

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on the loop and return what it returns or raise what it raises.

        Functions passed as `on_...` run in the calling thread. Interrupted, or left by one of those, it cancels the
        coroutine and returns only when that is over.
        """
        if threading.get_ident() == self._thread.ident:
            raise RuntimeError("a blocking call from the loop's own thread would wait for itself: use AsyncSandbox")
        queue = _redirected(kwargs)
        ticket: _Ticket[T] = _Ticket(queue)
        try:
            context = contextvars.copy_context()
            work = functools.partial(function, *args, **kwargs)
            self._hand_over(lambda: context.run(ticket.start, self.loop, work))
            return ticket.wait()
        except BaseException:
            if not ticket.over:
                self._put_down(ticket)
            raise

    def iterate(self, events: AsyncIterator[T]) -> Iterator[T]:
        """Yield what an async iterator yields, one step at a time."""
        while (event := self.call(_next, events)) is not None:
            yield event

    def _hand_over(self, job: Callable[[], None]) -> None:
        """Have the loop's thread do `job`. An eventfd wakes it with half the work of the loop's own socket pair."""
        if self._bell < 0:
            self.loop.call_soon_threadsafe(job)
            return
        self._arrivals.append(job)
        os.eventfd_write(self._bell, 1)

    def _arrived(self) -> None:
        os.eventfd_read(self._bell)
        while self._arrivals:
            self._arrivals.popleft()()

    def _put_down(self, ticket: _Ticket[Any]) -> None:
        """Cancel the ticket's task and wait for its end, however often that is interrupted."""
        while not ticket.over:
            try:
                self._hand_over(ticket.cancel)
                ticket.wait_over()
            except KeyboardInterrupt:
                continue

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


async def _next(events: AsyncIterator[T]) -> T | None:
    try:
        return await events.__anext__()
    except StopAsyncIteration:
        return None


def _redirected(kwargs: dict[str, Any]) -> Callbacks | None:
    """Put functions that queue themselves in the place of every `on_` argument; None if there are none."""
    names = [name for name, value in kwargs.items() if value is not None and name.startswith("on_")]
    if not names:
        return None
    queue: Callbacks = SimpleQueue()
    for name in names:
        kwargs[name] = _queued(queue, kwargs[name])
    return queue


def _queued(queue: Callbacks, function: Callable[[Any], object]) -> Callable[[Any], None]:
    return lambda value: queue.put(lambda: function(value))
