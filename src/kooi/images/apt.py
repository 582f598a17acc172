"""Debian packages, put into a tree: fetched with all they depend on by apt, unpacked by our own confined helper.

Works for an ordinary user: apt is given folders of ours and told that nothing is installed yet. No script of a package
is run, so what a package does at its installation (links of update-alternatives, accounts, caches) is not there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from kooi.contract.errors import InvalidRequest, Unsupported
from kooi.images import unpack

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9]+)?(=[A-Za-z0-9.+:~-]+)?")
_MERGED = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
_SECONDS = 1800


def install(tree: Path, work: Path, names: Sequence[str], say: Callable[[str], None]) -> None:
    """Put packages and all they depend on into a tree. Raises `InvalidRequest`, or `Unsupported` without apt."""
    for name in names:
        if not _PACKAGE.fullmatch(name):
            raise InvalidRequest(f"{name!r} is not the name of a Debian package", key="apt")
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Unsupported(f"--apt needs {tool}, which this host does not have", key="apt", fix="use a Debian host")
    say(f"fetching {', '.join(names)} and what they depend on")
    folder = work / "apt"
    for part in ("partial", "state/lists"):
        (folder / part).mkdir(parents=True)
    (folder / "state" / "status").touch()
    _fetch(folder, names)
    for package in sorted(folder.glob("*.deb")):
        say(package.name.partition("_")[0])
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as tar:
            assert tar.stdout is not None
            unpack.into(tree, tar.stdout.fileno(), package.name, renamed=_MERGED)
        if tar.returncode:
            raise InvalidRequest(f"{package.name}: dpkg-deb ended with {tar.returncode}", key="apt")


def _fetch(folder: Path, names: Sequence[str]) -> None:
    options = {
        "Dir::State::status": folder / "state" / "status",
        "Dir::Cache::archives": folder,
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "",
        "APT::Install-Recommends": "false",
    }
    command = ["apt-get", "-q", "-y", "--download-only", *(f"-o{key}={value}" for key, value in options.items())]
    try:
        done = subprocess.run(
            [*command, "install", "--", *names], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InvalidRequest(f"apt-get did not end within {_SECONDS} s", key="apt")
    if done.returncode:
        told = "\n".join(line for line in done.stderr.splitlines() if line.startswith("E:")) or done.stderr[-2000:]
        raise InvalidRequest(f"apt-get could not fetch them: {told}", key="apt", fix="as root: apt-get update")
