"""How an agent comes to be: from nothing, or with its first interpreter hatched ahead of its own confinement.

Theory of operation: three processes may do a part of it. The one that forks agents makes what all have in common
(`prepare`). A blank, before it is known what for, starts the first interpreter, which is confined for good at once,
and rehearses a run (`hatch_ahead`). That interpreter is a fork or, with `Setup.fresh`, executed; a fork may still
execute a new one in its own place, and is ready sooner than one that is forked for that (`renew`). The process that has
its stream `serve`s; what was not done before, or was done for the other kind, is done there.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # see `children`
import fcntl
import gc
import os
from typing import Callable, NamedTuple, NoReturn, Optional, Tuple

from kooi.guest.agent import Agent, StreamEnded
from kooi.guest.children import Nursery, Setup
from kooi.guest.hatch import Hatched, Pipes, hatch, lay
from kooi.guest.rehearsal import rehearse

__all__ = ["Ahead", "Setup", "hatch_ahead", "prepare", "renew", "serve"]

_prepared: Optional[Agent] = None


def prepare(setup: Setup) -> Agent:
    """Do ahead, in the process that forks agents, what `serve` need not do again for the same `env`.

    Optional: it saves each box about 0.5 ms. `env` should be the very same object later. Makes the environment of this
    process `env`. Descriptors 0 to 2 must be open.
    """
    global _prepared
    if _prepared is None or not _prepared.nursery.suits(setup):
        _prepared = Agent(setup)
    _prepared.nursery.setup = setup
    return _prepared


def _null() -> int:
    """Return a descriptor that reads as empty, after making sure that 0 to 2 are in use."""
    try:
        fd = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        fd, writer = os.pipe()
        os.close(writer)
    while fd <= 2:
        fd = os.dup(fd)
    return fd


def _above(fd: int, null: int) -> int:
    """Return a stream's descriptor, moved away when it is a standard one."""
    if not 0 <= fd <= 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.dup2(null, fd)
    return moved


def _hatch_early(nursery: Nursery) -> Tuple[Optional[Pipes], Optional[Hatched]]:
    """Start the default context's interpreter. When that cannot be, its first run tries again and tells."""
    pipes = lay()
    try:
        return pipes, hatch(nursery, pipes, nursery.null)
    except OSError:
        return pipes, None


class Ahead(NamedTuple):
    """An agent that has its first interpreter before it is confined itself."""

    agent: Agent
    interpreter: int


def hatch_ahead(setup: Setup, seal: Callable[[], None]) -> Ahead:
    """Start the default context's interpreter, confined by `seal`, and warm it, before it is known what for.

    Everything an agent needs for that is made too. For the process that will `serve` with the result. Raises `OSError`.
    """
    ready = prepare(setup)
    nursery = ready.nursery
    nursery.null = _null()
    pipes = lay()
    nursery.setup = setup._replace(confine_code=seal)
    hatched = hatch(nursery, pipes, nursery.null)
    nursery.setup = setup
    ready.settle(pipes, hatched)
    ready.context("").warm(_unheard)
    rehearse(ready)
    return Ahead(ready, hatched.pid)


def _unheard() -> None:
    """Nobody waits for an interpreter that gets warm ahead."""


def renew(ahead: Ahead) -> None:
    """Let a forked interpreter execute a new one in its place: same process, confined as it is. It ends if it cannot.

    Before the box's first run; every interpreter that starts later is a new one too. One that was executed stays.
    """
    nursery = ahead.agent.nursery
    if not nursery.setup.fresh:
        nursery.setup = nursery.setup._replace(fresh=True)
        ahead.agent.context("").renew()


def _from_nothing(setup: Setup) -> Agent:
    """Return an agent that has done nothing ahead but what its parent did for it."""
    ready = prepare(setup)
    ready.nursery.null = _null()
    ready.settle(*_hatch_early(ready.nursery))
    return ready


def serve(stream_fd: int, setup: Setup, ahead: Optional[Ahead] = None) -> NoReturn:
    """Serve the host on `stream_fd` until it goes, then kill everything and exit. Never returns.

    Call it in a process of its own, single-threaded, that is confined and not dumpable already. Signals, descriptors 0
    to 2, the environment and the collector of this process are changed. An interpreter `ahead` that is not of the kind
    that `setup.fresh` asks for is killed.
    """
    agent = None
    try:
        gc.freeze()
        if ahead is not None and ahead.agent.nursery.setup.fresh != setup.fresh:
            _discard(ahead)
            ahead = None
        agent = _from_nothing(setup) if ahead is None else ahead.agent
        null = agent.nursery.null
        read_fd = _above(stream_fd, null)
        agent.connect(read_fd, read_fd if setup.write_fd < 0 else _above(setup.write_fd, null))
        agent.serve()
    except StreamEnded:
        pass
    except BaseException as error:
        os.write(2, f"kooi guest: {type(error).__name__}: {error}\n".encode("utf-8", "backslashreplace"))
    finally:
        try:
            if agent is not None:
                agent.family.kill_all()
        finally:
            os._exit(1)


def _discard(ahead: Ahead) -> None:
    """End what was hatched ahead; its descriptors close with the next agent's children, which inherit none."""
    global _prepared
    os.kill(ahead.interpreter, _signal.SIGKILL)
    os.waitpid(ahead.interpreter, 0)
    _signal.set_wakeup_fd(-1)
    _prepared = None
