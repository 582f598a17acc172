"""Things planted outside, to see from outside whether a hostile program reached them.

A credentials file with a random token, a TCP and a UDP listener on the loopback address that count who knocks, an
environment variable, and a process that counts the signals it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from kooi.proof.attacks.model import Evidence

ENVIRONMENT_NAME = "KOOI_PROOF_CANARY"
# Counts SIGURG, which by default is ignored: a hit is seen, and nothing else on the machine is disturbed by the try.
_VICTIM = """\
import os, signal, time
signal.signal(signal.SIGURG, lambda *_: os.write(1, b"u"))
os.write(1, b"r")
time.sleep(600)
"""


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, canaries: Canaries) -> None:
        self._canaries = canaries

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._canaries.count("udp")


class Canaries:
    """The planted things of one suite run. Use as an async context manager."""

    def __init__(self) -> None:
        self.file_token = secrets.token_hex(16)
        self.environment_token = secrets.token_hex(16)
        self.service_token = secrets.token_hex(16)
        self.hits: dict[str, int] = {"tcp": 0, "udp": 0, "signal": 0}
        self.directory = Path()
        self.port = 0
        self.udp_port = 0
        self._server: asyncio.AbstractServer | None = None
        self._udp: asyncio.DatagramTransport | None = None
        self._victim: subprocess.Popen[bytes] | None = None
        self._open_file: int | None = None

    @property
    def credentials(self) -> Path:
        """The planted credentials file, readable by every user of the host."""
        return self.directory / "home" / "operator" / ".aws" / "credentials"

    @property
    def drop(self) -> Path:
        """A folder outside where everybody may write: what turns up there has got out."""
        return self.directory / "drop"

    @property
    def inode(self) -> tuple[int, int]:
        """Device and inode of a file of the host that is open, inheritable, while the canaries live."""
        assert self._open_file is not None
        found = os.fstat(self._open_file)
        return found.st_dev, found.st_ino

    @property
    def victim_pid(self) -> int:
        """The process that counts the signals it gets; it is in this process's own group."""
        assert self._victim is not None
        return self._victim.pid

    @property
    def tokens(self) -> dict[str, str]:
        """The secrets that must not come out, by what they were planted in."""
        return {
            "credentials file": self.file_token,
            "environment": self.environment_token,
            "service": self.service_token,
        }

    def count(self, kind: str) -> None:
        """Note one hit."""
        self.hits[kind] += 1

    async def __aenter__(self) -> Canaries:
        self._plant_file()
        os.environ[ENVIRONMENT_NAME] = self.environment_token
        await self._listen()
        await asyncio.to_thread(self._start_victim)
        await self._prove()
        return self

    async def __aexit__(self, *exc: object) -> None:
        os.environ.pop(ENVIRONMENT_NAME, None)
        if self._server is not None:
            self._server.close()
        if self._udp is not None:
            self._udp.close()
        if self._victim is not None:
            self._victim.kill()
            await asyncio.to_thread(self._victim.wait)
            assert self._victim.stdout is not None
            self._victim.stdout.close()
        if self._open_file is not None:
            os.close(self._open_file)
        shutil.rmtree(self.directory, ignore_errors=True)

    def snapshot(self) -> dict[str, int]:
        """Return the hit counts so far."""
        self._read_victim()
        return dict(self.hits)

    def since(self, before: dict[str, int]) -> dict[str, int]:
        """Return what was hit since `before`."""
        return {kind: n - before.get(kind, 0) for kind, n in self.snapshot().items() if n > before.get(kind, 0)}

    def spoils(self, *outputs: bytes) -> tuple[str, ...]:
        """Return which planted secrets are in `outputs`."""
        return tuple(name for name, token in self.tokens.items() if any(token.encode() in out for out in outputs))

    async def alive(self) -> bool:
        """Check that the listener still answers and the file is still there; the check itself is not counted."""
        before = self.hits["tcp"]
        try:
            answer = await self._knock()
            return answer == self.service_token and self.file_token in self.credentials.read_text()
        except OSError:
            return False
        finally:
            self.hits["tcp"] = before

    async def _knock(self) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            return (await reader.read(64)).decode()
        finally:
            writer.close()
            await writer.wait_closed()

    def seen(self, before: dict[str, int], *outputs: bytes) -> Evidence:
        """Return what was hit since `before`, what turned up in the drop folder, and whether the file was changed."""
        changed = self.file_token not in self.credentials.read_text()
        facts = {"dropped": self.dropped(), "changed": changed}
        return Evidence(None, 0.0, hits=self.since(before), spoils=self.spoils(*outputs), facts=facts)

    def _plant_file(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kooi-proof-"))
        self.credentials.parent.mkdir(parents=True)
        self.credentials.write_text(f"[default]\naws_secret_access_key = {self.file_token}\n")
        for path in (self.directory, *self.directory.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        self.drop.mkdir()
        self.drop.chmod(0o777)
        self._open_file = os.open(self.credentials, os.O_RDONLY)
        os.set_inheritable(self._open_file, True)

    def dropped(self) -> tuple[str, ...]:
        """Return what has turned up in the drop folder, and remove it."""
        names = tuple(sorted(os.listdir(self.drop)))
        for name in names:
            with contextlib.suppress(OSError):
                (self.drop / name).unlink()
        return names

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        self._udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), local_addr=("127.0.0.1", 0))
        self.udp_port = self._udp.get_extra_info("sockname")[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count("tcp")
        writer.write(self.service_token.encode())
        try:
            await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    def _start_victim(self) -> None:
        self._victim = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _VICTIM], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self._victim.stdout is not None
        self._victim.stdout.read(1)
        os.set_blocking(self._victim.stdout.fileno(), False)

    def _read_victim(self) -> None:
        if self._victim is None or self._victim.stdout is None:
            return
        got = self._victim.stdout.read()
        self.hits["signal"] += len(got or b"")

    async def _prove(self) -> None:
        """Check that each canary notices a hit, then forget these hits."""
        answer = await self._knock()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as knock:
            knock.sendto(b"x", ("127.0.0.1", self.udp_port))
        os.kill(self.victim_pid, signal.SIGURG)
        for _ in range(100):
            await asyncio.sleep(0.01)
            if all(self.snapshot().values()):
                break
        if answer != self.service_token or not all(self.hits.values()):
            raise RuntimeError(f"the planted canaries do not notice hits: {self.hits}")
        self.hits = dict.fromkeys(self.hits, 0)
