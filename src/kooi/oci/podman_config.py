"""What a container is, as Podman's own interface takes it: a spec and an image, compiled. Pure.

The interface that Podman shares with Docker puts a tmpfs without a size on /tmp, /run and /var/tmp of a read-only
root, and cannot be told not to.
"""

from __future__ import annotations

import json
from typing import Any

from kooi.contract.backend import HostFacts
from kooi.contract.spec import Spec
from kooi.images.host import View
from kooi.oci import bundle
from kooi.oci.engine_config import LABEL, tmpfs

#: the annotation that says how many files each tmpfs may hold
INODES = "kooi.inodes"
# Podman refuses the option that bounds a tmpfs's number of files, and hands on all others. So its runtime is this,
# which puts them in and becomes the real one; without the annotation it changes nothing.
RUNTIME = """#!{python} -ISB
import json, os, sys
given = sys.argv[1:]
if "create" in given:
    path = given[given.index("--bundle") + 1] + "/config.json"
    with open(path) as file:
        config = json.load(file)
    wanted = json.loads(config.get("annotations", {{}}).get("{inodes}", "{{}}"))
    for mount in config["mounts"]:
        if mount["type"] == "tmpfs" and mount["destination"] in wanted:
            mount["options"].append("nr_inodes=%d" % wanted[mount["destination"]])
    with open(path, "w") as file:
        json.dump(config, file)
os.execv("{runtime}", ["{runtime}", *given])
"""


def config(
    spec: Spec, facts: HostFacts, view: View, command: list[str], *, image: str, uid: int, owner: str, profile: str
) -> dict[str, Any]:
    """Return the body of the request that creates the container. `profile` is the path of a file with its filter."""
    limits = spec.limits
    return {
        "image": image,
        "user": f"{uid}:{uid}",
        "entrypoint": command, "command": [],
        "env": bundle.environment(view), "env_host": False, "httpproxy": False,
        "work_dir": "/",
        "hostname": "kooi",
        "netns": {"nsmode": "none"}, "ipcns": {"nsmode": "none"}, "cgroupns": {"nsmode": "private"},
        "pidns": {"nsmode": "private"}, "utsns": {"nsmode": "private"},
        "read_only_filesystem": True,
        "image_volume_mode": "ignore",
        "cap_drop": ["ALL"], "cap_add": [],
        "no_new_privileges": True,
        "privileged": False,
        "seccomp_profile_path": profile,
        "mask": list(bundle.MASKED),
        "mounts": _mounts(spec),
        "r_limits": [
            {"type": each["type"].removeprefix("RLIMIT_"), "soft": each["soft"], "hard": each["hard"]}
            for each in bundle.resource_limits(spec, facts)
        ],
        "resource_limits": {
            # Together: memory and swap in one number, so none of it is swap on top.
            "memory": {name: limits.memory_bytes for name in ("limit", "swap") if limits.memory_bytes is not None},
            "pids": {"limit": -1 if limits.processes is None else limits.processes + bundle.AGENT_PROCESSES},
        },
        "log_configuration": {"driver": "none"},
        "labels": {LABEL: owner},
        "annotations": {INODES: json.dumps(_inodes(spec))},
        "remove": True,
        "stdin": True,
        "terminal": False,
        "systemd": "false",
        "sdnotifyMode": "ignore",
        "init": False,
        "restart_policy": "no",
        "stop_signal": 9, "stop_timeout": 0,
    }  # fmt: skip


def _mounts(spec: Spec) -> list[dict[str, Any]]:
    limits = spec.limits
    found: list[dict[str, Any]] = [
        # It begins with what the image has there, unless told otherwise.
        {"destination": path, "type": "tmpfs", "source": "tmpfs",
         "options": [*(each for each in options if not each.startswith("nr_inodes=")), "notmpcopyup"]}
        for path, options in tmpfs(limits.disk_bytes, limits.files).items()
    ]  # fmt: skip
    return found + [
        {"destination": f"/data/{each.name}", "type": "bind", "source": each.source,
         "options": ["bind", "ro", "nosuid", "nodev", "noexec", "rprivate"]}
        for each in spec.policy.datasets
    ]  # fmt: skip


def _inodes(spec: Spec) -> dict[str, int]:
    return {
        path: int(each.partition("=")[2])
        for path, options in tmpfs(spec.limits.disk_bytes, spec.limits.files).items()
        for each in options
        if each.startswith("nr_inodes=")
    }
