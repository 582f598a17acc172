"""Containers as every engine really makes them: what they are, how they end, and that nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

import kooi
from kooi.contract.errors import KooiError, LevelUnavailable
from kooi.contract.spec import Spec
from kooi.engine import registry
from kooi.oci import unixhttp
from kooi.proof import conformance
from kooi.sandbox import AsyncSandbox
from tests.oci import proofs
from tests.oci.conftest import UID_BASE, UID_COUNT

T = TypeVar("T")
SHARED = {"docker": frozenset({"user"}), "podman": frozenset({"user"})}
_HOLDER = """
import sys, kooi
box = kooi.Sandbox("container")
box.__enter__()
box.run("import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)")
print("up", flush=True)
box.run("import time; time.sleep(100)")
"""


def go(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, and close every backend on its loop."""

    async def closed() -> T:
        try:
            return await work
        finally:
            await registry.close_all()

    return asyncio.run(closed())


def ours(program: bytes = b"") -> set[str]:
    """Return every process (of a program) that has an id of the range that these boxes get."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
            if program not in (status.parent / "cmdline").read_bytes():
                continue
        except (OSError, UnicodeDecodeError):
            continue
        uid = int(next(line for line in text.splitlines() if line.startswith("Uid:")).split()[1])
        if UID_BASE <= uid < UID_BASE + UID_COUNT and "State:\tZ" not in text:
            found.add(f"{status.parent.name} {uid}")
    return found


def test_nothing_is_open(engine: str) -> None:
    assert go(proofs.holes(SHARED.get(engine, frozenset()))) == set()


def test_every_promise_is_kept(engine: str) -> None:
    async def broken() -> list[str]:
        found = []
        for name in conformance.names():
            checked = await conformance.check_one("container", name)
            if checked.holds is False:
                found.append(f"{name}: {checked.detail}")
        return found

    assert go(broken()) == []


def test_kill_is_kill_and_does_not_wait(engine: str) -> None:
    async def killed() -> tuple[float, set[str]]:
        async with AsyncSandbox(spec=Spec(level="container")) as box:
            code = "import signal, subprocess; signal.signal(15, signal.SIG_IGN)\n"
            await box.run(code + "subprocess.Popen(['sleep', '1000'], start_new_session=True)")
            assert ours(b"sleep")
            started = time.monotonic()
            await box.close()
            return time.monotonic() - started, ours(b"sleep")

    seconds, left = go(killed())
    assert left == set()
    assert seconds < 5, "an engine's grace of 10 s was waited for"


def test_a_killed_host_leaves_nothing(engine: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    before = ours()
    host = subprocess.Popen([sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE, env=environment)
    assert host.stdout is not None and host.stdout.readline() == b"up\n"
    assert ours() - before
    host.send_signal(signal.SIGKILL)
    host.wait()
    host.stdout.close()
    end = time.monotonic() + 15
    while ours() - before and time.monotonic() < end:
        time.sleep(0.05)
    assert ours() - before == set()


def test_an_image_that_is_not_there_is_named(engine: str) -> None:
    with pytest.raises(KooiError, match="no image 'nosuch'"):
        go(kooi.AsyncSandbox(spec=Spec(level="container", image="nosuch")).__aenter__())


def test_the_probe_says_which_version_and_what_is_known_of_it(engine: str) -> None:
    state = go(_probed())
    assert state.ok and state.detail["engine"] == engine
    assert "version" in state.detail[engine] and "user namespace" in state.detail[engine]


async def _probed() -> Any:
    return await registry.find("container").probe()


@pytest.mark.skipif(os.geteuid() != 0, reason="the level container needs root in this version")
def test_a_dead_daemon_is_named(use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "kooi.toml"
    config.write_text(f'[settings]\ncontainer_engine = "docker"\ndocker_socket = "{tmp_path}/none"\n')
    config.chmod(0o600)
    monkeypatch.setenv("KOOI_CONFIG", str(config))
    with pytest.raises(LevelUnavailable, match=f"docker does not answer at {tmp_path}/none"):
        go(_run())


async def _run() -> kooi.Result:
    return await kooi.sandbox.run("print(1)", spec=Spec(level="container"))


def test_an_image_removed_under_us_is_loaded_again(use: Any, docker_socket: str) -> None:
    use("docker")

    async def removed() -> tuple[kooi.Result, kooi.Result]:
        first = await _run()
        images = await unixhttp.call(docker_socket, "GET", "/images/json")
        for image in images:
            await unixhttp.call(docker_socket, "DELETE", f"/images/{image['Id']}", force="true")
        return first, await _run()

    first, second = go(removed())
    assert first.ok and second.ok


def test_nothing_of_a_container_is_logged_or_kept(use: Any, docker_socket: str) -> None:
    use("docker")

    async def kept() -> tuple[str, list[Any]]:
        async with AsyncSandbox(spec=Spec(level="container")) as box:
            await box.run("print('x' * 100000)")
            (running,) = await unixhttp.call(docker_socket, "GET", "/containers/json")
            about = await unixhttp.call(docker_socket, "GET", f"/containers/{running['Id']}/json")
        return about["LogPath"], await unixhttp.call(docker_socket, "GET", "/containers/json", all="true")

    path, left = go(kept())
    assert path == "" and left == []
