"""Other sandboxes, measured in the same run where they are installed: bubblewrap and sandlock."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping

from kooi.proof.bench import baseline
from kooi.proof.bench.interleave import Measure
from kooi.proof.bench.machine import run_command
from kooi.proof.bench.worker import Worker
from kooi.settings import load_settings

_VIEW = ("--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
         "--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")  # fmt: skip

_HARDENED = ("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
             "--pids-limit", "64", "--memory", "512m", "--memory-swap", "512m", "--user", "65534:65534",
             "--ipc", "none", "--tmpfs", "/home:size=64m", "--log-driver", "none")  # fmt: skip


def bubblewrap() -> list[str] | None:
    """Return the front of a bubblewrap command line with everything unshared, or `None` where it is not installed."""
    bwrap = shutil.which("bwrap")
    return None if bwrap is None else [bwrap, "--unshare-all", "--new-session", "--die-with-parent", *_VIEW]


def measures(rounds: int) -> list[Measure]:
    """Return the measures of the peers that are here."""
    found = []
    front = bubblewrap()
    if front is not None:
        found.append(_command("bwrap_r0", [*front, *baseline.r0()], rounds))
        found.append(_command("bwrap_r1", [*front, *baseline.r1()], rounds))
    if importlib.util.find_spec("sandlock") is not None:
        found.append(_sandlock(rounds))
    return found


def docker() -> list[str] | None:
    """Return the front of a hardened `docker run` with an image of ours, or `None` where no engine has one."""
    program, path = shutil.which("docker"), load_settings().docker_socket
    if program is None or not path.exists():
        return None
    front = [program, "-H", f"unix://{path}"]
    asked = [*front, "image", "ls", "-q", "--filter", "reference=localhost/kooi-image-*"]
    try:
        images = run_command(asked, baseline.PLAIN_ENV)[1].split()
    except (ChildProcessError, OSError):
        return None
    return [*front, "run", "--rm", *_HARDENED, images[0].decode()] if images else None


def hardened_docker(rounds: int) -> list[Measure]:
    """Return the measure of a hardened `docker run`, what users of the level `container` would do without it."""
    front = docker()
    return [] if front is None else [_command("docker_r1", [*front, "python3", "-c", "print(1)"], rounds)]


def absent() -> dict[str, str]:
    """Return the peers that are not here, with how to get them."""
    missing = {}
    if bubblewrap() is None:
        missing["bubblewrap"] = "not installed: apt install bubblewrap"
    if importlib.util.find_spec("sandlock") is None:
        missing["sandlock"] = "not installed: pip install sandlock"
    if docker() is None:
        missing["docker_r1"] = "no engine with an image of ours: install docker.io, and run one there"
    return missing


def _command(name: str, argv: list[str], rounds: int) -> Measure:
    async def once() -> Mapping[str, float]:
        elapsed, output = run_command(argv, baseline.PLAIN_ENV)
        if output.strip() != b"1":
            raise OSError(f"{argv[0]} printed {output[:40]!r}")
        return {name: elapsed}

    return Measure(name, once, rounds)


def _sandlock(rounds: int) -> Measure:
    """Sandlock is a library with threads of its own, so it is called in a process of its own."""
    worker = Worker("sandlock", baseline.r1())

    async def once() -> Mapping[str, float]:
        return {"sandlock_r1": await worker.once()}

    return Measure("sandlock_r1", once, rounds, worker.start, worker.stop)
