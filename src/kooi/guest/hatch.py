"""Start an interpreter: what `contexts` and the agent's first moment have in common.

Theory of operation: a forked interpreter and its agent share every page until one of them writes to it, and copying the
page is most of what a start costs. So the agent forks its first interpreter before it has done anything else: then both
get ready at the same time, and neither copies what the other has touched already.
"""

from __future__ import annotations

import _socket as socket  # the plain module, without enums: see `children`
import os
from typing import List, NamedTuple, Optional, Tuple

from kooi.guest import fresh
from kooi.guest.children import Nursery
from kooi.guest.interpreter import Interpreter
from kooi.guest.reseed import reseed
from kooi.guest.streams import CONTROL, SPARE_ERR, SPARE_OUT

#: number, code, whether input is planted
First = Tuple[int, bytes, bool]


class Pipes(NamedTuple):
    """Both ends of what an interpreter writes to, kept by its context."""

    out: int
    out_end: int
    err: int
    err_end: int


class Hatched(NamedTuple):
    """An interpreter that was started: its pid, our end of its control socket, and what it must be sent before all."""

    pid: int
    control: int
    owed: bytes = b""


def lay() -> Pipes:
    """Make the pipes of a context."""
    return Pipes(*os.pipe(), *os.pipe())


def hatch(nursery: Nursery, pipes: Pipes, source: int, first: Optional[First] = None) -> Hatched:
    """Start an interpreter with the descriptor `source` as its input, and with its first run if that is in memory.

    Raises `OSError` when there can be no more processes.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    out, err = pipes.out_end, pipes.err_end
    plan = ((theirs.fileno(), CONTROL), (out, SPARE_OUT), (err, SPARE_ERR), (source, 0), (out, 1), (err, 2))
    owed = b""
    try:
        if nursery.setup.fresh:
            command, owed = anew(nursery)
            pid = nursery.spawn(command, plan)
        else:
            pid = nursery.start(plan, lambda: _live(nursery, first))
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    control = ours.detach()
    os.set_blocking(control, False)
    return Hatched(pid, control, owed)


def anew(nursery: Nursery) -> Tuple[List[str], bytes]:
    """Return the command that executes a new interpreter, and the program that this takes first."""
    setup, program = nursery.setup, nursery.program
    return fresh.command(setup.python_argv, setup.sys_path, nursery.cwd, len(program)), program


def _live(nursery: Nursery, first: Optional[First]) -> None:
    setup = nursery.setup
    reseed()
    Interpreter(setup.python_argv, setup.sys_path, nursery.streams).serve(first)
