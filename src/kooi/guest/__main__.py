"""A standalone agent, for levels without a zygote: `python3 -I -S -B PATH/kooi/guest/__main__.py FD`.

FD is an inherited socket, the stream. Standard input holds the `Setup` as one JSON object, up to its end; an empty
input means the defaults. Keys: `home`, `cwd`, `env`, `code_uid`, `code_gid`, `python_argv`, `sys_path`, `fresh`.
What confines the agent must be on it already; here it only becomes undumpable and, where it is not process 1, the
reaper of what the code leaves behind.
"""

from __future__ import annotations

import os
import sys
import types

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36


def _find_package() -> None:
    """Make `kooi.guest` importable without running the package root, which is for the host."""
    package = types.ModuleType("kooi")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["kooi"] = package


def _main(fd: int) -> None:
    from kooi.guest import frames
    from kooi.guest.start import Setup, serve

    given = b"".join(iter(lambda: os.read(0, 1 << 16), b""))
    fields = frames.loads(given) if given.strip() else {}
    for key in ("python_argv", "sys_path"):
        fields[key] = tuple(fields.get(key, ()))
    fields["python_argv"] = fields["python_argv"] or (sys.executable,)
    if sys.platform.startswith("linux"):
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        if os.getpid() != 1:
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    serve(fd, Setup(**fields))


if __name__ == "__main__":
    _find_package()
    _main(int(sys.argv[1]))
