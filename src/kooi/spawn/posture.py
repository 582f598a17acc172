"""A box read from outside: its agent and the code's processes, against this process, as the contract's types.

Theory of operation. /proc shows a process's descriptors only to its owner and to root. Boxes have ids of their own, so
an ordinary user reads them through a helper process that first joins the cell's user namespace, which belongs to the
user: there it has the rights over those ids that it needs. Root reads directly.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from kooi.contract import wire
from kooi.contract.backend import Posture, ProcessPosture
from kooi.contract.errors import SetupFailed, Unsupported
from kooi.linux import landlock, namespaces, posture
from kooi.spawn.watchdog import tree

_NS_GET_PARENT = 0xB702
_SOURCE = str(Path(__file__).resolve().parents[2])
_SECONDS = 30


def posture_of(agent: int) -> Posture:
    """Return the posture of the box whose first process is `agent`.

    Raises `SetupFailed` when it is gone, `Unsupported` when this user cannot read it.
    """
    try:
        if os.geteuid() == 0:
            return _read(agent, os.getpid())
        own = os.open(_own(agent), os.O_RDONLY | os.O_CLOEXEC)
        os.close(own)
        return _through_helper(agent)
    except PermissionError as error:
        # A box that runs as the user hides from it, as every sealed agent does; no user namespace gives a way in.
        raise Unsupported("only root can read a box that runs as its user", fix="use the level jail") from error
    except OSError as error:
        raise SetupFailed(f"the box cannot be read: {error}") from error


def _own(agent: int) -> str:
    return f"/proc/{agent}/ns/user"


def _read(agent: int, reference: int) -> Posture:
    found = [posture.collect(agent, "agent", reference)]
    for pid in tree(agent)[1:]:
        try:
            found.append(posture.collect(pid, "code", reference))
        except (FileNotFoundError, ProcessLookupError):
            # It ended between the listing and the look.
            continue
    mounts = tuple(str(mount) for mount in posture.mounts(agent))
    return Posture(tuple(ProcessPosture(**facts._asdict()) for facts in found), mounts, landlock.abi())


def _through_helper(agent: int) -> Posture:
    boot = f"import sys; sys.path.insert(0, {_SOURCE!r}); from kooi.spawn.posture import main; main({agent})"
    argv = [sys.executable, "-I", "-S", "-B", "-c", boot]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_SECONDS, env={}, check=False)
    except subprocess.TimeoutExpired:
        raise SetupFailed("the box could not be read in time") from None
    if done.returncode != 0:
        raise SetupFailed(f"the box cannot be read: {done.stderr.decode('utf-8', 'replace').strip()[-500:]}")
    return wire.loads(Posture, done.stdout)


def main(agent: int) -> None:
    """Join the user namespace around a box and write its posture as JSON to standard output.

    The reference is this process: of the host in every namespace but the one it just joined.
    """
    own = os.open(_own(agent), os.O_RDONLY | os.O_CLOEXEC)
    namespaces.join(fcntl.ioctl(own, _NS_GET_PARENT), namespaces.NEWUSER)
    sys.stdout.buffer.write(wire.dumps(_read(agent, os.getpid())))
