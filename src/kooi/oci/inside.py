"""What runs first inside a container: it gets warm, closes the door behind itself and becomes the guest's agent.

Theory of operation. The image needs nothing of ours: the command line of process 1 holds just enough to read a
program (see `program`) from a descriptor, and this module is its last part. The runtime or the engine has taken the
capabilities and given the ids, namespaces, mounts and a first filter by name; here comes what none of them can do: the
exact filter with its arguments, and an agent that is not dumpable. Until the host's `GO` nothing of that is needed, so
the interpreter gets ready meanwhile.

Runs inside the box: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from kooi.guest import start
from kooi.linux import process, seccomp_bind

#: where the program comes from, and where the host says that the box may begin, at runtimes that inherit descriptors
PROGRAM_FD, GATE_FD = 3, 4


def main(config: Mapping[str, Any]) -> NoReturn:
    """Serve on standard input and output as `config` says; see `program.settings`."""
    # Its signals and its memory are nobody's but the host's, before anything of the image is imported.
    process.set_dumpable(False)
    _warm(config["sys_path"], config["warm"])
    if config["gate"]:
        if os.read(GATE_FD, 1) != b"g":
            os._exit(0)
        _close_others()
    for path, mode in config["folders"]:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, mode)
        os.chmod(path, mode)
    os.chdir(config["guest"]["home"])
    setup = _setup(config["guest"], config["fresh"], -1 if config["gate"] else os.dup(1))
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (1, 2) if config["gate"] else (1,):
        os.dup2(null, fd)
    os.close(null)
    seccomp_bind.bind(config["filter"])
    if not config["gate"]:
        # What a container engine hears on standard error it would keep or log; nothing is said there any more.
        os.dup2(1, 2)
    start.serve(0, setup)


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


def _close_others() -> None:
    process.close_all_but((0, 1, 2))


def _setup(guest: Mapping[str, Any], fresh: bool, write_fd: int) -> start.Setup:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in guest.items()}
    return start.Setup(fresh=fresh, write_fd=write_fd, **values)
