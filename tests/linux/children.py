"""Run a function in a forked child and bring back what it returned: for everything that cannot be undone."""

from __future__ import annotations

import json
import os
import select
import signal
import traceback
from collections.abc import Callable
from typing import Any


def in_child(function: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Return what `function` returns (as JSON) in a forked child; raise `AssertionError` with its traceback."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_fd)
            try:
                answer = {"value": function()}
            except BaseException:
                answer = {"error": traceback.format_exc()}
            os.write(write_fd, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    data = _read(read_fd, pid, seconds)
    _, status = os.waitpid(pid, 0)
    assert data, f"the child ended without an answer (wait status {status:#x}) or took over {seconds} s"
    answer = json.loads(data)
    assert "error" not in answer, answer["error"]
    return answer["value"]


def _read(fd: int, pid: int, seconds: float) -> bytes:
    data = b""
    try:
        while select.select([fd], [], [], seconds)[0]:
            part = os.read(fd, 65536)
            if not part:
                return data
            data += part
        os.kill(pid, signal.SIGKILL)
        return b""
    finally:
        os.close(fd)


def errno_of(function: Callable[..., Any], *args: Any) -> int:
    """Return 0 when the call works, else the errno of its `OSError`."""
    try:
        function(*args)
    except OSError as error:
        assert error.errno is not None
        return error.errno
    return 0
