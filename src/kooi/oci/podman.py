"""Podman's engine: its service where one listens, else one of our own for as long as this process needs it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from kooi.contract.errors import LevelUnavailable
from kooi.linux import process
from kooi.oci import runtimes
from kooi.oci.engine import Engine
from kooi.settings import load_settings, private_dir

_FIX = "as root: apt-get install podman"
_SECONDS = 10.0
_LISTENS = "/run/podman/podman.sock"


class _Podman(Engine):
    """An engine that may have to be started first."""

    def __init__(self, program: str) -> None:
        settings = load_settings()
        self._program = program
        self._folder = Path(settings.run_dir)
        self._service: subprocess.Popen[bytes] | None = None
        super().__init__("podman", _LISTENS if os.geteuid() == 0 and _answers(_LISTENS) else "", _FIX)

    async def connect(self) -> None:
        """Start the service where none listens, and connect."""
        if not self.path:
            await self._start()
        try:
            await super().connect()
        except BaseException:
            self._stop()
            raise

    async def close(self) -> None:
        """Kill every container, and the service if it is ours; safe twice."""
        await super().close()
        self._stop()

    async def _start(self) -> None:
        folder = private_dir(private_dir(self._folder) / "podman")
        path = str(folder / f"{os.getpid()}.sock")
        runtime = shutil.which("crun", path=runtimes.PATH) or shutil.which("runc", path=runtimes.PATH)
        chosen = ["--runtime", runtime] if runtime else []
        argv = [self._program, "--cgroup-manager=cgroupfs", *chosen, "system", "service", "--time=0", f"unix://{path}"]
        self._service = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={"PATH": runtimes.PATH, "HOME": str(folder)}, preexec_fn=_die_with_parent(),
        )  # fmt: skip
        for _ in range(int(_SECONDS / 0.02)):
            if _answers(path):
                self.path = path
                return
            if self._service.poll() is not None:
                break
            await asyncio.sleep(0.02)
        self._stop()
        raise LevelUnavailable("podman's service does not start", key="level", fix="see `podman info`")

    def _stop(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.send_signal(signal.SIGKILL)
            service.wait()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            self.path = ""


def podman() -> Engine:
    """Return Podman's engine. Raises `LevelUnavailable` where it is not installed."""
    program = shutil.which("podman", path=runtimes.PATH)
    if program is None:
        raise LevelUnavailable("podman is not on this host", key="level", fix=_FIX)
    return _Podman(program)


def _answers(path: str) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(path) == 0


def _die_with_parent() -> Callable[[], None]:
    return process.die_with_parent
