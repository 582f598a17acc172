"""Levels by name: a literal table of built-ins; the entry points `kooi.backends` add names and never replace one.

A backend is imported when it is named, made once per process and closed when the process exits. A forked child
forgets its parent's backends without touching them: they are the parent's to close.
"""

from __future__ import annotations

import asyncio
import atexit
import difflib
import importlib
import importlib.metadata
import os
import threading
from collections.abc import Iterator
from typing import cast

from kooi.contract.backend import Availability, Backend
from kooi.contract.errors import InvalidRequest, KooiError, LevelUnavailable
from kooi.contract.result import Strength
from kooi.contract.spec import Spec
from kooi.engine.enforce import host_facts
from kooi.settings import load_settings

GROUP = "kooi.backends"

# Cheapest first: the order in which `choose` looks.
BUILT_IN = {
    "process": "kooi.backends.process:ProcessBackend",
    "confined": "kooi.backends.confined:ConfinedBackend",
    "jail": "kooi.backends.jail:JailBackend",
    "container": "kooi.backends.container:ContainerBackend",
}
# Names that are taken, so that no plug-in can pose as one of them.
NOT_BUILT = ("wasm", "gvisor", "microvm", "e2b")

_ORDER: tuple[Strength, ...] = ("none", "kernel-shared", "emulated", "kernel-own", "machine")
CLOSE_SECONDS = 5.0


class _Held:
    """The backends of one process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.lock = threading.Lock()
        self.backends: dict[str, Backend] = {}
        self.loops: dict[str, asyncio.AbstractEventLoop] = {}


_held: dict[int, _Held] = {}


def levels() -> tuple[str, ...]:
    """Return every level name that can be asked for: built-in ones, then those that entry points add."""
    return (*BUILT_IN, *sorted(point.name for point in _points()))


def find(level: str) -> Backend:
    """Return the backend of a level; raise `LevelUnavailable` when there is none, with the nearest names."""
    held = _mine()
    backend = held.backends.get(level)
    if backend is None:
        with held.lock:
            backend = held.backends.get(level)
            if backend is None:
                backend = held.backends[level] = _pooled(_load(level))
    return backend


def opened_on(level: str, loop: asyncio.AbstractEventLoop) -> None:
    """Remember the loop on which a level's boxes live, so that it can be closed there."""
    _mine().loops[level] = loop


async def choose(at_least: Strength) -> str:
    """Return the cheapest level that runs on this host and is at least that strong; else raise `LevelUnavailable`.

    One that is open somewhere by its name is taken only where no other is left.
    """
    if at_least not in (*_ORDER, "remote"):
        raise InvalidRequest(f"at_least={at_least!r} is not a strength", key="at_least", fix=f"use one of {_ORDER}")
    reasons, second = [], ""
    for name in levels():
        try:
            backend = find(name)
            held = backend.enforcement(Spec(level=name), host_facts())
            if not _strong_enough(held.strength, at_least):
                continue
            found = await backend.probe()
        except KooiError as error:
            reasons.append(f"{name}: {error}")
            continue
        if found.ok and held.waivers and at_least != "none":
            second = second or name
            continue
        if found.ok:
            return name
        reasons.append(f"{name}: {found.reason or 'it did not start'}" + (f" ({found.fix})" if found.fix else ""))
    if second:
        return second
    seen = "; ".join(reasons) or "no level of this version is that strong"
    raise LevelUnavailable(f"no level here is at least {at_least}: {seen}", key="level", fix="see `kooi doctor`")


async def probe_all() -> dict[str, Availability]:
    """Return for every level whether it runs on this host, proved by starting it; never raises for one of them."""
    found = {name: await _probe(name) for name in levels()}
    for name in NOT_BUILT:
        found.setdefault(name, Availability(False, _not_built(name).message, _not_built(name).fix))
    return found


async def close_all() -> None:
    """Close every backend of this process. They are made again when they are named again."""
    held = _mine()
    with held.lock:
        backends, held.backends = held.backends, {}
    for backend in backends.values():
        await backend.close()


def _strong_enough(strength: Strength, at_least: Strength) -> bool:
    if strength == "remote" or at_least == "remote":
        return strength == at_least
    return _ORDER.index(strength) >= _ORDER.index(at_least)


async def _probe(name: str) -> Availability:
    try:
        return await find(name).probe()
    except KooiError as error:
        return Availability(False, error.message, error.fix)


def _mine() -> _Held:
    pid = os.getpid()
    held = _held.get(pid)
    if held is None:
        made = _Held(pid)
        held = _held.setdefault(pid, made)  # of two threads that come here at once, one wins
        if held is made:
            atexit.register(_close_at_exit, held)
    return held


def _load(level: str) -> Backend:
    if target := BUILT_IN.get(level):
        module, _, name = target.partition(":")
        try:
            backend: Backend = getattr(importlib.import_module(module), name)()
        except ImportError as error:
            raise LevelUnavailable(f"level {level!r} cannot run here: {error}", key="level") from error
        return backend
    if level in NOT_BUILT:
        raise _not_built(level)
    for point in _points():
        if point.name == level:
            return _plugged(point)
    known = (*levels(), *NOT_BUILT)
    near = difflib.get_close_matches(str(level), known, n=3) or list(levels())
    raise LevelUnavailable(f"there is no level {level!r}", key="level", fix=f"did you mean {', '.join(near)}?")


def _pooled(backend: Backend) -> Backend:
    """Return the backend, or a pool around it where the operator's settings ask for one."""
    settings = load_settings()
    if settings.pool_size == 0:
        return backend
    from kooi.engine.pool import Pool

    # A pool has its inner backend's name, so its own is no constant of the class.
    return cast(Backend, Pool(backend, size=settings.pool_size, memory_bytes=settings.pool_memory_bytes))


def _plugged(point: importlib.metadata.EntryPoint) -> Backend:
    try:
        backend: Backend = point.load()()
    except Exception as error:
        message = f"level {point.name!r} is a plug-in ({point.value}) that cannot be loaded: {error!r}"
        raise LevelUnavailable(message, key="level") from error
    return backend


def _not_built(level: str) -> LevelUnavailable:
    has = ", ".join(BUILT_IN)
    return LevelUnavailable(f"level {level!r} is not in this version of kooi", key="level", fix=f"it has {has}")


def _points() -> Iterator[importlib.metadata.EntryPoint]:
    for point in importlib.metadata.entry_points(group=GROUP):
        if point.name not in BUILT_IN and point.name not in NOT_BUILT:
            yield point


def _close_at_exit(held: _Held) -> None:
    """Close this process's backends on the loop their boxes live on; a child's exit leaves its parent's alone."""
    if held.pid != os.getpid():
        return
    backends, held.backends = held.backends, {}
    for name, backend in backends.items():
        loop = held.loops.get(name)
        try:
            if loop is not None and loop.is_running():
                asyncio.run_coroutine_threadsafe(backend.close(), loop).result(CLOSE_SECONDS)
            else:
                asyncio.run(asyncio.wait_for(backend.close(), CLOSE_SECONDS))
        except (KooiError, OSError, RuntimeError, TimeoutError, asyncio.TimeoutError):
            continue  # The process is going; what is left falls to the reaper.
