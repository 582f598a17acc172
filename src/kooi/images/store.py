"""The store of images: trees by digest, names that point at them, safe with several processes and after a crash.

Theory of operation. Everything is made in a job folder below `tmp`, which its maker keeps locked; nobody else looks
into it. A tree is on disk in full before it is renamed into `trees`, under the store's own lock, after what is said
about it; a name is one small file, replaced in one step. So whatever a crash leaves is an unlocked job or a tree
without a name: the next job removes the first, `prune` the second. Whoever runs an image holds its lock shared for as
long as anything of it runs, and only who gets that lock alone removes the tree.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kooi.contract.errors import InvalidPolicy, InvalidRequest, SetupFailed
from kooi.images import locks
from kooi.images.meta import HEX, Meta, checked_name
from kooi.images.tree import Entry, Tell, difference, digest_of, read_manifest, scan, write_manifest
from kooi.linux import libc
from kooi.settings import load_settings, private_dir

_FOLDERS = ("tmp", "trees", "about", "names", "locks")


@dataclass(frozen=True)
class Pruned:
    """What `prune` removed, and what it left because it is in use."""

    removed: tuple[str, ...]
    kept: tuple[str, ...]
    jobs: int


class Store:
    """The images of one user, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of_user(cls) -> Store:
        """Return this user's store, as the settings say; nothing is made yet."""
        settings = load_settings()
        return cls((settings.data_dir or settings.state_dir) / "images")

    def tree(self, digest: str) -> Path:
        """Return where the tree of a digest is, or would be."""
        return self.folder / "trees" / digest

    # --- finding

    def resolve(self, name: str) -> str:
        """Return the digest of an image by its name, its digest or the start (12 or more digits) of one.

        Raises `InvalidPolicy` with the key `image` where there is none.
        """
        if match := HEX.fullmatch(name):
            found = [each for each in self.digests() if each.startswith(match[1])]
            if len(found) == 1:
                return found[0]
            if found:
                raise InvalidPolicy(f"image: {name!r} is the start of {len(found)} digests", key="image")
        elif "/" not in name and not name.startswith(".") and (digest := self._pointed(name)) is not None:
            return digest
        fix = "`kooi image list` shows those that there are, `kooi image build python` makes one"
        raise InvalidPolicy(f"there is no image {name!r} here", key="image", fix=fix)

    def digests(self) -> list[str]:
        """Return the digests of all images, sorted."""
        return sorted(self._listed("trees"))

    def names(self) -> dict[str, str]:
        """Return every name and the digest it points at."""
        found = {name: self._pointed(name) for name in sorted(self._listed("names"))}
        return {name: digest for name, digest in found.items() if digest is not None}

    def meta(self, digest: str) -> Meta:
        """Return what is known about an image besides its tree."""
        return Meta.decode(self._read(f"about/{digest}.json"))

    def manifest(self, digest: str) -> list[Entry]:
        """Return the entries that an image's tree had when it was made."""
        return read_manifest(self._read(f"about/{digest}.manifest"))

    def users(self, digest: str) -> list[int]:
        """Return the processes that hold an image, as far as this one may know."""
        return locks.holders(self.folder / "locks" / digest)

    def verify(self, digest: str, tell: Tell = lambda _: None) -> None:
        """Read the whole tree again; raise `SetupFailed` naming what is not as it was made."""
        fix = "remove it (`kooi image remove`) and build or import it again"
        try:
            found = scan(self.tree(digest), tell)
        except (OSError, InvalidRequest) as error:
            raise SetupFailed(f"the tree of image {digest[:12]} cannot be read: {error}", key="image", fix=fix)
        if digest_of(found) != digest:
            known = self.manifest(digest)
            where = difference(known, found) if digest_of(known) == digest else "and so has its manifest"
            raise SetupFailed(f"the tree of image {digest[:12]} has been changed: {where}", key="image", fix=fix)

    # --- using

    def hold(self, digest: str) -> int:
        """Return a descriptor that keeps an image from being removed until it is closed."""
        with self._missing(digest):
            fd = locks.take(self.folder / "locks" / digest, shared=True)
            assert fd is not None
        if not self.tree(digest).is_dir():
            os.close(fd)
            raise self._gone(digest)
        return fd

    # --- making

    @contextlib.contextmanager
    def job(self) -> Iterator[Path]:
        """Make a folder to build in, which is gone afterwards, whatever happens; those of dead makers go too."""
        private_dir(self.folder.parent)
        private_dir(self.folder)
        for name in _FOLDERS:
            private_dir(self.folder / name)
        self._sweep()
        name = secrets.token_hex(8)
        place, lock = self.folder / "tmp" / name, self.folder / "tmp" / f"{name}.lock"
        fd = locks.take(lock)
        assert fd is not None
        try:
            place.mkdir(0o700)
            yield place
        finally:
            # The lock file goes last: a folder without one would be nobody's to sweep.
            _remove(place)
            lock.unlink(missing_ok=True)
            os.close(fd)

    def add(self, tree: Path, entries: Sequence[Entry], describe: Callable[[str, int], Meta], name: str | None) -> Meta:
        """Take over `tree`, a folder in a job's own, whose `entries` a scan that settled it found; point `name` at it.

        `describe` is given digest and size in bytes. Of the same tree twice the first stays, with what was said of it.
        """
        if name is not None:
            checked_name(name)
        meta = describe(digest_of(entries), sum(entry.size for entry in entries))
        os.chmod(tree, 0o755)
        if not self.tree(meta.digest).is_dir():
            _to_disk(tree, everything=True)
        with self._alone():
            if self.tree(meta.digest).is_dir():
                meta = self.meta(meta.digest)
            else:
                self._write(f"about/{meta.digest}.manifest", write_manifest(entries))
                self._write(f"about/{meta.digest}.json", meta.encode())
                os.rename(tree, self.tree(meta.digest))
                _to_disk(self.folder / "trees")
            if name is not None:
                self._write(f"names/{name}", meta.digest.encode())
        return meta

    # --- removing

    def remove(self, name: str) -> tuple[str, bool]:
        """Remove a name, and the tree with its last name; or, given a digest, the tree with every name of it.

        Returns the digest and whether the tree is gone. Raises `InvalidRequest` when it would go and is in use.
        """
        digest = self.resolve(name)
        with self._alone():
            names = [each for each, pointed in self.names().items() if pointed == digest]
            going = names if HEX.fullmatch(name) else [name]
            last = set(names) <= set(going)
            with self._for_removal(digest) if last else contextlib.nullcontext():
                for each in going:
                    (self.folder / "names" / each).unlink(missing_ok=True)
                if last:
                    self._drop(digest)
        return digest, last

    def prune(self) -> Pruned:
        """Remove every tree without a name that is not in use, and what crashed makers left."""
        if not self.folder.is_dir():
            return Pruned((), (), 0)
        jobs = self._sweep()
        removed, kept = [], []
        with self._alone():
            pointed = set(self.names().values())
            for digest in self.digests():
                if digest in pointed:
                    continue
                try:
                    with self._for_removal(digest):
                        self._drop(digest)
                    removed.append(digest)
                except InvalidRequest:
                    kept.append(digest)
            self._sweep_files({*self.digests()})
        return Pruned(tuple(removed), tuple(kept), jobs)

    @contextlib.contextmanager
    def _for_removal(self, digest: str) -> Iterator[None]:
        path = self.folder / "locks" / digest
        fd = locks.take(path, wait=False)
        if fd is None:
            pids = ", ".join(map(str, self.users(digest)))
            who = f"process {pids}" if pids else "another process"
            raise InvalidRequest(
                f"image {digest[:12]} is in use by {who}", key="image", fix="close its sandboxes first"
            )
        try:
            yield
        finally:
            os.close(fd)

    def _drop(self, digest: str) -> None:
        """Take a tree out of sight in one step, then remove it. The caller has the store and the image alone."""
        if self.tree(digest).is_dir():
            with self.job() as place:
                os.rename(self.tree(digest), place / "tree")
        for path in (f"about/{digest}.json", f"about/{digest}.manifest", f"locks/{digest}"):
            (self.folder / path).unlink(missing_ok=True)

    def _sweep(self) -> int:
        """Remove the jobs of makers that are dead; return how many."""
        found = 0
        for name in {each.removesuffix(".lock") for each in self._listed("tmp")}:
            lock = self.folder / "tmp" / f"{name}.lock"
            fd = locks.take(lock, wait=False)
            if fd is None:
                continue
            try:
                found += (self.folder / "tmp" / name).is_dir()
                _remove(self.folder / "tmp" / name)
                lock.unlink(missing_ok=True)
            finally:
                os.close(fd)
        return found

    def _sweep_files(self, digests: set[str]) -> None:
        """Remove what is said about trees that are not there; the caller has the store alone."""
        for folder in ("about", "locks"):
            for name in self._listed(folder):
                if name.partition(".")[0] not in digests and not name.startswith("."):
                    (self.folder / folder / name).unlink(missing_ok=True)
        for folder in ("about", "names"):
            for path in (self.folder / folder).glob(".*"):
                path.unlink(missing_ok=True)

    # --- small files

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        return locks.held(self.folder / "lock")

    def _listed(self, folder: str) -> list[str]:
        try:
            return [name for name in os.listdir(self.folder / folder) if not name.startswith(".")]
        except FileNotFoundError:
            return []

    def _pointed(self, name: str) -> str | None:
        try:
            digest = (self.folder / "names" / name).read_text("ascii")
        except (OSError, ValueError):
            return None
        return digest if self.tree(digest).is_dir() else None

    def _read(self, path: str) -> bytes:
        try:
            return (self.folder / path).read_bytes()
        except FileNotFoundError:
            raise self._gone(path.partition("/")[2].partition(".")[0])

    def _write(self, path: str, data: bytes) -> None:
        """Replace a file in one step, on disk when this returns."""
        place = self.folder / path
        part = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, place)
        _to_disk(place.parent)

    def _gone(self, digest: str) -> InvalidPolicy:
        return InvalidPolicy(f"image {digest[:12]} was removed meanwhile", key="image", fix="build or import it again")

    @contextlib.contextmanager
    def _missing(self, digest: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise self._gone(digest)


def _to_disk(folder: Path, everything: bool = False) -> None:
    """Have what a folder lists written out, or with `everything` all that its file system has not written yet."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if everything:
            libc.syscall(libc.nr("syncfs"), fd)
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(place: Path) -> None:
    """Remove a tree, also one whose folders were made unwritable."""
    if not place.is_dir() or place.is_symlink():
        place.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(place)
    except OSError:
        for folder, _, _ in os.walk(place):
            os.chmod(folder, 0o700)
        shutil.rmtree(place)
