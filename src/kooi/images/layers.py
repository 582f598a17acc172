"""Puts an image archive (OCI, or what `docker save` writes) together from its layers. Runs inside the helper.

The archive itself has been unpacked into a folder by `extract` already, under the same rules as any other. What its
JSON files say is hostile input: each path is opened below that folder without following a link, each blob must have
the digest by which it is named.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from kooi.images.extract import Budget, Refused, unpack
from kooi.linux import paths

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MOST_JSON = 8 << 20
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_NESTED = 4
_CHUNK = 1 << 20


def is_image(folder: int) -> bool:
    """Say whether an unpacked archive is that of an image, and not a root file system itself."""
    names = set(os.listdir(folder))
    return {"index.json", "oci-layout"} <= names or ("manifest.json" in names and "usr" not in names)


def assemble(folder: int, root: int, budget: Budget) -> None:
    """Apply all layers of the image in `folder`, in order, to the empty folder `root`. Raises `Refused`."""
    for path, digest in _layers(folder):
        fd = _open(folder, path)
        with open(fd, "rb") as file:
            if digest is not None:
                _check(file.fileno(), digest)
            unpack(file, root, budget, layer=True)


def _layers(folder: int) -> Iterator[tuple[str, str | None]]:
    """Yield where each layer is, and its digest where it has one."""
    if "index.json" in os.listdir(folder):
        manifest = _manifest(folder, _json(folder, "index.json"), _NESTED)
        for layer in _list(manifest, "layers"):
            digest = _digest(layer)
            yield f"blobs/sha256/{digest}", digest
        return
    images = _json(folder, "manifest.json")
    if not isinstance(images, list) or len(images) != 1 or not isinstance(images[0], dict):
        count = len(images) if isinstance(images, list) else 0
        raise Refused(f"it holds {count} images, and one is wanted")
    for path in _list(images[0], "Layers"):
        yield str(path), None


def _manifest(folder: int, index: Any, depth: int) -> dict[str, Any]:
    """Return the manifest for this machine, of an index that may hold others."""
    if not isinstance(index, dict):
        raise Refused("its index is no JSON object")
    if "layers" in index:
        return index
    if depth == 0:
        raise Refused("its indexes are nested too deeply")
    wanted = _MACHINES.get(os.uname().machine, os.uname().machine)
    found = [entry for entry in _list(index, "manifests") if isinstance(entry, dict)]
    platforms = [entry.get("platform") or {} for entry in found]
    fitting = [
        entry
        for entry, platform in zip(found, platforms, strict=True)
        if isinstance(platform, dict) and platform.get("architecture", wanted) == wanted
    ]
    if not fitting:
        raise Refused(f"it has no image for {wanted}")
    if len(fitting) > 1:
        raise Refused(f"it holds {len(fitting)} images for {wanted}, and one is wanted")
    digest = _digest(fitting[0])
    fd = _open(folder, f"blobs/sha256/{digest}")
    try:
        _check(fd, digest)
    finally:
        os.close(fd)
    return _manifest(folder, _json(folder, f"blobs/sha256/{digest}"), depth - 1)


def _list(document: Any, key: str) -> list[Any]:
    found = document.get(key) if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise Refused(f"its manifest has no list {key!r}")
    return found


def _digest(entry: Any) -> str:
    match = _DIGEST.fullmatch(str(entry.get("digest"))) if isinstance(entry, dict) else None
    if match is None:
        raise Refused("its manifest names something that is no SHA-256")
    return match[1]


def _open(folder: int, path: str) -> int:
    try:
        return paths.open_beneath(folder, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise Refused(f"its manifest names {path!r}: {error.strerror}")


def _json(folder: int, path: str) -> Any:
    with open(_open(folder, path), "rb") as file:
        data = file.read(_MOST_JSON + 1)
    if len(data) > _MOST_JSON:
        raise Refused(f"{path!r} is larger than {_MOST_JSON} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise Refused(f"{path!r} is not JSON")


def _check(fd: int, digest: str) -> None:
    found = hashlib.sha256()
    offset = 0
    while chunk := os.pread(fd, _CHUNK, offset):
        found.update(chunk)
        offset += len(chunk)
    if found.hexdigest() != digest:
        raise Refused(f"the blob {digest[:12]} does not have the content that its name promises")
