"""A process of its own that does one thing again and again, and says how long each time took.

For what must not share a process with the other measures: another user's sandboxes, a library with threads. The host
writes an empty line; the worker does the thing once and answers with a line of JSON: the seconds, or the error.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kooi.contract.errors import SetupFailed
from kooi.contract.spec import Spec
from kooi.proof.access import close_all, open_box

Do = Callable[[], Awaitable[float]]
POOL_SIZE = 8
_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Account:
    """A user to become: ids, a home that holds a copy of this package, and an interpreter this user may execute."""

    uid: int
    gid: int
    home: str
    python: str


class Worker:
    """The host's side of a worker. `account` is a user to become, for whom the package was copied into `home`."""

    def __init__(
        self,
        kind: str,
        argv: Sequence[str] = (),
        account: Account | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._kind = kind
        self._argv = list(argv)
        self._account = account
        self._env = dict(env or {})
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it."""
        python, root = sys.executable, str(Path(__file__).parents[3])
        become: dict[str, Any] = {}
        home = {}
        if self._account is not None:
            python, root, home = self._account.python, self._account.home, {"HOME": self._account.home}
            become = {"user": self._account.uid, "group": self._account.gid, "extra_groups": []}
        env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "PYTHONPATH": root, "LC_ALL": "C.UTF-8", **home, **self._env}
        self._process = await asyncio.create_subprocess_exec(
            python, "-m", "kooi.proof.bench.worker", self._kind, *self._argv,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=env, cwd="/", **become,
        )  # fmt: skip

    async def once(self) -> float:
        """Do the thing once; return the seconds it took. Raises `SetupFailed` with what the worker said."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(b"\n")
        await process.stdin.drain()
        line = await asyncio.wait_for(process.stdout.readline(), _PATIENCE_SECONDS)
        answer = json.loads(line) if line else {"error": "it ended without an answer"}
        if "error" in answer:
            raise SetupFailed(f"the {self._kind} worker: {answer['error']}")
        return float(answer["seconds"])

    async def stop(self) -> None:
        """End it."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), _PATIENCE_SECONDS)
            except asyncio.TimeoutError:
                self._process.kill()
                await self._process.wait()


async def _jail() -> float:
    started = time.perf_counter()
    box = await open_box(Spec(level="jail", preload=()))
    try:
        result = await box.run("print(1)")
        elapsed = time.perf_counter() - started
    finally:
        await box.close()
    if not result.ok or result.stdout != "1\n":
        raise SetupFailed(f"print(1) came to {result.status}")
    return elapsed


async def _pool() -> float:
    """Wait until the pool is full, then time a hit."""
    from kooi.engine import registry

    pool = registry.find("jail")
    stock = getattr(pool, "stock", None)
    if stock is None:
        raise SetupFailed("the level jail has no pool: pool_size is 0")
    for _ in range(500):
        if stock() >= POOL_SIZE:
            break
        await asyncio.sleep(0.01)
    return await _jail()


async def _sandlock() -> float:
    import sandlock  # type: ignore[import-not-found, import-untyped, unused-ignore]

    view = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev"]
    started = time.perf_counter()
    result = sandlock.Sandbox(fs_readable=view, clean_env=True).run(sys.argv[2:])
    elapsed = time.perf_counter() - started
    if not result.success or result.stdout.strip() != b"1":
        raise SetupFailed(f"sandlock printed {result.stdout[:40]!r}")
    return elapsed


KINDS: dict[str, Do] = {"jail": _jail, "pool": _pool, "sandlock": _sandlock}


async def _serve(do: Do) -> None:
    """Answer line by line until standard input ends."""
    try:
        while await asyncio.to_thread(sys.stdin.readline):
            try:
                answer: dict[str, object] = {"seconds": await do()}
            except Exception as error:  # whatever it is goes to the host as its answer
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
    finally:
        await close_all()


if __name__ == "__main__":
    asyncio.run(_serve(KINDS[sys.argv[1]]))
