"""The host's base interpreter and its standard library, put into a root at neutral paths."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from dataclasses import dataclass

from kooi.contract.errors import SetupFailed
from kooi.images.root import CERTIFICATES, Root

_ASK = """import json, site, ssl, sys, sysconfig
print(json.dumps({
    "prefix": sys.base_prefix, "sites": site.getsitepackages([sys.base_prefix]) or [],
    "stdlib": sysconfig.get_path("stdlib"), "platstdlib": sysconfig.get_path("platstdlib"),
    "cafile": ssl.get_default_verify_paths().openssl_cafile,
}))"""
_SKIPPED = (
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "sitecustomize.py",
    "EXTERNALLY-MANAGED",
)  # fmt: skip


@dataclass(frozen=True)
class Base:
    """The host's base interpreter: where it is here, and where the image has it and its packages."""

    host: str
    program: str
    packages: str
    prefix: str
    stdlib: tuple[str, ...]
    cafile: str


def find_base() -> Base:
    """Return the base interpreter of the one that runs this; raise `SetupFailed` where it does not answer."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    prefix = os.path.realpath(sys.base_prefix)
    host = f"{prefix}/bin/python{version}"
    try:
        done = subprocess.run([host, "-I", "-S", "-c", _ASK], capture_output=True, text=True, check=True, timeout=60)
        told = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        raise SetupFailed(f"the interpreter {host} does not answer: {said}", key="image", fix="use a whole CPython")
    sites = [_moved(path, told["prefix"]) for path in told["sites"]] or [f"/usr/lib/python{version}/site-packages"]
    stdlib = tuple(dict.fromkeys(os.path.realpath(told[key]) for key in ("stdlib", "platstdlib")))
    return Base(host, f"/usr/bin/python{version}", sites[0], prefix, stdlib, told["cafile"])


def add_interpreter(root: Root, base: Base) -> None:
    """Put in the interpreter, its standard library and the libraries that these need."""
    name = base.program.rpartition("/")[2]
    root.copy(os.path.realpath(base.host), base.program)
    root.link("/usr/bin/python3", name)
    root.link("/usr/bin/python", "python3")
    for folder in base.stdlib:
        inside = _moved(folder, base.prefix)
        root.copy_tree(folder, inside, skip=_SKIPPED)
        for archive in glob.glob(f"{root.place(inside)}/**/*.[ao]", recursive=True):
            os.unlink(archive)
        for module in sorted(glob.glob(f"{folder}/lib-dynload/*.so")):
            root.need(module)
        if base.prefix != "/usr":
            _forget_place(str(root.place(inside)), base.prefix)
    root.place(f"{base.packages}/x").parent.mkdir(parents=True, exist_ok=True)
    if base.cafile.startswith(("/usr/", "/etc/")) and base.cafile != CERTIFICATES:
        root.link(base.cafile, CERTIFICATES)


def _moved(path: str, prefix: str) -> str:
    """Return where a path below the interpreter's prefix is inside."""
    for each in (prefix, os.path.realpath(prefix)):
        if path.startswith(f"{each}/"):
            return "/usr" + path[len(each) :]
    return path


def _forget_place(folder: str, prefix: str) -> None:
    """Take the host's own path out of what the interpreter remembers of its build."""
    for path in glob.glob(f"{folder}/_sysconfigdata*.py") + glob.glob(f"{folder}/config-*/Makefile"):
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text.replace(prefix, "/usr"))
