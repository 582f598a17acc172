"""Build, import, list, show, remove, prune and export images: what a sandbox sees as its root and its Python.

An image is named by its digest; a name points at one. Boxes take it with --image NAME at every level that has a root.

examples:
  kooi image build python                       this host's Python and common programs
  kooi image build data                         numpy, pandas, scipy, matplotlib and more beside it
  kooi image build mine --pip requests --pip 'rich>=13' --apt git
  kooi image import debian ./rootfs.tar         also a folder, an OCI archive, docker:TAG
  kooi image list --json
  kooi image show data                          everything about it; its tree is read again and checked
  kooi image export data data.oci               or .tar .ext4 .erofs
  kooi run --image data -c 'import pandas; print(pandas.__version__)'
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from kooi.contract.errors import KooiError
from kooi.doors.cli import show
from kooi.doors.cli.main import FINE
from kooi.engine import registry
from kooi.images import build, export, take
from kooi.images.meta import Meta
from kooi.images.store import Store
from kooi.sandbox import AsyncSandbox

_LEVELS = ("process", "jail")
_EXAMPLES = {
    "build": ("data", "mine --pip requests 'rich>=13' --apt git --warm requests", "mine --requirements list.txt"),
    "import": ("mine ./rootfs", "mine image.oci", "mine docker:python:3.12-slim"),
    "list": ("", "--json"),
    "show": ("data",),
    "remove": ("data",),
    "prune": ("",),
    "export": ("data data.oci", "data disk.img --format ext4"),
}
_Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _configure_making(verbs)
    _verb(verbs, "list", "list the images")
    for name, text in (
        ("show", "say everything about an image, and check its tree"),
        ("remove", "remove a name, and the image with its last name"),
    ):
        _verb(verbs, name, text).add_argument("name", metavar="NAME", help="a name, or 12 or more digits of a digest")
    _verb(verbs, "prune", "remove every image without a name, and what crashes left")
    parser = _verb(verbs, "export", "write an image to a file")
    parser.add_argument("name", metavar="NAME", help="a name, or 12 or more digits of a digest")
    parser.add_argument("path", metavar="FILE", type=Path)
    parser.add_argument("--format", choices=export.FORMATS, help="what to write (by the file's name)")


def _configure_making(verbs: _Verbs) -> None:
    ready = "".join(f"\n  {name}: {each.about}" for name, each in build.DEFINITIONS.items())
    parser = _verb(verbs, "build", "build an image from this host's Python", f"\n\nready definitions:{ready}")
    parser.add_argument("name", metavar="NAME", help="its name; that of a ready definition takes that")
    for option, metavar, text in (
        ("--pip", "PACKAGE", "packages for pip"), ("--requirements", "FILE", "files of packages for pip"),
        ("--apt", "PACKAGE", "Debian packages"), ("--warm", "MODULE", "modules that sandboxes find imported"),
    ):  # fmt: skip
        parser.add_argument(option, action="append", nargs="+", default=[], metavar=metavar, help=text)
    text = "let pip build from source, which runs the packages' own code on this host, as you"
    parser.add_argument("--allow-source", action="store_true", help=text)
    parser = _verb(verbs, "import", "take an image from elsewhere")
    parser.add_argument("name", metavar="NAME", help="its name here")
    parser.add_argument("source", metavar="DIR|TAR|OCI-ARCHIVE|docker:TAG")
    parser.add_argument("--warm", action="append", nargs="+", default=[], metavar="MODULE", help="as with build")


def _verb(verbs: _Verbs, name: str, text: str, more: str = "") -> argparse.ArgumentParser:
    examples = "\n".join(f"  kooi image {name} {words}".rstrip() for words in _EXAMPLES[name])
    parser = verbs.add_parser(
        name, help=text, description=text + more, epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(args: argparse.Namespace) -> int:
    """Do it."""
    actions: dict[str, Callable[[Store, argparse.Namespace], None]] = {
        "build": _build, "import": _import, "list": _list, "show": _show, "remove": _remove, "prune": _prune,
        "export": _export,
    }  # fmt: skip
    actions[args.action](Store.of_user(), args)
    return FINE


def _build(store: Store, args: argparse.Namespace) -> None:
    base = build.DEFINITIONS.get(args.name, build.Definition())
    definition = dataclasses.replace(
        base,
        pip=(*base.pip, *_flat(args.pip)),
        requirements=_flat(args.requirements),
        apt=_flat(args.apt),
        warm=(*base.warm, *_flat(args.warm)),
        allow_source=args.allow_source,
    )
    _made(args, build.build(store, args.name, definition, show.progress))


def _import(store: Store, args: argparse.Namespace) -> None:
    _made(args, take.take(store, args.name, args.source, warm=_flat(args.warm), phases=show.progress))


def _made(args: argparse.Namespace, meta: Meta) -> None:
    if args.json:
        show.print_json({"name": args.name, **_plain(meta), "starts": _tried(meta)})
        return
    show.note(f"{args.name} is {meta.digest}", "good")
    show.note(f"Python {meta.version}, {len(meta.packages)} packages, {_size(meta.size_bytes)}")
    for level, problem in _tried(meta).items():
        show.note(f"{level}: {problem or 'it starts'}", "doubt" if problem else "good")


def _tried(meta: Meta) -> dict[str, str | None]:
    """Return, by level that takes an image, why a sandbox with this one does not start; None if it does."""
    return asyncio.run(_try(meta.digest))


async def _try(digest: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    try:
        for level in _LEVELS:
            try:
                async with AsyncSandbox(level=level, image=digest) as box:
                    result = await box.run("1")
                found[level] = None if result.ok else f"a run ended with {result.status}"
            except KooiError as error:
                found[level] = str(error)
    finally:
        await registry.close_all()
    return found


def _list(store: Store, args: argparse.Namespace) -> None:
    names = store.names()
    found = [(digest, store.meta(digest)) for digest in store.digests()]
    called = {digest: [name for name, pointed in names.items() if pointed == digest] for digest, _ in found}
    if args.json:
        show.print_json([{"names": called[digest], "in_use": bool(store.users(digest)), **_plain(meta)}
                         for digest, meta in found])  # fmt: skip
        return
    rows = [
        [show.cell(", ".join(called[digest]) or "(no name)", "" if called[digest] else "dim"), show.cell(digest[:12]),
         show.cell(meta.version), show.cell(len(meta.packages)), show.cell(_size(meta.size_bytes)),
         show.cell(meta.created[:10]), show.cell("in use" if store.users(digest) else "")]
        for digest, meta in found
    ]  # fmt: skip
    show.table("images", ["name", "digest", "Python", "packages", "size", "made", ""], rows)


def _show(store: Store, args: argparse.Namespace) -> None:
    digest = store.resolve(args.name)
    meta = store.meta(digest)
    with show.progress(None, "check") as phase:
        phase.step(f"{meta.entries} entries, {_size(meta.size_bytes)}")
        store.verify(digest)
    names = [name for name, pointed in store.names().items() if pointed == digest]
    users = store.users(digest)
    if args.json:
        show.print_json(
            {"names": names, "users": users, "tree": str(store.tree(digest)), "verified": True, **_plain(meta)}
        )
        return
    rows = {
        "names": ", ".join(names) or "none", "digest": f"{digest} (checked)", "made": meta.created,
        "from": ", ".join(f"{key} {value}" for key, value in meta.definition.items()), "machine": meta.machine,
        "Python": f"{meta.version}, {meta.python}", "size": f"{_size(meta.size_bytes)}, {meta.entries} entries",
        "warm": ", ".join(meta.warm) or "the standard library", "packages": ", ".join(meta.packages) or "none",
        "used by": ", ".join(f"process {pid}" for pid in users) or "nobody", "tree": str(store.tree(digest)),
    }  # fmt: skip
    show.table(args.name, ["", ""], [[show.cell(key), show.cell(value)] for key, value in rows.items()])


def _remove(store: Store, args: argparse.Namespace) -> None:
    digest, gone = store.remove(args.name)
    if args.json:
        show.print_json({"digest": digest, "tree_removed": gone})
    else:
        show.note(f"image {digest[:12]} is gone" if gone else f"the name is gone; image {digest[:12]} has others")


def _prune(store: Store, args: argparse.Namespace) -> None:
    found = store.prune()
    if args.json:
        show.print_json({"removed": found.removed, "in_use": found.kept, "jobs": found.jobs})
        return
    show.note(f"removed {len(found.removed)} images without a name and {found.jobs} builds that never ended")
    if found.kept:
        show.note(f"in use, and kept: {', '.join(digest[:12] for digest in found.kept)}", "doubt")


def _export(store: Store, args: argparse.Namespace) -> None:
    kind = export.format_of(args.path, args.format)
    digest = store.resolve(args.name)
    meta, entries = store.meta(digest), store.manifest(digest)
    name = args.name if args.name in store.names() else digest[:12]
    every = max(1, len(entries) // 20)
    done = 0
    with show.progress(len(entries) // every, kind) as phase:

        def tell(more: int) -> None:
            nonlocal done
            done += more
            if done % every == 0:
                phase.step(f"{done} of {len(entries)} entries")

        export.export(store.tree(digest), entries, meta, name, args.path, kind, tell)
    size = args.path.stat().st_size
    if args.json:
        show.print_json({"digest": digest, "format": kind, "path": str(args.path), "size_bytes": size})
    else:
        show.note(f"{args.path}: {kind}, {_size(size)}", "good")


def _plain(meta: Meta) -> dict[str, object]:
    return dataclasses.asdict(meta)


def _flat(words: list[list[str]]) -> tuple[str, ...]:
    return tuple(word for each in words for word in each)


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
