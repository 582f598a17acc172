"""Takes an image from elsewhere, by way of the helper: a folder, a tar, an OCI archive, a tag of a Docker engine."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from kooi.contract.errors import InvalidRequest, KooiError, Unsupported
from kooi.images import build, unpack
from kooi.images.meta import Meta, checked_name
from kooi.images.store import Store

# Of a folder that was a running system these are left out: they hold devices and what the system had mounted.
_LEFT_OUT = ("proc", "sys", "dev", "run", "tmp")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}")
_DOCKER_FIX = "install an engine, or save the image elsewhere (`docker save -o FILE TAG`) and import FILE"


def take(
    store: Store, name: str, source: str, *, warm: tuple[str, ...] = (), caps: unpack.Caps = unpack.USUAL,
    phases: build.Phases = build.silent,
) -> Meta:  # fmt: skip
    """Import an image and give it a name. Raises `InvalidRequest` for what is refused; leaves nothing then."""
    checked_name(name)
    opener = _docker(source[7:]) if source.startswith("docker:") else _path(Path(source))
    with store.job() as work, opener as archive:
        with phases(None, "unpack") as phase:
            phase.step(source, 0)
            tree = unpack.fresh(work, archive, source, caps, lambda count: phase.step(f"{count} members"))
        return build.finish(store, tree, name, warm, {"imported": os.path.basename(source.rstrip("/"))}, phases)


def _path(path: Path) -> AbstractContextManager[int]:
    try:
        about = path.stat()
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}", key="source", fix="name a folder, an archive or docker:TAG")
    if stat.S_ISDIR(about.st_mode):
        return _folder(path)
    if not stat.S_ISREG(about.st_mode):
        raise InvalidRequest(f"{path} is neither a folder nor a file", key="source")
    return _file(path)


@contextmanager
def _file(path: Path) -> Iterator[int]:
    with open(path, "rb") as file:
        yield file.fileno()


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    """Yield the reading end of a pipe into which a thread writes the folder as a tar."""
    reading, writing = os.pipe()
    failed: list[Exception] = []
    writer = threading.Thread(target=_write, args=(path, writing, failed), daemon=True)
    writer.start()
    try:
        yield reading
    except KooiError:
        os.close(reading)
        writer.join()
        # What kept us from writing says more than what the helper made of the rest.
        if failed and not isinstance(failed[0], BrokenPipeError):
            raise InvalidRequest(f"{path}: {failed[0]}", key="source") from failed[0]
        raise
    except BaseException:
        os.close(reading)
        raise
    os.close(reading)
    writer.join()


def _write(path: Path, writing: int, failed: list[Exception]) -> None:
    try:
        with open(writing, "wb") as pipe, tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for folder, folders, files, fd in os.fwalk(path, onerror=_raise):
                below = os.path.relpath(folder, path)
                if below == ".":
                    folders[:] = [name for name in folders if name not in _LEFT_OUT]
                for name in sorted([*folders, *files]):
                    _add(tar, name if below == "." else f"{below}/{name}", name, fd)
                folders.sort()
    except Exception as error:  # told by the thread that waits
        failed.append(error)


def _raise(error: OSError) -> None:
    raise error


def _add(tar: tarfile.TarFile, inside: str, name: str, folder: int) -> None:
    """Add what is at `name` in an open folder. Somebody may be changing it, so no link is followed."""
    about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    member = tarfile.TarInfo(inside)
    member.mode = stat.S_IMODE(about.st_mode)
    if stat.S_ISDIR(about.st_mode):
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
    elif stat.S_ISLNK(about.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=folder)
        tar.addfile(member)
    elif stat.S_ISREG(about.st_mode):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with open(fd, "rb") as file:
            member.size = os.fstat(fd).st_size
            tar.addfile(member, file)
    else:
        raise InvalidRequest(f"{inside} is a device, a pipe or a socket, which an image does not have", key="source")


@contextmanager
def _docker(tag: str) -> Iterator[int]:
    """Yield what `docker save` writes."""
    if not _TAG.fullmatch(tag):
        raise InvalidRequest(f"{tag!r} is not the name of a Docker image", key="source")
    docker = shutil.which("docker") or shutil.which("podman")
    if docker is None:
        raise Unsupported("docker: needs the command `docker` or `podman`", key="source", fix=_DOCKER_FIX)
    with subprocess.Popen([docker, "save", tag], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as saving:
        assert saving.stdout is not None and saving.stderr is not None
        try:
            yield saving.stdout.fileno()
        except KooiError as error:
            # An engine that had nothing to save says why.
            saving.kill()
            told = saving.stderr.read().decode("utf-8", "replace").strip()
            raise InvalidRequest(f"docker save {tag}: {told}", key="source") if told else error
        saving.stdout.close()
        saving.kill()
