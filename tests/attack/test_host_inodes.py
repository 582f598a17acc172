"""The read-only views are the host's own inodes: what a read-only mount does not refuse must be refused elsewhere."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kooi import AsyncSandbox, Policy
from kooi.contract.policy import Dataset
from kooi.engine import registry
from tests.levels import need

# A service's socket, who opens what (inotify, and its older brother by signals), and a lease that makes owners wait.
PROGRAM = """
import ctypes, fcntl, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def connect():
    socket.socket(socket.AF_UNIX).connect(FOLDER + "/service")
def watch():
    fd = libc.inotify_init1(0)
    if fd < 0 or libc.inotify_add_watch(fd, FOLDER.encode(), 0x20) < 0:
        raise OSError(ctypes.get_errno(), "inotify")
def notify():
    fcntl.fcntl(os.open(FOLDER, os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ATTRIB)
def lease():
    fcntl.fcntl(os.open(FOLDER + "/data", os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)
done = []
for attempt in (connect, watch, notify, lease):
    try:
        attempt()
        done.append(attempt.__name__)
    except OSError:
        pass
pair = socket.socketpair()
pair[0].send(b"x")
"""


def test_a_dataset_is_no_way_to_a_service_nor_to_what_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("jail")
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "data").write_text("x")
    for path in (folder, *tmp_path.parents[:2], tmp_path):
        os.chmod(path, 0o755)
    with socket.socket(socket.AF_UNIX) as service:
        with monkeypatch.context() as patch:
            patch.chdir(folder)  # a socket's path may have 107 bytes
            service.bind("service")
        os.chmod(folder / "service", 0o777)
        service.listen()
        command = [sys.executable, "-c", PROGRAM.replace("FOLDER", "'.'") + "print(*done)"]
        control = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        assert control.stdout == "connect watch notify lease\n", "the control: outside all of it works"

        async def inside() -> str:
            policy = Policy(datasets=(Dataset("d", str(folder)),))
            try:
                async with AsyncSandbox("jail", policy=policy) as box:
                    result = await box.run(PROGRAM.replace("FOLDER", "'/data/d'") + "print(done)")
                    assert result.ok, result.stderr
                    return result.stdout
            finally:
                await registry.close_all()

        assert asyncio.run(inside()) == "[]\n"
