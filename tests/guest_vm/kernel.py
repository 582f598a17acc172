"""A Linux kernel for the test guest: the distribution's cloud kernel, unpacked into a cache, never installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "linux-image-cloud-amd64"
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


class NoKernel(Exception):
    """No kernel is at hand and none can be got; the message says why."""


@dataclass(frozen=True)
class Kernel:
    """A kernel image and the folder of its modules."""

    image: Path
    modules: Path

    @property
    def version(self) -> str:
        return self.modules.name

    def with_dependencies(self, names: list[str]) -> list[Path]:
        """Return the module files of `names` and of what they need, in loading order."""
        files = {path.stem.replace("-", "_"): path for path in self.modules.rglob("*.ko")}
        order: list[Path] = []

        def add(name: str) -> None:
            path = files.get(name.replace("-", "_"))
            if path is None:
                raise NoKernel(f"the kernel {self.version} has no module {name}")
            if path in order:
                return
            found = _DEPENDS.search(b"\0" + path.read_bytes())
            for need in (found.group(1).decode() if found else "").split(","):
                if need:
                    add(need)
            order.append(path)

        for name in names:
            add(name)
        return order


def cache() -> Path:
    """Return the folder that unpacked kernels are kept in."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "kooi" / "guest-vm"


def find(*, fetch: bool) -> Kernel:
    """Return a cached kernel; with `fetch` download and unpack one if there is none. Raises `NoKernel`."""
    kernel = _in(cache())
    if kernel is not None:
        return kernel
    if not fetch:
        raise NoKernel(f"no kernel in {cache()}; get one with: python tests/guest_vm/run.py --fetch-kernel")
    _fetch(cache())
    kernel = _in(cache())
    if kernel is None:
        raise NoKernel(f"the package in {cache()} holds no kernel")
    return kernel


def _in(folder: Path) -> Kernel | None:
    for image in sorted(folder.glob("boot/vmlinuz-*"), reverse=True):
        modules = folder / "lib" / "modules" / image.name[len("vmlinuz-") :]
        if modules.is_dir():
            return Kernel(image, modules)
    return None


def _fetch(target: Path) -> None:
    """Download the package that `PACKAGE` depends on and unpack it into `target`, all or nothing."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoKernel("no apt-get and dpkg-deb to fetch a kernel with")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        depends = _run(["apt-cache", "depends", PACKAGE], folder)
        found = re.search(r"Depends: (linux-image-\S+)", depends)
        if found is None:
            raise NoKernel(f"no package {PACKAGE} is known; try: apt-get update")
        _run(["apt-get", "download", found.group(1)], folder)
        package = next(Path(folder).glob("*.deb"))
        _run(["dpkg-deb", "-x", str(package), "unpacked"], folder)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(Path(folder) / "unpacked", target)


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise NoKernel(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
