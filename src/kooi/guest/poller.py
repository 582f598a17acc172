"""Wait for descriptors and call their handlers: epoll where there is one, else poll."""

from __future__ import annotations

import select
from typing import Any, Callable, Dict

IN = 1
OUT = 4

Handler = Callable[[int], None]


class Poller:
    """A level-triggered event loop's core. A handler may watch and forget descriptors, its own too."""

    def __init__(self) -> None:
        self._handlers: Dict[int, Handler] = {}
        self._poll: Any = select.epoll() if hasattr(select, "epoll") else select.poll()
        self._scale = 1.0 if hasattr(select, "epoll") else 1000.0

    def watch(self, fd: int, mask: int, handler: Handler) -> None:
        """Call `handler(events)` whenever `fd` is ready for `mask`; replaces what was asked for it before."""
        if fd in self._handlers:
            self._poll.modify(fd, mask)
        else:
            self._poll.register(fd, mask)
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        """Stop watching `fd`, before it is closed. Safe for one that is not watched."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def wait(self, seconds: float) -> None:
        """Wait for at most `seconds` (negative: for ever), then call the handlers of what is ready."""
        handlers = self._handlers
        for fd, events in self._poll.poll(seconds * self._scale if seconds >= 0 else -1):
            handler = handlers.get(fd)
            if handler is not None:
                handler(events)
