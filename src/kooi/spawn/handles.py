"""One spawner or warden per event loop, started when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from kooi.spawn.handle import SpawnerHandle

Handle = TypeVar("Handle", bound=SpawnerHandle)


class Handles(Generic[Handle]):
    """The handles of one service. `make` starts one on a loop, with what `config` returns."""

    def __init__(
        self,
        make: Callable[[asyncio.AbstractEventLoop, Mapping[str, Any]], Handle],
        config: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._make = make
        self._config = config
        self._handles: dict[asyncio.AbstractEventLoop, Handle] = {}

    def mine(self) -> Handle:
        """Return the handle of the running loop, starting one if there is none that lives."""
        loop = asyncio.get_running_loop()
        for old in [known for known in list(self._handles) if known.is_closed()]:
            self._handles.pop(old).abandon()
        handle = self._handles.get(loop)
        if handle is None or not handle.alive:
            handle = self._handles[loop] = self._make(loop, self._config())
        return handle

    async def close(self) -> None:
        """End them all; safe twice."""
        handles, self._handles = self._handles, {}
        for loop, handle in handles.items():
            if loop is asyncio.get_running_loop():
                await handle.close()
            else:
                handle.abandon()
