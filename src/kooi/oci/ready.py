"""The image that a container has when none is named: `python` of the store, built from this host at its first use."""

from __future__ import annotations

import asyncio
import logging
import threading

from kooi.contract.errors import InvalidPolicy
from kooi.images import build
from kooi.images.store import Store

NAME = "python"
_log = logging.getLogger("kooi")
_lock = threading.Lock()


async def ready_image() -> str:
    """Return the name of that image; it is built if it is not there. Raises `SetupFailed` or `Unsupported`."""
    if _found():
        return NAME
    await asyncio.to_thread(_build)
    return NAME


def _found() -> bool:
    try:
        Store.of_user().resolve(NAME)
    except InvalidPolicy:
        return False
    return True


def _build() -> None:
    with _lock:
        if _found():
            return
        _log.warning(
            "kooi: the level container needs an image; building %r from this host's Python, once (about 10 s)", NAME
        )
        build.build(Store.of_user(), NAME, build.DEFINITIONS[NAME])
