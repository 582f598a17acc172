"""Arguments shared by verbs: what sandbox to use (--level, --policy, --limit), files to put inside, lists of names."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kooi import settings
from kooi.contract.errors import InvalidPolicy, InvalidRequest
from kooi.contract.limits import RANGES, Limits
from kooi.contract.spec import Spec
from kooi.engine.requests import MAX_BODY_BYTES

_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--level", help="the isolation level (the policy's own, else jail)")
    parser.add_argument("--image", metavar="NAME", help="an image of `kooi image list` (the running interpreter)")
    parser.add_argument("--policy", metavar="FILE", help="a kooi.toml")
    parser.add_argument(
        "--limit", action="append", default=[], metavar="NAME=VALUE",
        help=f"a limit, like memory_bytes=256MiB or wall_seconds=5; none lifts it. Names: {', '.join(RANGES)}",
    )  # fmt: skip


def spec_of(args: argparse.Namespace) -> Spec:
    """Return the spec that the arguments ask for; raise `InvalidPolicy` for what is not acceptable."""
    if args.policy:
        spec = settings.load_spec(args.policy, level=args.level)
    else:
        spec = settings.load_settings().spec or Spec()
        if args.level:
            spec = settings.load_spec({**spec.to_mapping(), "level": args.level})
    if getattr(args, "image", None) is not None:
        spec = replace(spec, image=args.image)
    if getattr(args, "fresh", False):
        spec = replace(spec, fresh=True)
    changes = dict(_limit(text) for text in args.limit)
    return replace(spec, limits=Limits.from_mapping({**spec.limits.to_mapping(), **changes}))


def files_of(paths: Sequence[str | Path]) -> dict[str, bytes]:
    """Return the files' contents by the names they get inside."""
    files: dict[str, bytes] = {}
    for path in map(Path, paths):
        if path.name in files:
            raise InvalidRequest(f"two files are called {path.name!r}", key="file", fix="rename one of them")
        if path.stat().st_size > MAX_BODY_BYTES:
            raise InvalidRequest(f"{path} is larger than {MAX_BODY_BYTES} bytes", key="file")
        files[path.name] = path.read_bytes()
    return files


def words(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _limit(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidPolicy(f"limit {text!r} has no value", key="limits", fix="write NAME=VALUE")
    return name.strip(), _number(name.strip(), value.strip().lower())


def _number(name: str, value: str) -> Any:
    """Return a number, `none`, or the text itself for the limits' own check to refuse."""
    if value in ("", "none"):
        return value
    digits = value.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = value[len(digits) :]
    if unit and (unit not in _UNITS or not name.endswith("_bytes")):
        raise InvalidPolicy(f"limit {name}: {value!r} is not a number", key=f"limits.{name}", fix="units: KiB MiB GiB")
    try:
        number: float = int(digits) if digits.lstrip("-").isdigit() else float(digits)
    except ValueError:
        return value
    scaled = number * _UNITS.get(unit, 1)
    return int(scaled) if unit else scaled
