"""Unpacks archives that anybody may have made: starts the confined helper, feeds it, and hears what it has to say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kooi.contract.errors import InvalidRequest, SetupFailed

_SOURCE = str(Path(__file__).resolve().parents[2])
_BOOT = "import sys; sys.path.insert(0, {source!r}); from kooi.images.helper import main; main(sys.argv[1])"
_LONGEST_WORDS = 1 << 16


@dataclass(frozen=True)
class Caps:
    """What an archive may have: members, bytes of content, and these as a multiple of its size beyond `free` bytes."""

    members: int = 500_000
    bytes: int = 32 << 30
    ratio: int = 100
    free: int = 256 << 20
    seconds: float = 3600.0


USUAL = Caps()


def fresh(
    folder: Path, archive: int, name: str, caps: Caps = USUAL, say: Callable[[int], None] = lambda _: None
) -> Path:
    """Unpack a root file system or an image archive below `folder`; return the tree, furnished.

    `archive` is an open descriptor, `name` what errors call it. Raises `InvalidRequest` for what is refused.
    """
    told = _run(folder, archive, name, caps, say, into=False, renamed={})
    return folder / str(told["tree"])


def into(tree: Path, archive: int, name: str, *, renamed: Mapping[str, str], caps: Caps = USUAL) -> None:
    """Unpack an archive over a tree, `renamed` components first, replacing what is there."""
    _run(tree, archive, name, caps, lambda _: None, into=True, renamed=renamed)


def _run(
    folder: Path, archive: int, name: str, caps: Caps, say: Callable[[int], None], *, into: bool,
    renamed: Mapping[str, str],
) -> Mapping[str, object]:  # fmt: skip
    about = os.fstat(archive)
    size = about.st_size if about.st_size and not into else None
    job = {**asdict(caps), "folder": str(folder), "archive": size, "into": into, "renamed": dict(renamed)}
    argv = [sys.executable, "-I", "-S", "-B", "-c", _BOOT.format(source=_SOURCE), json.dumps(job)]
    last: dict[str, object] = {}
    with subprocess.Popen(
        argv, stdin=archive, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={"LC_ALL": "C.UTF-8"},
        start_new_session=True,
    ) as helper:  # fmt: skip
        clock = threading.Timer(caps.seconds, helper.kill)
        clock.start()
        try:
            assert helper.stdout is not None
            while line := helper.stdout.readline(_LONGEST_WORDS):
                last = json.loads(line)
                if isinstance(last.get("members"), int):
                    say(int(str(last["members"])))
        except ValueError:
            last = {"failed": "it said what is no JSON"}
        finally:
            clock.cancel()
            helper.kill()
    return _outcome(last, helper.returncode, name)


def _outcome(last: Mapping[str, object], code: int, name: str) -> Mapping[str, object]:
    done = last.get("done")
    if isinstance(done, dict):
        return done
    if "refused" in last:
        raise InvalidRequest(f"{name} is refused: {last['refused']}", key="archive", fix="take an archive without that")
    if -code in (signal.SIGXCPU, signal.SIGKILL, signal.SIGXFSZ):
        raise InvalidRequest(
            f"{name} is refused: unpacking took more time, memory or space than any image needs", key="archive"
        )
    raise SetupFailed(
        f"{name} could not be unpacked: {last.get('failed') or f'the helper ended with {code}'}", key="archive"
    )
