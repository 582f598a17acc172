"""The running interpreter as an image: a read-only, allow-listed view of what it needs, at neutral paths.

`image=None` means this view. It holds the system's programs and libraries (/usr), the interpreter's base
prefix, the site-packages of its environment and a handful of public files from /etc. It never holds a home,
a secret, a socket or anything else of the host. `.pth` files are not run: what they add is not there.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, replace

PYTHON_ROOT = "/opt/python"
SITE_ROOT = "/opt/site-packages"
GUEST_ROOT = "/opt/kooi"
HOME = "/home/user"

# Public files of /etc that ordinary programs read. Everything else of /etc stays outside.
_ETC_BINDS = ("/etc/ssl/certs", "/etc/alternatives", "/etc/fonts")
_ETC_COPIES = (
    "/etc/ld.so.cache", "/etc/mime.types", "/etc/protocols", "/etc/services", "/etc/localtime", "/etc/timezone",
    "/etc/ssl/openssl.cnf", "/etc/debian_version", "/etc/os-release",
)  # fmt: skip
_PASSWD = """root:x:0:0:root:/root:/bin/sh
user:x:1000:1000:user:/home/user:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/false
"""
_GROUP = "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n"
ETC_TEXTS = {
    "/etc/passwd": _PASSWD,
    "/etc/group": _GROUP,
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "/etc/resolv.conf": "",
    "/etc/hostname": "kooi\n",
}
# How many there are, for whoever has no /proc to look it up.
_CPUS = "/sys/devices/system/cpu"
_MERGED = ("/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32")

# Imported by every zygote, so that ordinary code finds its imports paid.
WARM_STDLIB = (
    "abc", "base64", "bisect", "collections.abc", "contextlib", "copy", "csv", "dataclasses", "datetime", "enum",
    "functools", "hashlib", "heapq", "io", "itertools", "json", "linecache", "math", "operator", "os.path", "pathlib",
    "random", "re", "selectors", "shutil", "signal", "socket", "statistics", "string", "struct", "subprocess",
    "tempfile", "textwrap", "threading", "time", "tokenize", "traceback", "types", "typing", "uuid", "warnings",
    "weakref",
)  # fmt: skip


@dataclass(frozen=True)
class View:
    """A read-only root: host paths bound at inside paths, small files, links, and how to start its interpreter.

    `env` is what that interpreter needs in its environment to start at its place inside.
    """

    binds: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    python: str
    sys_path: tuple[str, ...]
    warm: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


def host_view(preload: tuple[str, ...] | None = None) -> View:
    """Return the view of the running interpreter; `preload` adds modules to its warm set."""
    base = os.path.realpath(sys.base_prefix)
    inside = base if base == "/usr" else PYTHON_ROOT
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    binds = [("/usr", "/usr")]
    if base != "/usr":
        binds.append((base, PYTHON_ROOT))
    links = []
    for path in _MERGED:
        if os.path.islink(path):
            links.append((path, os.readlink(path)))
        elif os.path.isdir(path):
            binds.append((path, path))
    binds += [(path, path) for path in _ETC_BINDS if os.path.isdir(path)]
    site_binds, site_path = _site_packages(base, inside)
    return View(
        binds=tuple(binds + site_binds + [(p, p) for p in _ETC_COPIES if os.path.isfile(p)]),
        texts=tuple(ETC_TEXTS.items()),
        links=tuple(links),
        python=f"{inside}/bin/python{version}",
        sys_path=(*_stdlib_path(inside, version), *site_path),
        warm=WARM_STDLIB + tuple(preload or ()),
        env=(*_library_path(inside), *_packages_path(inside, site_path)),
    )


def native_view(preload: tuple[str, ...] | None = None) -> View:
    """Return the running interpreter where it is, for a level without a root of its own."""
    base = os.path.realpath(sys.base_prefix)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    site = tuple(path for path in _site_folders(base) if os.path.isdir(path))
    python = f"{base}/bin/python{version}"
    warm = WARM_STDLIB + tuple(preload or ())
    return View((), (), (), python, (*_stdlib_path(base, version), *site), warm, _packages_path(base, site))


def confined_view(preload: tuple[str, ...] | None = None) -> View:
    """Return the running interpreter where it is, with what of the host it needs to see as binds of paths to itself."""
    view = native_view(preload)
    base = os.path.realpath(sys.base_prefix)
    wanted = ["/usr", base, *(path for path in _MERGED if not os.path.islink(path)), *_ETC_BINDS, *_ETC_COPIES, _CPUS]
    # Our own files too, for the zygote: what it gives to interpreters it reads when it has confined itself.
    wanted.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    wanted += [path for path in view.sys_path if not path.startswith((f"{base}/", "/usr/"))]
    # As it is really called: what is allowed is a file or folder, and a link to it is found by its own folder.
    found = dict.fromkeys(os.path.realpath(path) for path in wanted if os.path.exists(path))
    return replace(view, binds=tuple((path, path) for path in found))


def _library_path(inside: str) -> tuple[tuple[str, str], ...]:
    """Return how an interpreter that was moved finds its own libpython.

    The path in its program is the host's. Without this it would not start, or would run as /usr's of the same version.
    An interpreter without a libpython (conda) gets nothing: its other libraries are not for the programs of /usr.
    """
    if inside == "/usr" or not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        return ()
    return (("LD_LIBRARY_PATH", f"{inside}/lib"),)


def _packages_path(prefix: str, site: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return how an interpreter that the code starts itself finds the packages that its own one has."""
    elsewhere = [path for path in site if not path.startswith(f"{prefix}/")]
    return (("PYTHONPATH", ":".join(elsewhere)),) if elsewhere else ()


def _stdlib_path(prefix: str, version: str) -> list[str]:
    lib = f"{prefix}/lib/python{version}"
    return [f"{prefix}/lib/python{version.replace('.', '')}.zip", lib, f"{lib}/lib-dynload"]


def _site_folders(base: str) -> list[str]:
    """Return where the environment's packages may be, each once."""
    found = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if sys.prefix == sys.base_prefix:
        found.append(f"{base}/lib/python3/dist-packages")
    return list(dict.fromkeys(found))


def _site_packages(base: str, inside: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return binds and sys.path entries for the environment's own site-packages."""
    binds: list[tuple[str, str]] = []
    path: list[str] = []
    for number, host in enumerate(dict.fromkeys(os.path.realpath(p) for p in _site_folders(base))):
        if not os.path.isdir(host):
            continue
        if host.startswith(base + "/"):
            path.append(inside + host[len(base) :])
        else:
            target = SITE_ROOT if number == 0 else f"{SITE_ROOT}{number}"
            binds.append((host, target))
            path.append(target)
    return binds, path
