"""The helper that unpacks archives: a process of its own that has nothing but the archive and the folder to fill.

Theory of operation. The job comes as the program's argument, the archive on descriptor 0; what is said goes to
descriptor 1, one JSON object a line. Before the first byte of the archive is read the process gives up capabilities,
sockets (by its system call filter), every folder but the one to fill (by Landlock, where the kernel has it), and
memory, time and file sizes beyond what an archive may need. It never executes anything.
"""

from __future__ import annotations

import bz2  # noqa: F401  # imported now: once confined, no module can be found any more
import codecs
import contextlib
import gzip  # noqa: F401
import json
import lzma  # noqa: F401
import os
import sys
import zlib  # noqa: F401
from typing import Any

with contextlib.suppress(ImportError):  # Python 3.14
    import compression.zstd  # type: ignore[import-not-found]  # noqa: F401

from kooi.images import extract, layers
from kooi.images.furnish import furnish
from kooi.linux import caps, landlock, process, rlimits, seccomp

_ARCHIVE, _WORDS = 0, 1
_MEMORY_BYTES = 1 << 30
_CPU_SECONDS = 1800
# To undo in the parser what Python's own codecs would import later.
_CODECS = ("utf-8", "ascii", "latin-1", "idna", "iso8859-1")


def main(job: str) -> None:
    """Do the job, and end the process; the last line said is `done` or `refused`."""
    given = json.loads(job)
    try:
        folder = os.open(given["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        _confine(folder, given["bytes"])
        _say({"done": _work(folder, given)})
    except extract.Refused as error:
        _say({"refused": str(error)})
    except MemoryError:
        _say({"refused": f"it needs more than {_MEMORY_BYTES} bytes of memory to be read"})
    except BaseException as error:
        _say({"failed": f"{type(error).__name__}: {error}"})
    os._exit(0)


def _work(folder: int, given: dict[str, Any]) -> dict[str, Any]:
    budget = extract.Budget(archive=given["archive"], tell=lambda count: _say({"members": count}))
    for key in ("members", "bytes", "ratio", "free"):
        setattr(budget, key, given[key])
    with open(_ARCHIVE, "rb", closefd=False) as archive:
        if given["into"]:
            extract.unpack(archive, folder, budget, layer=True, renamed=given["renamed"])
            return {"tree": ".", "members": budget.seen_members}
        outer = _folder(folder, "outer")
        extract.unpack(archive, outer, budget)
    tree, name = outer, "outer"
    if layers.is_image(outer):
        tree, name = _folder(folder, "tree"), "tree"
        layers.assemble(outer, tree, budget)
    furnish(tree)
    return {"tree": name, "members": budget.seen_members}


def _folder(parent: int, name: str) -> int:
    os.mkdir(name, 0o755, dir_fd=parent)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _confine(folder: int, most_bytes: int) -> None:
    """Give up everything that unpacking does not need."""
    os.umask(0o022)
    for name in _CODECS:
        codecs.lookup(name)
    process.die_with_parent()
    process.close_all_but((0, 1, 2, folder))
    process.leave_session_keyring()
    limits = {"data_bytes": _MEMORY_BYTES, "cpu_seconds": _CPU_SECONDS, "file_bytes": most_bytes, "open_files": 512}
    rlimits.apply(rlimits.table({**rlimits.BASE, **limits}))
    caps.set_caps()
    process.no_new_privileges()
    present = landlock.abi()
    if present:
        clauses = [name for name, row in landlock.CLAUSES.items() if row[0] <= present]
        with landlock.Ruleset(clauses) as ruleset:
            ruleset.allow(folder, "read", "write")
            ruleset.restrict_self()
    seccomp.install(seccomp.program("inet", "unix", "memfd", "strangers"))


def _say(words: dict[str, Any]) -> None:
    # Names in an archive may hold anything: ASCII carries them all.
    os.write(_WORDS, json.dumps(words).encode("ascii") + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
