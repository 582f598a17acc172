"""Start an interpreter that has just been executed: the program it is given, and the command that makes it take it.

Theory of operation: the guest's own files need not be readable inside the box, and compiling them there would cost
milliseconds. So the agent sends the compiled modules over the control socket, and the command line holds just enough to
read them. An interpreter of another version is given the sources behind them instead.
"""

from __future__ import annotations

import functools
import marshal
import sys
from importlib.util import find_spec
from typing import Any, List, Sequence, Tuple

from kooi.guest.streams import CONTROL

_MODULES = ("kooi.guest.streams", "kooi.guest.code", "kooi.guest.intake", "kooi.guest.interpreter")

_BOOT = """import sys,marshal,posix
b=b''
while len(b)<{size}:b+=posix.read({control},{size}-len(b))
n=int.from_bytes(b[:4],'big')
for k,c in marshal.loads(b[4:n] if sys.hexversion=={version} else b[n:]):
 m=sys.modules[k]=type(sys)(k);exec(c,m.__dict__)
m.begin({cwd!r},{argv!r},{path!r})"""


@functools.lru_cache(maxsize=None)
def program() -> bytes:
    """Return what a fresh interpreter is sent first, the same for every box. Reads the guest's files, once."""
    compiled: List[Tuple[str, Any]] = []
    sources: List[Tuple[str, Any]] = []
    for name in _MODULES:
        spec = find_spec(name)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            raise ImportError(f"{name} has no loader")
        source = loader.get_source(name)
        sources.append((name, source))
        compiled.append((name, compile(source, f"<{name}>", "exec", dont_inherit=True, optimize=2)))
    first = marshal.dumps(compiled)
    return (len(first) + 4).to_bytes(4, "big") + first + marshal.dumps(sources, 2)


def command(argv: Sequence[str], sys_path: Sequence[str], cwd: str, size: int) -> List[str]:
    """Return the command line of an interpreter that takes a program of `size` bytes from `CONTROL`."""
    boot = _BOOT.format(
        control=CONTROL,
        size=size,
        version=sys.hexversion,
        argv=tuple(argv[:1]),
        path=tuple(sys_path),
        cwd=cwd,
    )
    return [*argv, "-I", "-S", "-c", boot]
