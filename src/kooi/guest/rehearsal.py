"""One run that nobody asked for: an agent takes the page faults of its first run before it has a host.

Theory of operation: a fork's first write to any page copies it, and that is most of what a first run costs an agent. So
an agent that has time before its stream comes is given a stream of its own, with a run in a context of its own whose
interpreter is this function. Everything of it is taken away again.
"""

from __future__ import annotations

import _socket as socket
import os
from typing import TYPE_CHECKING

from kooi.guest import frames
from kooi.guest.contexts import Context
from kooi.guest.hatch import Hatched, lay
from kooi.guest.interpreter import DONE, answer

if TYPE_CHECKING:
    from kooi.guest.agent import Agent

_NAME = "rehearsal"
_NOBODY = -1
_CODE = b"print(1)\n"


def rehearse(agent: Agent) -> None:
    """Serve one run to its end, and forget it."""
    host, stream = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    control, interpreter = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    control.setblocking(False)
    pipes = lay()
    context = Context(agent, pipes, Hatched(_NOBODY, control.fileno()))
    agent.play(stream.fileno(), _NAME, context)
    fields = {"op": "run", "context": _NAME, "code_bytes": len(_CODE), "stdin": False, "limits": {}}
    host.sendall(
        frames.json_frame(frames.CONFIG, 0, {"env": {}, "cwd": agent.nursery.cwd})
        + frames.json_frame(frames.OPEN, 1, fields)
        + frames.frame(frames.DATA, 1, _CODE)
    )
    agent.turn()
    os.write(pipes.out_end, b"1\n")
    interpreter.sendall(answer(DONE, 1))
    agent.turn()
    host.recv(frames.MAX_JSON)
    agent.forget(stream.fileno(), _NAME, _NOBODY)
    context.close()
    for end in (host, stream, control, interpreter):
        end.close()
    for fd in (pipes.out_end, pipes.err_end):
        os.close(fd)
