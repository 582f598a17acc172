"""What a container is, as Docker's interface takes it: a spec and an image, compiled. Pure; Podman takes the same."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from kooi.contract.backend import HostFacts
from kooi.contract.limits import MIB
from kooi.contract.spec import Spec
from kooi.images.host import HOME, View
from kooi.linux import cgroup_v1
from kooi.oci import bundle

LABEL = "kooi.owner"
#: made by the agent in the one tmpfs: what the image says is /tmp is a link to here
FOLDERS = ((HOME, 0o700), ("/home/tmp", 0o1777))
LINKS = (("tmp", "home/tmp"),)
# Of the workspace for /dev/shm, which an engine can give no place in the same tmpfs; a part, and at most so much.
_SHARED_PART, _SHARED_BYTES, _SHARED_FILES = 8, 16 * MIB, 64


def config(
    spec: Spec,
    facts: HostFacts,
    view: View,
    command: list[str],
    *,
    image: str,
    uid: int,
    owner: str,
    profile: str,
) -> dict[str, Any]:
    """Return the body of the request that creates the container. `profile` is its filter."""
    return {
        "Image": image,
        "User": f"{uid}:{uid}",
        "Entrypoint": command,
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in bundle.environment(view).items()],
        "WorkingDir": "/",
        "Hostname": "kooi",
        "NetworkDisabled": True,
        "AttachStdin": True, "AttachStdout": True, "AttachStderr": True,
        "OpenStdin": True,
        # With the end of our connection the agent's input ends, and with that everything.
        "StdinOnce": True,
        "Tty": False,
        "StopSignal": "SIGKILL",
        "StopTimeout": 0,
        "Labels": {LABEL: owner},
        "HostConfig": _host_config(spec, facts, profile),
    }  # fmt: skip


def _host_config(spec: Spec, facts: HostFacts, profile: str) -> dict[str, Any]:
    limits = spec.limits
    memory = limits.memory_bytes or 0
    return {
        "AutoRemove": True,
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"], "CapAdd": [],
        "SecurityOpt": ["no-new-privileges", f"seccomp={profile}"],
        "Privileged": False,
        "PidsLimit": -1 if limits.processes is None else limits.processes + bundle.AGENT_PROCESSES,
        # Together: memory and swap in one number, so none of it is swap on top.
        "Memory": memory, "MemorySwap": memory or -1,
        # Version 1 does not count the buffers of sockets in that.
        **({"KernelMemoryTCP": cgroup_v1.socket_bytes(memory)} if memory and facts.cgroup in ("v1", "hybrid") else {}),
        "NanoCpus": facts.cpus * 1_000_000_000,
        "IpcMode": "none",
        "CgroupnsMode": "private",
        "LogConfig": {"Type": "none", "Config": {}},
        "Tmpfs": {path: ",".join(options) for path, options in tmpfs(limits.disk_bytes, limits.files).items()},
        "Ulimits": [
            {"Name": each["type"].removeprefix("RLIMIT_").lower(), "Soft": each["soft"], "Hard": each["hard"]}
            for each in bundle.resource_limits(spec, facts)
        ],
        "MaskedPaths": list(bundle.MASKED),
        "ReadonlyPaths": list(bundle.READ_ONLY),
        "Mounts": [
            {"Type": "bind", "Source": each.source, "Target": f"/data/{each.name}", "ReadOnly": True,
             "BindOptions": {"Propagation": "rprivate"}}
            for each in spec.policy.datasets
        ],
        "RestartPolicy": {"Name": "no"},
        "Init": False,
    }  # fmt: skip


def profile_text(machine: str) -> str:
    """Return our filter as an engine takes it."""
    return json.dumps(bundle.seccomp(machine), separators=(",", ":"))


def tmpfs(size_bytes: int | None, files: int | None) -> Mapping[str, tuple[str, ...]]:
    """Return the options of the two tmpfs that together hold `size_bytes` and `files`."""
    shared_bytes = _SHARED_BYTES if size_bytes is None else min(_SHARED_BYTES, size_bytes // _SHARED_PART)
    shared_files = _SHARED_FILES if files is None else min(_SHARED_FILES, files // _SHARED_PART)
    # The kernel counts the root and our two folders too.
    number = 0 if files is None else files - shared_files + 3
    found = {"/home": _options(0 if size_bytes is None else size_bytes - shared_bytes, number)}
    # Nothing of less than a page; the kernel takes a size of nothing for no limit at all.
    if shared_bytes >= os.sysconf("SC_PAGE_SIZE") and shared_files:
        found["/dev/shm"] = _options(shared_bytes, shared_files + 1)
    return found


def _options(size: int, files: int) -> tuple[str, ...]:
    # An engine sets a size of its own where none is given; 0 is none to the kernel.
    return ("rw", "exec", "nosuid", "nodev", "mode=1777", f"size={size}", f"nr_inodes={files}")
