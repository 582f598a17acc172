"""Checks of limits and of ends: what happens at the limit, and that nothing outlives its sandbox."""

from __future__ import annotations

import asyncio
import os
import secrets
import time

from kooi.contract.errors import SandboxLost
from kooi.proof.attacks.watch import Sighting
from kooi.proof.conformance.base import Check, NotAtThisLevel, box, ok, same, true
from kooi.sandbox import AsyncSandbox

_GRACE_SECONDS = 3.0
# By a kernel call: not every level shows /proc.
_NAMED = "import ctypes; ctypes.CDLL(None).prctl(15, {name!r}.encode(), 0, 0, 0)\n"


async def wall_limit(level: str) -> None:
    """A run past its wall limit is status `timeout`, in time, with what it wrote before."""
    async with box(level, wall_seconds=0.5) as it:
        started = time.monotonic()
        result = await it.run("import time\nprint('before', flush=True)\ntime.sleep(60)")
        same((result.status, result.decided_by, result.stdout), ("timeout", "host", "before\n"), "the result")
        _in_time(started, 0.5)
        await _usable_or_lost(it)


async def timeout_of_a_call(level: str) -> None:
    """`timeout` narrows the wall limit of one call and never widens it."""
    async with box(level, wall_seconds=1.0) as it:
        started = time.monotonic()
        same((await it.run("import time; time.sleep(60)", timeout=0.3)).status, "timeout", "status")
        _in_time(started, 0.3)
    async with box(level, wall_seconds=0.3) as it:
        started = time.monotonic()
        same((await it.run("import time; time.sleep(60)", timeout=30)).status, "timeout", "status")
        _in_time(started, 0.3)


async def cpu_limit(level: str) -> None:
    """A run past its CPU limit is status `cpu_limit` although its wall limit is far."""
    async with box(level, wall_seconds=20, cpu_seconds=0.5) as it:
        started = time.monotonic()
        result = await it.run("while True: pass")
        true(result.status in ("cpu_limit", "signal"), f"status is {result.status}")
        same(result.decided_by if result.status == "cpu_limit" else "agent",
             "host" if result.status == "cpu_limit" else "agent", "who decided")  # fmt: skip
        _in_time(started, 5.0)


async def ignored_signals(level: str) -> None:
    """A program that ignores every signal it can, or stops itself, is stopped all the same."""
    stubborn = (
        "import signal, time\nfor n in range(1, 32):\n  try: signal.signal(n, signal.SIG_IGN)\n  except OSError: pass\n"
    )
    async with box(level, wall_seconds=0.5) as it:
        started = time.monotonic()
        same((await it.run(stubborn + "while True: time.sleep(1)")).status, "timeout", "status")
        _in_time(started, 0.5)
    async with box(level, wall_seconds=0.5) as it:
        started = time.monotonic()
        same((await it.run("import os; os.kill(os.getpid(), 19)")).status, "timeout", "status of one that stops itself")
        _in_time(started, 0.5)


async def children_die(level: str) -> None:
    """Children, daemons too, are dead when the sandbox is closed."""
    name = "k" + secrets.token_hex(5)
    code = (
        _NAMED.format(name=name)
        + """
import os, time
for daemon in (False, True):
    pid = os.fork()
    if pid == 0:
        if daemon:
            os.setsid()
            if os.fork():
                os._exit(0)
        for fd in range(3):
            os.close(fd)
        time.sleep(60)
        os._exit(0)
    if daemon:
        os.waitpid(pid, 0)
print('up')
"""
    )
    sighting = Sighting(name)
    async with box(level, wall_seconds=5) as it:
        ok(await it.run(code), "up\n")
        seen = sighting.look()
    if not seen:
        raise NotAtThisLevel("the host does not see this level's processes")
    same(await sighting.settle(2.0), 0, "how many processes outlived their sandbox")


async def held_output(level: str) -> None:
    """A child that keeps standard output open does not keep the call from returning."""
    async with box(level, wall_seconds=20) as it:
        started = time.monotonic()
        result = await it.run(
            "import os, time\nprint('main', flush=True)\nif os.fork() == 0:\n  time.sleep(15)\n  os._exit(0)"
        )
        true(result.stdout.startswith("main\n"), f"standard output is {result.stdout!r}")
        _in_time(started, 1.0)


async def output_cap(level: str) -> None:
    """Output past the cap is counted and cut off exactly there, and a flood ends the run."""
    async with box(level, output_bytes=1000) as it:
        result = ok(await it.run("print('x' * 999)"))
        same((len(result.stdout_bytes), result.truncated), (1000, False), "output at the cap")
        result = await it.run("import os\nwhile True: os.write(1, b'y' * 4096)")
        same((result.status, result.decided_by), ("output_limit", "host"), "the result of a flood")
        same((result.stdout_bytes, result.truncated), (b"y" * 1000, True), "what was kept")
        true(result.stdout_total_bytes > 1000, "the total does not count what was cut off")


async def memory_limit(level: str) -> None:
    """Memory past the limit is status `oom` or a `MemoryError`; half of it works."""
    async with box(level, memory_bytes=192 << 20) as it:
        ok(await it.run("x = bytearray(48 << 20); x[::4096] = b'1' * len(x[::4096]); print(len(x))"), f"{48 << 20}\n")
        result = await it.run("x = [bytearray(b'1' * (16 << 20)) for _ in range(32)]")
        error = result.error.name if result.error else ""
        true(result.status == "oom" or error.endswith("MemoryError"), f"status is {result.status}, error {error}")


async def disk_limit(level: str) -> None:
    """Writing past the limit fails; half of it works, and removing it gives the room back."""
    code = """
import os
def fill(name, megabytes):
    try:
        with open(name, 'wb', buffering=0) as f:
            for _ in range(megabytes):
                f.write(b'x' * (1 << 20))
        return os.stat(name).st_size >> 20
    except OSError as error:
        return os.strerror(error.errno)
print(fill('half', 8))
os.unlink('half')
print(fill('more', 40))
"""
    async with box(level, disk_bytes=16 << 20, memory_bytes=256 << 20) as it:
        half, more = ok(await it.run(code)).stdout.splitlines()
        same(half, "8", "the megabytes written below the limit")
        true(not more.isdigit() or int(more) <= 16, f"{more} megabytes were written past a limit of 16")


async def many_runs(level: str) -> None:
    """Two hundred runs in one sandbox and thirty sandboxes leave the caller's descriptors as they were."""
    async with box(level) as it:
        for number in range(200):
            ok(await it.run(f"print({number})"), f"{number}\n")
    await asyncio.sleep(0.1)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(30):
        async with box(level) as it:
            ok(await it.run("print(1)"))
    await asyncio.sleep(0.1)
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    true(after <= before + 2, f"descriptors grew from {before} to {after}")


async def usage_is_measured(level: str) -> None:
    """A run that computes shows its time, measured outside."""
    async with box(level) as it:
        result = ok(await it.run("t = 0\nfor n in range(3000000): t += n"))
        true((result.usage.wall_seconds or 0) > 0, "no wall time")
        cpu = result.usage.cpu_seconds
        true(cpu is None or 0.01 < cpu < 20, f"CPU time is {cpu}")


async def _usable_or_lost(it: AsyncSandbox) -> None:
    try:
        ok(await it.run("print(1)"), "1\n")
    except SandboxLost:
        pass


def _in_time(started: float, limit: float) -> None:
    elapsed = time.monotonic() - started
    true(elapsed < limit + _GRACE_SECONDS, f"it took {elapsed:.1f} s, with a limit of {limit} s")


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        wall_limit, timeout_of_a_call, cpu_limit, ignored_signals, children_die, held_output, output_cap, memory_limit,
        disk_limit, many_runs, usage_is_measured,
    )
}  # fmt: skip
