"""Wait for descriptors and call their handlers: epoll where there is one, else poll."""

from __future__ import annotations

import select
from typing import Any, Callable, Container, Dict, Tuple

IN = 1
OUT = 4

_AT_ONCE = 64

Handler = Callable[[int], None]


class Poller:
    """A level-triggered event loop's core. A handler may watch and forget descriptors, its own too."""

    def __init__(self) -> None:
        self._handlers: Dict[int, Handler] = {}
        self._poll: Any = select.epoll() if hasattr(select, "epoll") else select.poll()
        self._scale = 1.0 if hasattr(select, "epoll") else 1000.0
        # Without it the module makes room for a thousand events at every call.
        self._most: Tuple[int, ...] = (_AT_ONCE,) if hasattr(select, "epoll") else ()

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
        for fd, events in self._poll.poll(seconds * self._scale if seconds >= 0 else -1, *self._most):
            handler = handlers.get(fd)
            if handler is not None:
                handler(events)

    def ready(self) -> Container[int]:
        """Return the watched descriptors that are ready now; all, watched or not, when there are too many to tell."""
        found = self._poll.poll(0, *self._most)
        return range(1 << 31) if len(found) >= _AT_ONCE else [fd for fd, _ in found]
