"""The pool, on and off, by the operator's own settings: a configuration written for the run.

`pool_size = 0` in `[settings]` is how a user switches the pool off; the benchmark does just that for everything but
`pool_hit`, which runs in a process of its own with a pool.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from kooi import settings
from kooi.proof.bench.interleave import Measure
from kooi.proof.bench.worker import POOL_SIZE, Worker

_KEPT = ("uid_base", "uid_count", "pool_memory_bytes", "blanks_ready")


@contextlib.contextmanager
def configuration(pool_size: int) -> Iterator[Path]:
    """Write a `kooi.toml` with the settings of this host and another pool size; yield its path."""
    found = settings.load_settings()
    lines = [f"{name} = {getattr(found, name)}" for name in _KEPT]
    lines += [f"{name} = {json.dumps(str(getattr(found, name)))}" for name in ("state_dir", "run_dir")]
    with tempfile.TemporaryDirectory(prefix="kooi-bench-") as folder:
        path = Path(folder) / "kooi.toml"
        path.write_text("\n".join(["[settings]", f"pool_size = {pool_size}", *lines, ""]))
        path.chmod(0o600)
        yield path


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Use no pool while the body runs, whatever the operator's settings say."""
    if settings.load_settings().pool_size == 0:
        yield
        return
    before = settings.host_env("KOOI_CONFIG")
    with configuration(0) as path:
        os.environ["KOOI_CONFIG"] = str(path)
        try:
            yield
        finally:
            del os.environ["KOOI_CONFIG"]
            for name, value in before.items():
                os.environ[name] = value


@contextlib.contextmanager
def measure(rounds: int) -> Iterator[Measure]:
    """Give the measure of a hit: from the call to the result in a box that was ready before it."""
    with configuration(POOL_SIZE) as path:
        worker = Worker("pool", env={"KOOI_CONFIG": str(path)})

        async def once() -> Mapping[str, float]:
            return {"pool_hit": await worker.once()}

        yield Measure("pool_hit", once, rounds, worker.start, worker.stop)
