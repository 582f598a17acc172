"""Images of the store as levels see them: a name becomes a digest, which is held while in use, and that a view."""

from __future__ import annotations

import os
from pathlib import Path

from kooi.contract.errors import InvalidPolicy
from kooi.images.host import GUEST_ROOT, HOME, WARM_STDLIB, View
from kooi.images.meta import Meta
from kooi.images.store import Store

# Made anew in each cell or box: of an image's own, nothing is seen.
OWN = ("proc", "sys", "dev", "run", "tmp", "data", "root", HOME.split("/")[1])
# Folders in which something of ours is put, so what else is in them is bound name by name: folder, names left out.
_SHARED = {GUEST_ROOT.split("/")[1]: (GUEST_ROOT.split("/")[2],), "var": ("tmp", "run")}


class Images:
    """The store, and which images this process holds."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._held: dict[str, int] = {}

    def pin(self, name: str) -> str:
        """Return the digest that `name` means now, and hold that image until `release`.

        Raises `InvalidPolicy` with the key `image` where there is none.
        """
        store = self._open()
        digest = store.resolve(name)
        if digest not in self._held:
            self._held[digest] = store.hold(digest)
        return digest

    def view(self, digest: str, preload: tuple[str, ...] | None) -> View:
        """Return the view of an image; `preload` None is its own warm set. Raises `InvalidPolicy`."""
        store = self._open()
        meta = store.meta(digest)
        if meta.machine != os.uname().machine:
            raise InvalidPolicy(
                f"image {digest[:12]} is for {meta.machine}, and this is {os.uname().machine}", key="image"
            )
        return image_view(store.tree(digest), meta, preload)

    def release(self) -> None:
        """Let go of every image: nothing that uses one is alive any more. The settings are read anew after this."""
        held, self._held, self._store = self._held, {}, None
        for fd in held.values():
            os.close(fd)

    def _open(self) -> Store:
        if self._store is None:
            self._store = Store.of_user()
        return self._store


def image_view(tree: Path, meta: Meta, preload: tuple[str, ...] | None) -> View:
    """Return the view of a tree: what is at its top, bound or linked at the same place."""
    binds: list[tuple[str, str]] = []
    links: list[tuple[str, str]] = []
    for name in sorted(os.listdir(tree)):
        if name in OWN:
            continue
        if name in _SHARED:
            _add(tree, name, sorted(set(_listed(tree / name)) - set(_SHARED[name])), binds, links)
        else:
            _add(tree, "", [name], binds, links)
    warm = WARM_STDLIB + (meta.warm if preload is None else preload)
    return View(tuple(binds), (), tuple(links), meta.python, meta.sys_path, warm)


def _listed(folder: Path) -> list[str]:
    return [] if folder.is_symlink() or not folder.is_dir() else os.listdir(folder)


def _add(tree: Path, folder: str, names: list[str], binds: list[tuple[str, str]], links: list[tuple[str, str]]) -> None:
    for name in names:
        inside = f"/{folder}/{name}" if folder else f"/{name}"
        place = tree / inside[1:]
        if place.is_symlink():
            links.append((inside, os.readlink(place)))
        else:
            binds.append((str(place), inside))
