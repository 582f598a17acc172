"""Podman's engine: a service of its own for as long as this process needs it, with a runtime that does what it cannot.

Podman has no daemon, and a service that others have started would not take ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from kooi.contract.backend import HostFacts
from kooi.contract.errors import LevelUnavailable
from kooi.contract.spec import Spec
from kooi.images.host import View
from kooi.linux import mounts, namespaces, process
from kooi.oci import engine_config, podman_config, runtimes
from kooi.oci.engine import Engine, owner_label
from kooi.settings import load_settings, private_dir

_FIX = "as root: apt-get install podman"
_SECONDS = 10.0


class _Podman(Engine):
    """An engine that is started first."""

    creation = "/v4.0.0/libpod/containers/create"

    def __init__(self, program: str) -> None:
        settings = load_settings()
        self._program = program
        self._folder = Path(settings.run_dir)
        self._service: subprocess.Popen[bytes] | None = None
        super().__init__("podman", "", _FIX)

    async def connect(self) -> None:
        """Start the service, and connect."""
        await self._start()
        try:
            await super().connect()
        except BaseException:
            self._stop()
            raise

    def body(
        self, spec: Spec, facts: HostFacts, view: View, command: list[str], *, image: str, uid: int
    ) -> dict[str, Any]:
        """Return what it takes instead of Docker's words, which leave it no choice of its own mounts."""
        return podman_config.config(
            spec, facts, view, command, image=image, uid=uid, owner=owner_label(), profile=self._profile()
        )

    def _profile(self) -> str:
        """Return the path of a file with the filter: Podman takes no text."""
        return self._kept("seccomp", engine_config.profile_text(os.uname().machine), 0o600)

    def _runtime(self) -> str:
        """Return the path of the program that Podman is to take for its runtime."""
        # crun refuses hosts whose control groups are of both versions.
        real = shutil.which("runc", path=runtimes.PATH) or shutil.which("crun", path=runtimes.PATH)
        if real is None:
            raise LevelUnavailable("podman has no runtime here", key="level", fix="as root: apt-get install runc")
        text = podman_config.RUNTIME.format(python=sys.executable, inodes=podman_config.INODES, runtime=real)
        return self._kept(os.path.basename(real), text, 0o700)

    def _kept(self, name: str, text: str, mode: int) -> str:
        """Return the path of a file with this text, the same for every process."""
        path = self._private() / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        if not path.exists():
            part = path.with_name(f".{path.name}.{os.getpid()}")
            part.write_text(text)
            part.chmod(mode)
            part.replace(path)
        return str(path)

    def _private(self) -> Path:
        return private_dir(private_dir(self._folder) / "podman")

    async def close(self) -> None:
        """Kill every container, and the service if it is ours; safe twice."""
        await super().close()
        self._stop()

    async def _start(self) -> None:
        folder = self._private()
        path = str(folder / f"{os.getpid()}.sock")
        runtime = self._runtime()
        argv = [self._program, "--cgroup-manager=cgroupfs", "--runtime", runtime, "system", "service", "--time=0"]
        argv.append(f"unix://{path}")
        self._service = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={"PATH": runtimes.PATH, "HOME": str(folder)}, preexec_fn=_apart,
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
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(path) == 0


def _apart() -> None:
    """End with the host, and keep the mounts of Podman's own storage to itself: they end with it."""
    namespaces.unshare(namespaces.NEWNS)
    mounts.make_private()
    process.die_with_parent()
