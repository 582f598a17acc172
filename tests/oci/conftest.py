"""Engines for the tests: each with settings of its own, and a private Docker daemon that is stopped by its pid."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kooi import settings
from kooi.engine import openbox, registry
from tests.folders import remove_unmounted

ENGINES = ("crun", "runc", "docker", "podman")
_STARTS_SECONDS = 30
# Nobody else's, so that what has such an id is of these tests.
UID_BASE, UID_COUNT = 1_990_000_000, 65_536


def refuse(reason: str) -> None:
    """Skip the running test, or fail it where the level has to work."""
    (pytest.fail if settings.load_settings().must_work("container") else pytest.skip)(reason)


@pytest.fixture(scope="session")
def docker_socket() -> Iterator[str]:
    """A Docker daemon that nobody else uses; empty where there is none to start."""
    program = shutil.which("dockerd", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None or os.geteuid() != 0:
        yield ""
        return
    folder = Path(tempfile.mkdtemp(prefix="kooi-dockerd-"))
    path = folder / "sock"
    argv = [program, "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"),
            "--pidfile", str(folder / "pid"), "-H", f"unix://{path}", "--iptables=false", "--bridge=none",
            "--default-ulimit", "nofile=1024:1024"]  # fmt: skip
    with open(folder / "log", "wb") as log:
        daemon = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    try:
        yield str(path) if _answers(path, daemon) else ""
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(_STARTS_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        remove_unmounted(folder)


def _answers(path: Path, daemon: subprocess.Popen[bytes]) -> bool:
    end = time.monotonic() + _STARTS_SECONDS
    while time.monotonic() < end and daemon.poll() is None:
        with socket.socket(socket.AF_UNIX) as connection:
            if connection.connect_ex(str(path)) == 0:
                return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="session")
def configure(docker_socket: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes the settings of an engine, or skips where it is not installed."""
    folder = tmp_path_factory.mktemp("engines")

    def written(engine: str) -> Path:
        if os.geteuid() != 0:
            refuse("the engines of the level container need root here")
        if engine == "docker" and not docker_socket:
            refuse("no Docker daemon starts here: apt-get install docker.io")
        if engine != "docker" and shutil.which(engine, path="/usr/sbin:/usr/bin:/usr/local/bin") is None:
            refuse(f"{engine} is not installed: apt-get install {engine}")
        path = folder / f"{engine}.toml"
        lines = ["[settings]", f'container_engine = "{engine}"', f'run_dir = "{folder}/run"',
                 f"uid_base = {UID_BASE}", f"uid_count = {UID_COUNT}"]  # fmt: skip
        if docker_socket:
            lines.append(f'docker_socket = "{docker_socket}"')
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o600)
        return path

    return written


@pytest.fixture
def use(configure: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that has the level container use an engine, by a backend made anew, until the test ends."""

    def chosen(name: str) -> None:
        monkeypatch.setenv("KOOI_CONFIG", str(configure(name)))
        asyncio.run(registry.close_all())
        openbox._prepared.clear()

    yield chosen
    asyncio.run(registry.close_all())
    openbox._prepared.clear()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, use: Callable[[str], None]) -> str:
    """Have the level container use each engine in turn."""
    use(str(request.param))
    return str(request.param)
