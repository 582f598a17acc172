"""Runs one Python test file inside an emulated machine of its own, on another kernel and another control group layout.

    python tests/guest_vm/run.py [options] -- FILE [ARGUMENT...]

The guest has the host's Python, this project's `src` and `tests`, and what `--include` names; no disk, no network.
Its kernel is the distribution's cloud kernel, its only memory is RAM, and QEMU emulates the processor (no KVM), so it
runs anywhere at about a tenth of the speed. Exit code: that of the test; 77 when there is no QEMU or no kernel; 124
when something took too long. The machine ends with this program, however that ends.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

sys.path.insert(0, str(Path(__file__).parent))

import image
import kernel
import with_systemd

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
QEMU = "qemu-system-x86_64"
SKIP, TIMEOUT = 77, 124
PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py", "*hypothesis*", "sortedcontainers")


@dataclass
class Job:
    """What to run in the guest."""

    file: Path
    arguments: list[str] = field(default_factory=list)
    how: str = "calls"
    cgroup: str = "v2"
    uid: int = 0
    includes: list[tuple[Path, str]] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    memory_mib: int = 768
    cpus: int = 2
    seconds: float = 240.0
    boot_seconds: float = 60.0
    python: Path = Path("/usr/bin/python3")
    systemd: bool = False
    command_line: str = ""


class Unavailable(Exception):
    """The guest cannot be started here; the message says why and what would help."""


def start(job: Job, *, fetch: bool = False, out: int = 1) -> int:
    """Run `job` in a new guest, its output to the descriptor `out`; return the exit code."""
    if shutil.which(QEMU) is None:
        raise Unavailable(f"{QEMU} is not installed (apt-get install --no-install-recommends qemu-system-x86)")
    if job.systemd and with_systemd.missing():
        raise Unavailable(f"the host has no {', '.join(with_systemd.missing())} to take along")
    try:
        linux = kernel.find(fetch=fetch)
        # Kept in memory only, so that nothing is left however this ends.
        with open(os.memfd_create("initrd"), "wb") as file:
            write_image(job, linux, file)
            file.flush()
            return boot(job, linux, file.fileno(), out)
    except kernel.NoKernel as error:
        raise Unavailable(str(error)) from error


def write_image(job: Job, linux: kernel.Kernel, file: BinaryIO) -> None:
    """Write the initial RAM disk for `job`."""
    cpio = image.Cpio(file)
    image.add_system(cpio)
    image.add_python(cpio, job.python)
    cpio.data("init", f"#!{job.python} -ISB\n".encode() + (HERE / "init.py").read_bytes(), 0o755)
    cpio.copy(HERE / "calls.py", "calls.py")
    cpio.tree(PROJECT / "src", "kooi/src")
    inside = f"kooi/tests/{job.file.name}"
    if PROJECT / "tests" in job.file.resolve().parents:
        inside = f"kooi/{job.file.resolve().relative_to(PROJECT)}"
    cpio.copy(job.file, inside)
    cpio.tree(PROJECT / "tests", "kooi/tests")
    cpio.copy(PROJECT / "pyproject.toml", "kooi/pyproject.toml")
    for source, name in job.includes:
        cpio.tree(source, name) if source.is_dir() else cpio.copy(source, name)
        for library in image.libraries(sorted(source.rglob("*.so"))):
            cpio.copy(library, str(library))
    for index, path in enumerate(linux.with_dependencies(job.modules)):
        cpio.copy(path, f"modules/{index:03d}-{path.name}")
    cpio.data("vm.json", json.dumps(todo(job, inside)).encode())
    if job.systemd:
        with_systemd.add(cpio, todo(job, inside))
    cpio.close()


def todo(job: Job, inside: str) -> dict[str, object]:
    """Return what `init.py` reads: the command, its environment and its time."""
    how = {"calls": ["/calls.py"], "script": [], "pytest": ["-m", "pytest", "-p", "no:cacheprovider", "-v"]}[job.how]
    env = {"PYTHONPATH": "/kooi/src:/site", "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin", "HOME": "/root",
           "PYTHONUNBUFFERED": "1", "LANG": "C.UTF-8", "TERM": "dumb",
           "HYPOTHESIS_STORAGE_DIRECTORY": "/tmp/hypothesis", "KOOI_IN_GUEST_VM": job.cgroup}  # fmt: skip
    return {
        "argv": [str(job.python), *how, f"/{inside}", *job.arguments],
        "env": {**env, **job.env},
        "uid": job.uid,
        "cgroup": job.cgroup,
        "systemd": job.systemd,
        "cwd": "/kooi",
        "seconds": job.seconds,
    }


def boot(job: Job, linux: kernel.Kernel, initrd: int, out: int) -> int:
    """Start QEMU, copy its console to `out`, and end it; return the guest's exit code."""
    control, theirs = os.pipe()
    status = "systemd.show_status=0" if job.systemd else ""
    command = [
        QEMU, "-name", f"kooi-guest-vm-{os.getpid()}", "-M", "pc", "-accel", "tcg,thread=multi", "-cpu", "max",
        "-smp", str(job.cpus), "-m", str(job.memory_mib), "-nodefaults", "-no-user-config", "-display", "none",
        "-no-reboot", "-nic", "none", "-kernel", str(linux.image), "-initrd", f"/proc/self/fd/{initrd}",
        "-append", f"console=ttyS0 loglevel=3 panic=-1 rdinit=/init tsc=reliable {status} {job.command_line}",
        "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console", "-add-fd", f"fd={theirs},set=1",
        "-chardev", "file,id=report,path=/dev/fdset/1,append=on", "-serial", "chardev:report",
    ]  # fmt: skip
    machine = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        pass_fds=(theirs, initrd), preexec_fn=_die_with_parent,
    )  # fmt: skip
    os.close(theirs)
    try:
        return _watch(job, machine, control, out)
    finally:
        machine.kill()
        machine.wait()
        assert machine.stdout is not None
        machine.stdout.close()
        os.close(control)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _watch(job: Job, machine: subprocess.Popen[bytes], control: int, out: int) -> int:
    """Copy the console and read the report until the machine is off."""
    assert machine.stdout is not None
    console, report = machine.stdout.fileno(), b""
    started = time.monotonic()
    deadline, ready = started + job.boot_seconds, False
    open_fds = {console, control}
    while open_fds:
        left = deadline - time.monotonic()
        if left <= 0:
            what = f"run in {job.seconds:g} s" if ready else f"boot in {job.boot_seconds:g} s"
            os.write(out, f"\nthe guest did not {what}\n".encode())
            return TIMEOUT
        for fd in select.select(open_fds, [], [], left)[0]:
            data = os.read(fd, 65536)
            if not data:
                open_fds.discard(fd)
            elif fd == console:
                os.write(out, data.replace(b"\r\n", b"\n"))
            else:
                report += data
        if not ready and report.startswith(b"ready"):
            ready, deadline = True, time.monotonic() + job.seconds + 10
            os.write(out, f"guest ready after {time.monotonic() - started:.1f} s\n".encode())
    return exit_code(report)


def exit_code(report: bytes) -> int:
    """Return the code in the report's last line; 125 if the guest ended without one."""
    try:
        return int(json.loads(report.splitlines()[-1])["exit"])
    except (IndexError, ValueError, KeyError, TypeError):
        return 125


def parse(arguments: list[str]) -> tuple[Job | None, bool]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--fetch-kernel", action="store_true", help="download and unpack a kernel if there is none")
    parser.add_argument("--pytest", dest="how", action="store_const", const="pytest", help="run FILE with pytest")
    parser.add_argument("--script", dest="how", action="store_const", const="script", help="run FILE as a program")
    parser.add_argument("--cgroup", choices=("v2", "v1", "hybrid", "none"), default="v2")
    parser.add_argument("--systemd", action="store_true", help="boot the host's systemd; the test is a service (v2)")
    parser.add_argument("--uid", type=int, default=0, help="run as this user (default 0)")
    parser.add_argument("--include", action="append", default=[], metavar="PATH[:INSIDE]", help="file or folder to add")
    parser.add_argument("--module", action="append", default=[], help="kernel module to load, with what it needs")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--memory", type=int, default=768, metavar="MIB")
    parser.add_argument("--seconds", type=float, default=240.0, help="limit for the run; booting has 60 s of its own")
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("arguments", nargs="*")
    said = parser.parse_args(arguments)
    if said.file is None:
        return None, said.fetch_kernel
    includes = [_include(text) for text in said.include]
    if said.how == "pytest":
        includes += pytest_packages()
    job = Job(
        file=said.file.resolve(),
        arguments=said.arguments,
        how=said.how or "calls",
        cgroup=said.cgroup,
        uid=said.uid,
        includes=includes,
        modules=said.module,
        env=dict(text.split("=", 1) for text in said.env),
        memory_mib=said.memory,
        seconds=said.seconds,
        systemd=said.systemd,
    )
    return job, said.fetch_kernel


def _include(text: str) -> tuple[Path, str]:
    source, _, inside = text.partition(":")
    return Path(source).resolve(), inside or str(Path(source).resolve())


def pytest_packages() -> list[tuple[Path, str]]:
    """Return the packages that pytest needs, and hypothesis where it is there, from the running interpreter."""
    import importlib.util

    spec = importlib.util.find_spec("pytest")
    if spec is None or spec.origin is None:
        raise Unavailable("the running Python has no pytest to take along")
    site = Path(spec.origin).parent.parent
    patterns = [pattern for name in PYTEST for pattern in (name, f"{name}.py", f"{name}-*.dist-info")]
    return [(path, f"site/{path.name}") for pattern in patterns for path in sorted(site.glob(pattern))]


def main(arguments: list[str]) -> int:
    job, fetch = parse(arguments)
    try:
        if job is None:
            print(kernel.find(fetch=fetch).image)
            return 0
        return start(job, fetch=fetch)
    except (Unavailable, kernel.NoKernel) as error:
        print(f"no guest: {error}", file=sys.stderr)
        return SKIP


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
