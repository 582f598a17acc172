"""What an image has inside: its interpreter, where that finds its packages, and which they are. Read, never run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kooi.contract.errors import InvalidRequest
from kooi.contract.spec import MAX_PRELOAD, MODULE_NAME
from kooi.images.tree import resolve

OLDEST = (3, 8)  # the guest's own floor
_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin", "/opt/conda/bin", "/opt/python/bin", "/opt/venv/bin")
_NAME = re.compile(r"python(3)\.([0-9]{1,3})")
_WARM = "etc/kooi.json"
_MOST_BYTES = 1 << 16
_DIST = re.compile(r"(.+?)-([^-]+)\.dist-info")


@dataclass(frozen=True)
class Python:
    """An interpreter inside: its program, version, and what its `sys.path` is to be."""

    program: str
    version: str
    sys_path: tuple[str, ...]


def find_python(root: Path) -> Python:
    """Return the interpreter that the usual path finds; raise `InvalidRequest` where there is none that will do."""
    seen = []
    for folder in _FOLDERS:
        program = resolve(root, f"{folder}/python3")
        if program is None or not (root / program[1:]).is_file():
            continue
        version = _version(root, program)
        if version is None:
            seen.append(f"{program} has no standard library beside it")
        elif version < OLDEST:
            seen.append(f"{program} is {version[0]}.{version[1]}")
        else:
            dotted = f"{version[0]}.{version[1]}"
            return Python(program, dotted, _sys_path(root, _prefix(program), dotted))
    why = "; ".join(seen) or f"there is no python3 in {', '.join(_FOLDERS)}"
    raise InvalidRequest(
        f"this has no Python {OLDEST[0]}.{OLDEST[1]} or later inside: {why}", key="image", fix="put python3 into it"
    )


def _prefix(program: str) -> str:
    return program.rpartition("/")[0].rpartition("/")[0]


def _version(root: Path, program: str) -> tuple[int, int] | None:
    """Return the version that the program's name and a standard library beside it agree on."""
    named = _NAME.fullmatch(program.rpartition("/")[2])
    prefix = root / _prefix(program)[1:]
    there = sorted(
        (int(match[1]), int(match[2]))
        for os_module in prefix.glob("lib*/python3.*/os.py")
        if (match := _NAME.fullmatch(os_module.parent.name))
    )
    if named is not None:
        version = (int(named[1]), int(named[2]))
        return version if version in there else None
    return there[-1] if there else None


def _sys_path(root: Path, prefix: str, version: str) -> tuple[str, ...]:
    libs = [lib for lib in ("lib", "lib64") if _folder(root, f"{prefix}/{lib}/python{version}")]
    found = [f"{prefix}/{libs[0]}/python{version.replace('.', '')}.zip"]
    for lib in libs:
        base = f"{prefix}/{lib}/python{version}"
        found += [path for path in (base, f"{base}/lib-dynload") if _folder(root, path)]
    packages = [f"{prefix}/local/lib/python{version}/dist-packages"] if prefix == "/usr" else []
    packages += [f"{prefix}/{lib}/python{version}/site-packages" for lib in libs]
    packages += [f"{prefix}/lib/python3/dist-packages"]
    return (*found, *(path for path in packages if _folder(root, path)))


def _folder(root: Path, path: str) -> Path | None:
    """Return the folder that `path` is inside, if it is one; a link that leads out of the tree leads nowhere."""
    inside = resolve(root, path)
    place = None if inside is None else root / inside[1:]
    return place if place is not None and place.is_dir() else None


def write_warm(tree: Path, warm: Sequence[str]) -> None:
    """Say in a tree which modules its zygotes import besides the standard library's."""
    place = tree / _WARM
    place.unlink(missing_ok=True)
    with open(place, "x") as file:
        json.dump({"warm": list(warm)}, file)


def read_warm(tree: Path) -> tuple[str, ...]:
    """Return the modules that a tree says its zygotes are to import; raise `InvalidRequest` for what are none."""
    place = tree / _WARM
    if resolve(tree, f"/{_WARM}") is None:
        return ()
    try:
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            warm = json.loads(file.read(_MOST_BYTES))["warm"]
        fine = len(warm) <= MAX_PRELOAD and all(re.fullmatch(MODULE_NAME, name) for name in warm)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidRequest(f"/{_WARM} in the image cannot be read: {error}", key="image")
    if not fine:
        raise InvalidRequest(f"/{_WARM} in the image does not list modules", key="image")
    return tuple(warm)


def canonical(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(root: Path, python: Python) -> tuple[str, ...]:
    """Return `name==version` of every distribution that the interpreter finds, sorted."""
    found: dict[str, str] = {}
    for folder in python.sys_path:
        place = _folder(root, folder)
        for each in () if place is None else place.glob("*.dist-info"):
            match = _DIST.fullmatch(each.name)
            if match is not None:
                found.setdefault(canonical(match[1]), match[2])
    return tuple(sorted(f"{name}=={version}" for name, version in found.items()))
