"""What runs first inside a container: it gets warm, closes the door behind itself and becomes the guest's agent.

Theory of operation. The image needs nothing of ours: the command line of process 1 holds just enough to read a
program (see `program`) from a descriptor, and this module is its last part. The runtime or the engine has taken the
capabilities and given the ids, namespaces, mounts and a first filter by name; here comes what none of them can do: the
exact filter with its arguments, and an agent that is not dumpable. A container that is made ahead gets as far as its
gate, with an interpreter that has run nobody's code.

Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import socket
import sys
from typing import Any, Dict, Mapping, NoReturn, Tuple

from kooi.guest import start
from kooi.linux import process, seccomp_bind

#: where the program comes from, and where a box is handed over, at runtimes that inherit descriptors
PROGRAM_FD, GATE_FD = 3, 4


def main(config: Mapping[str, Any]) -> NoReturn:
    """Serve as `config` says; see `program.settings`."""
    # Its signals and its memory are nobody's but the host's, before anything of the image is imported.
    process.set_dumpable(False)
    _warm(config["sys_path"], config["warm"])
    if config["gate"]:
        _at_the_gate(config)
    else:
        _at_once(config)


def _at_the_gate(config: Mapping[str, Any]) -> NoReturn:
    """Get ready for a box that is not asked for yet, and serve it on the stream that comes with the host's word."""
    process.close_all_but((0, 1, 2, GATE_FD))
    gate = socket.socket(fileno=GATE_FD)
    os.chdir(config["guest"]["home"])
    setup = _setup(config, -1)
    seccomp_bind.bind(config["filter"])
    ahead = None
    if not select.select([gate], [], [], 0)[0]:
        # Nobody waits for it: start the first interpreter, which is confined as this process is, and warm it.
        ahead = start.hatch_ahead(setup, _nothing)
    word, ancillary, _, _ = gate.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    if word != b"g" or not ancillary:
        os._exit(0)
    stream = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
    gate.close()
    _hush((1, 2))
    start.serve(stream, setup, ahead)


def _at_once(config: Mapping[str, Any]) -> NoReturn:
    """Serve on standard input and output."""
    for path, mode in config["folders"]:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
        os.chmod(path, mode)
    os.chdir(config["guest"]["home"])
    setup = _setup(config, os.dup(1))
    _hush((1,))
    seccomp_bind.bind(config["filter"])
    # What a container engine hears on standard error it would keep; nothing is said there any more.
    os.dup2(1, 2)
    start.serve(0, setup)


def _hush(fds: Tuple[int, ...]) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


def _nothing() -> None:
    """All that confines the code confines its agent already."""


def _warm(sys_path: Any, names: Any) -> None:
    sys.path[:] = list(sys_path)
    failed = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            failed.append(f"{name} ({error})")
    if failed:
        raise ImportError("preload: " + ", ".join(failed))
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"the warm set started {threads} threads; an agent must have one")
    gc.collect()
    gc.freeze()


def _setup(config: Mapping[str, Any], write_fd: int) -> start.Setup:
    guest: Dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in config["guest"].items()
    }
    return start.Setup(fresh=config["fresh"], write_fd=write_fd, **guest)
