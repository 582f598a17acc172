"""Many mixed runs leave nothing behind, in the host process, in its spawner, or in the kernel.

`KOOI_SOAK_RUNS` says how many (default 600; 10,000 take some minutes).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest

import kooi.engine.registry
import kooi.sandbox
from tests.levels import need

RUNS = int(os.environ.get("KOOI_SOAK_RUNS", "600"))
WARM_UP = 200
AT_ONCE = 4
LIMITS = {"memory_bytes": 64 << 20, "output_bytes": 100_000}
PROGRAMS = {
    "ok": ("print(sum(range(1000)))", {"ok"}),
    "error": ("1/0", {"error"}),
    "exit": ("import os; os._exit(3)", {"error"}),
    "crash": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", {"signal"}),
    "timeout": ("while True: pass", {"timeout"}),
    "sleeper": ("import os, time\nif os.fork() == 0: os.setsid()\ntime.sleep(60)", {"timeout"}),
    "oom": ("b = bytearray(200 << 20)", {"oom", "error"}),
    "flood": ("while True: print('x' * 1000)", {"output_limit"}),
    "files": (
        "import os, uuid\nopen('a', 'w').write('x' * 100000)\nname = '/dev/shm/kooi-soak-' + uuid.uuid4().hex\n"
        # A jail takes its own with it; at the level process it is the host's, and confined keeps out of it.
        "try:\n  open(name, 'w').write('y')\n  if os.environ['HOME'] != '/home/user': os.remove(name)\n"
        "except PermissionError: pass",
        {"ok"},
    ),
}


def picture() -> Counter[str]:
    """Count what could leak: here, in our children, and in the kernel as far as it carries our name."""
    found: Counter[str] = Counter()
    me = os.getpid()
    ours = [me, *children(me)]
    for pid in ours:
        role = "host" if pid == me else "spawner"
        found[f"{role} descriptors"] += len(os.listdir(f"/proc/{pid}/fd"))
        found[f"{role} threads"] += len(os.listdir(f"/proc/{pid}/task"))
        found[f"{role} zombies"] += sum(state(child) == "Z" for child in children(pid))
    found["mounts"] = len(Path("/proc/self/mountinfo").read_text().splitlines())
    found["groups"] = sum(name.startswith("box-") for _, names, _ in os.walk("/sys/fs/cgroup") for name in names)
    found["shared memory"] = len(os.listdir("/dev/shm"))
    return found


def children(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    return [
        int(child)
        for task in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]


def state(pid: int) -> str:
    """Return a process's state letter; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def mixed(level: str, runs: int, rng: random.Random) -> Counter[str]:
    """Run a random mix, some at once; return how often each program ended as it should not."""
    wrong: Counter[str] = Counter()
    names = rng.choices(list(PROGRAMS), weights=[8, 3, 2, 2, 1, 1, 1, 1, 3], k=runs)

    async def worker() -> None:
        while names:
            name = names.pop()
            code, right = PROGRAMS[name]
            limits = LIMITS | ({"wall_seconds": 0.15} if "timeout" in right else {})
            result = await kooi.sandbox.run(code, level=level, limits=limits, fresh=rng.random() < 0.25)
            if result.status not in right:
                wrong[f"{name}: {result.status}"] += 1

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return wrong


@pytest.mark.parametrize("level", ["jail", "confined", "process"])
def test_nothing_grows(level: str) -> None:
    need(level)
    rng = random.Random(7)

    async def main() -> None:
        wrong = await mixed(level, WARM_UP, rng)
        await asyncio.sleep(0.5)
        before, memory = picture(), resident_bytes(os.getpid())
        wrong += await mixed(level, RUNS, rng)
        for _ in range(50):
            await asyncio.sleep(0.1)
            grown = {key: count - before[key] for key, count in picture().items() if count > before[key]}
            if not grown:
                break
        grew = resident_bytes(os.getpid()) - memory
        print(f"{level}: {RUNS} runs, wrong {dict(wrong)}, grown {grown}, memory +{grew >> 10} KiB")
        assert not wrong
        # Slots follow what was open at once at the most; everything else must be as before.
        assert {key: more for key, more in grown.items() if key != "groups" or more > 3 * 12} == {}
        assert grew < 8 << 20
        await kooi.engine.registry.close_all()

    asyncio.run(main())
