"""Writes an image as something other programs take: a tar, an OCI archive, an ext4 or erofs file system.

Tar and OCI archive are made here and depend on the tree alone: no times, everything root's. File systems are made by
their own tools, told to leave times out as far as they can.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from kooi.contract.errors import InvalidRequest, SetupFailed, Unsupported
from kooi.images.meta import Meta
from kooi.images.tree import Entry, Tell

FORMATS = ("tar", "oci", "ext4", "erofs")
_SUFFIXES = {".tar": "tar", ".oci": "oci", ".ext4": "ext4", ".img": "ext4", ".erofs": "erofs"}
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_BLOCK = 4096
# Folders that every user of a container may write to.
_FOR_ALL = ("tmp", "var/tmp")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def format_of(path: Path, asked: str | None) -> str:
    """Return the format asked for, or else the one that a file's name says; raise `InvalidRequest` for neither."""
    if asked is not None:
        return asked
    found = _SUFFIXES.get(path.suffix)
    if found is None:
        raise InvalidRequest(
            f"the format of {path.name} is not known", key="format", fix=f"--format {'|'.join(FORMATS)}"
        )
    return found


def export(tree: Path, entries: Sequence[Entry], meta: Meta, name: str, path: Path, kind: str, tell: Tell) -> None:
    """Write a tree to `path` as `kind`, in one step: the file is there when it is whole. `name` is its tag (oci).

    Raises `Unsupported` naming the package when a tool is missing.
    """
    writers: dict[str, Callable[[Path], None]] = {
        "tar": lambda part: _tar_file(tree, entries, part, tell),
        "oci": lambda part: _oci(tree, entries, meta, name, part, tell),
        "ext4": lambda part: _ext4(tree, entries, meta, part),
        "erofs": lambda part: _erofs(tree, meta, part),
    }
    with tempfile.TemporaryDirectory(prefix=".kooi-export-", dir=path.parent) as folder:
        part = Path(folder) / "part"
        writers[kind](part)
        os.replace(part, path)


def _tar_file(tree: Path, entries: Sequence[Entry], part: Path, tell: Tell) -> None:
    with open(part, "xb") as file:
        _tar(tree, entries, file, tell)


def _tar(tree: Path, entries: Sequence[Entry], out: BinaryIO, tell: Tell) -> None:
    """Write a tar of a tree; raise `SetupFailed` for a file that has not the size that it should have."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for entry in entries:
            member = tarfile.TarInfo(entry.path)
            member.mode = 0o755 if entry.kind == "d" or entry.executable else 0o644
            if entry.kind == "d":
                member.type = tarfile.DIRTYPE
                # An engine gives what it mounts there the mode of what is there.
                member.mode = 0o1777 if entry.path in _FOR_ALL else member.mode
                tar.addfile(member)
            elif entry.kind == "l":
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.target, 0o777
                tar.addfile(member)
            else:
                member.size = entry.size
                fd = os.open(tree / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                with open(fd, "rb") as file:
                    tar.addfile(member, file)
            tell(1)


def _oci(tree: Path, entries: Sequence[Entry], meta: Meta, name: str, part: Path, tell: Tell) -> None:
    """Write an OCI archive of one layer, with what older engines' `load` looks for beside it."""
    layer = part.with_name("layer")
    _tar_file(tree, entries, layer, tell)
    digest, size = _sum(layer), layer.stat().st_size
    config = _json(
        {
            "architecture": _MACHINES.get(meta.machine, meta.machine),
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": [meta.python], "WorkingDir": "/home/user"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": f"kooi image {meta.digest}"}],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2, "mediaType": _MANIFEST, "config": _told(_CONFIG, config),
            "layers": [{"mediaType": _LAYER, "digest": f"sha256:{digest}", "size": size}],
        }
    )  # fmt: skip
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [
        {**_told(_MANIFEST, manifest), "annotations": {"org.opencontainers.image.ref.name": name}}]}  # fmt: skip
    legacy = [{"Config": _blob(config), "RepoTags": [f"{name}:latest"], "Layers": [f"blobs/sha256/{digest}"]}]
    with open(part, "xb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for folder in ("blobs", "blobs/sha256"):
            _add_folder(tar, folder)
        for path, data in sorted({
            _blob(config): config, _blob(manifest): manifest, "index.json": _json(index),
            "manifest.json": _json(legacy), "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        }.items()):  # fmt: skip
            _add_file(tar, path, len(data), io.BytesIO(data))
        with open(layer, "rb") as content:
            _add_file(tar, f"blobs/sha256/{digest}", size, content)


def _add_folder(tar: tarfile.TarFile, path: str) -> None:
    member = tarfile.TarInfo(path)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    tar.addfile(member)


def _add_file(tar: tarfile.TarFile, path: str, size: int, content: BinaryIO) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = size, 0o644
    tar.addfile(member, content)


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _blob(data: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"


def _told(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def _sum(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            found.update(chunk)
    return found.hexdigest()


def _uuid(meta: Meta) -> str:
    text = meta.digest[:32]
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _ext4(tree: Path, entries: Sequence[Entry], meta: Meta, part: Path) -> None:
    blocks = sum(-(-entry.size // _BLOCK) + 1 for entry in entries)
    inodes = len(entries) + 64
    # The tables, the maps and some air; the file has holes where nothing is.
    size = (blocks + inodes * 256 // _BLOCK) * _BLOCK * 9 // 8 + (32 << 20)
    with open(part, "xb") as file:
        file.truncate(-(-size // (1 << 20)) << 20)
    uuid = _uuid(meta)
    _run_tool(
        "mke2fs", "e2fsprogs",
        ["-q", "-F", "-t", "ext4", "-b", str(_BLOCK), "-m", "0", "-N", str(inodes), "-O", "^has_journal,^metadata_csum",
         "-U", uuid, "-E", f"root_owner=0:0,hash_seed={uuid},lazy_itable_init=0", "-d", str(tree), str(part)],
    )  # fmt: skip


def _erofs(tree: Path, meta: Meta, part: Path) -> None:
    _run_tool(
        "mkfs.erofs", "erofs-utils",
        ["--quiet", "-T0", "--all-root", "-U", _uuid(meta), str(part), str(tree)],
    )  # fmt: skip


def _run_tool(tool: str, package: str, arguments: Sequence[str]) -> None:
    found = shutil.which(tool, path=_SYSTEM_PATH)
    if found is None:
        raise Unsupported(f"{tool} is not on this host", key="format", fix=f"as root: apt-get install {package}")
    # As root of a user namespace, so that files of an ordinary user are root's in what is made.
    mapped = [] if os.geteuid() == 0 or not _can_map() else ["unshare", "--map-root-user"]
    env = {"PATH": _SYSTEM_PATH, "LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": "0", "E2FSPROGS_FAKE_TIME": "1"}
    done = subprocess.run([*mapped, found, *arguments], capture_output=True, text=True, errors="replace", env=env)
    if done.returncode:
        raise SetupFailed(f"{tool} ended with {done.returncode}: {done.stderr.strip()[-2000:]}", key="format")


def _can_map() -> bool:
    command = ["unshare", "--map-root-user", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0
