"""A berth: a child of the warden that waits, ready, for a container to start in it, and then becomes its runtime.

Theory of operation. Joining a control group can wait 10 ms in the kernel, so a berth joins one before anybody asks. It
has a mount namespace of its own, in which it lays out the bundle, the root and the workspace on a private tmpfs: no
other process sees them, and they end with the container, so a crash leaves no file and no mount. The runtime's own
state is there too. The kernel's control groups are out of its sight: limits are the warden's to set, and a runtime that
finds none cannot fail on a mixture of versions that it does not know.

Forked from the warden, which has a second thread: nothing here may need a lock that this thread could have held.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from kooi.linux import mounts, namespaces, process
from kooi.oci.bundle import BUNDLE, CODE_ID, ROOT, STAGE, WORK
from kooi.oci.inside import GATE_FD, PROGRAM_FD
from kooi.spawn import messages
from kooi.spawn.cell import dataset_tree

GO = b"go"
LOG, PID = "log", "pid"
_CGROUPS = "/sys/fs/cgroup"
_FOLDERS = ("proc", "dev", "tmp", "data", "home", "home/user")
_FLAGS = mounts.NOSUID | mounts.NODEV
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main(control: socket.socket, keep_groups: Sequence[str]) -> NoReturn:
    """Wait for the control group, get ready, wait for a plan, become the runtime. Says why where it cannot."""
    try:
        os.setsid()
        # The root of the inside passes these folders too, and it has an id of its own.
        os.umask(0o022)
        if control.recv(len(GO)) == GO:
            stage(keep_groups)
            folder = os.open(BUNDLE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            messages.send(control, {"ready": True}, fds=[folder])
            data, fds = messages.receive_packet(control)
            if data:
                _become_runtime(json.loads(data), fds)
    except BaseException as error:
        # The end of this socket is our success, so our failure must be a word on it.
        messages.send(control, {"failed": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(70)


def stage(keep_groups: Sequence[str]) -> None:
    """Be alone with our mounts, on an empty stage, without control groups but `keep_groups`."""
    namespaces.unshare(namespaces.NEWNS)
    mounts.make_private()
    kept = [(mounts.clone_tree(f"{_CGROUPS}/{name}"), name) for name in keep_groups]
    # Covered is not enough: a runtime reads the list of mounts.
    with contextlib.suppress(OSError):
        mounts.unmount(_CGROUPS)
    mounts.mount("kooi", STAGE, "tmpfs", _FLAGS, "mode=0711,size=4m,nr_inodes=4096")
    for path in (ROOT, BUNDLE, WORK, _CGROUPS):
        os.mkdir(path, 0o711)
    for fd, name in kept:
        os.makedirs(f"{_CGROUPS}/{name}", exist_ok=True)
        mounts.attach(fd, f"{_CGROUPS}/{name}")
        os.close(fd)


def _become_runtime(message: Mapping[str, Any], fds: Sequence[int]) -> NoReturn:
    program, gate = fds
    lay(message["plan"], message["ids"])
    log = os.open(f"{BUNDLE}/{LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    # Away from the numbers that they are to get, before any of these is overwritten.
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    high = [os.dup2(fd, 100 + number, inheritable=False) for number, fd in enumerate((null, log, program, gate))]
    for number, which in ((0, 0), (1, 1), (2, 1), (PROGRAM_FD, 2), (GATE_FD, 3)):
        os.dup2(high[which], number)
    process.close_all_but(range(GATE_FD + 1))
    os.execve(message["argv"][0], message["argv"], {"PATH": _PATH, "XDG_RUNTIME_DIR": BUNDLE})


def lay(plan: Mapping[str, Any], ids: Sequence[int]) -> None:
    """Lay out root, workspace and `config.json` on the stage. `ids`: the host's for the inside's root and code."""
    trees = [(mounts.clone_tree(source), target, os.path.isdir(source)) for source, target in plan["binds"]]
    trees += [dataset_tree(name, source) for name, source in plan["datasets"]]
    mounts.mount("kooi", ROOT, "tmpfs", _FLAGS, "mode=0755,size=1m,nr_inodes=2048")
    for name in _FOLDERS:
        os.mkdir(f"{ROOT}/{name}", 0o755)
    for path, target in plan["links"]:
        os.makedirs(os.path.dirname(ROOT + path), exist_ok=True)
        os.symlink(target, ROOT + path)
    for path, text in plan["texts"]:
        _write(ROOT + path, text)
    for fd, target, is_dir in sorted(trees, key=lambda tree: tree[1]):
        _place(fd, target, is_dir)
    _workspace(plan["size_bytes"], plan["files"], ids[1])
    _write(f"{BUNDLE}/config.json", json.dumps(_with_ids(plan["config"], ids)))


def _with_ids(config: Mapping[str, Any], ids: Sequence[int]) -> dict[str, Any]:
    linux = dict(config["linux"])
    if any(each["type"] == "user" for each in linux["namespaces"]):
        maps = [
            {"containerID": 0, "hostID": ids[0], "size": 1},
            {"containerID": CODE_ID, "hostID": ids[1], "size": 1},
        ]
        linux |= {"uidMappings": maps, "gidMappings": maps}
    return {**config, "linux": linux}


def _workspace(size_bytes: int | None, files: int | None, owner: int) -> None:
    """Mount one tmpfs for home, /tmp and /dev/shm, so that one quota holds for all three."""
    # The kernel counts the root and our three directories too; 0 means no limit to it.
    inodes = 0 if files is None else files + 4
    mounts.mount("kooi", WORK, "tmpfs", _FLAGS, f"mode=0711,size={size_bytes or 0},nr_inodes={inodes}")
    for name, mode in (("home", 0o700), ("tmp", 0o1777), ("shm", 0o1777)):
        os.mkdir(f"{WORK}/{name}")
        os.chmod(f"{WORK}/{name}", mode)
        os.chown(f"{WORK}/{name}", owner, owner)


def _place(fd: int, target: str, is_dir: bool) -> None:
    if not os.path.exists(ROOT + target):
        if is_dir:
            os.makedirs(ROOT + target)
        else:
            _write(ROOT + target, "")
    flags = mounts.RDONLY | _FLAGS | (mounts.NOEXEC if target.startswith("/data/") else 0)
    mounts.set_attributes(fd, flags)
    mounts.attach(fd, ROOT + target)
    os.close(fd)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
