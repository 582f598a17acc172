"""Each flag is there for a reason: without it, the proof that it gives must fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from kooi.contract.errors import KooiError
from kooi.oci import bundle, engine_config, podman_config
from tests.oci import proofs
from tests.oci.test_live import SHARED, go

Change = Callable[[dict[str, Any]], object]
Plan = Callable[[bundle.Bundle], bundle.Bundle]
_CAPABILITIES = ["CAP_NET_RAW", "CAP_SETUID"]


def _without_namespace(name: str) -> Change:
    def change(made: dict[str, Any]) -> None:
        linux = made["linux"]
        linux["namespaces"] = [each for each in linux["namespaces"] if each["type"] != name]

    return change


# What is taken away from a bundle's config.json, and which finding that must give.
BUNDLE: dict[str, tuple[Change, str]] = {
    "capabilities": (
        lambda made: made["process"].update(capabilities=dict.fromkeys(("bounding", "permitted"), _CAPABILITIES)),
        "capabilities",
    ),
    "no_new_privileges": (lambda made: made["process"].update(noNewPrivileges=False), "does not start"),
    "seccomp": (lambda made: made["linux"].pop("seccomp"), "seccomp"),
    "read_only_root": (lambda made: made["root"].update(readonly=False), "read_only_root"),
    "masked_paths": (lambda made: made["linux"].update(maskedPaths=[]), "masked"),
    "read_only_paths": (lambda made: made["linux"].update(readonlyPaths=[]), "read_only_paths"),
    "rlimits": (lambda made: made["process"].update(rlimits=[]), "rlimits"),
    # The workspace is the code's id's, and root of the inside has no capability to pass it by.
    "user": (lambda made: made["process"]["user"].update(uid=0, gid=0), "does not start"),
    "network": (_without_namespace("network"), "namespace_net"),
    "ipc": (_without_namespace("ipc"), "namespace_ipc"),
    "cgroup": (_without_namespace("cgroup"), "namespace_cgroup"),
}
# The same of what the warden itself lays out and sets.
PLAN: dict[str, tuple[dict[str, Any], str]] = {
    "size": ({"size_bytes": None}, "disk"),
    "inodes": ({"files": None}, "files"),
    "memory": ({"memory_bytes": None}, "memory"),
    "pids": ({"processes": None}, "processes"),
}
_ROOMY = {"/home": "rw,exec,nosuid,nodev,mode=1777,size=64m", "/dev/shm": "rw,nosuid,nodev,size=64m"}
DOCKER: dict[str, tuple[Change, str]] = {
    "ReadonlyRootfs": (lambda made: made["HostConfig"].update(ReadonlyRootfs=False), "read_only_root"),
    "CapDrop": (lambda made: made["HostConfig"].update(CapDrop=[]), "capabilities"),
    "no-new-privileges": (
        lambda made: made["HostConfig"].update(SecurityOpt=made["HostConfig"]["SecurityOpt"][1:]),
        "does not start",
    ),
    "seccomp": (
        lambda made: made["HostConfig"].update(SecurityOpt=["no-new-privileges", "seccomp=unconfined"]),
        "seccomp",
    ),
    "PidsLimit": (lambda made: made["HostConfig"].update(PidsLimit=-1, Ulimits=[]), "processes"),
    "Memory": (lambda made: made["HostConfig"].update(Memory=0, MemorySwap=-1), "memory"),
    "Tmpfs": (lambda made: made["HostConfig"].update(Tmpfs=_ROOMY), "disk"),
    "Tmpfs of shm": (
        lambda made: made["HostConfig"]["Tmpfs"].update({"/dev/shm": _ROOMY["/dev/shm"]}),
        "shm",
    ),
    "nr_inodes": (
        lambda made: made["HostConfig"]["Tmpfs"].update({"/home": "rw,exec,nosuid,nodev,mode=1777,size=14m"}),
        "files",
    ),
    "nosuid,nodev": (
        lambda made: made["HostConfig"]["Tmpfs"].update({"/home": "rw,exec,suid,dev,mode=1777,size=14m"}),
        "workspace_options",
    ),
    "IpcMode": (lambda made: made["HostConfig"].update(IpcMode="host", Tmpfs=_ROOMY), "namespace_ipc"),
    "CgroupnsMode": (lambda made: made["HostConfig"].update(CgroupnsMode="host"), "namespace_cgroup"),
    "NetworkMode": (lambda made: made.update(NetworkDisabled=False) or made["HostConfig"].update(NetworkMode="host"),
                    "namespace_net"),
    "MaskedPaths": (lambda made: made["HostConfig"].update(MaskedPaths=[]), "masked"),
    "ReadonlyPaths": (lambda made: made["HostConfig"].update(ReadonlyPaths=[]), "read_only_paths"),
    "Ulimits": (lambda made: made["HostConfig"].update(Ulimits=[]), "rlimits"),
    "User": (lambda made: made.update(User="0:0"), "user_is_root"),
}  # fmt: skip
# Podman's own defaults are beyond what a host may allow.
_FEW = [{"type": name, "soft": 1024, "hard": 1024} for name in ("NOFILE", "NPROC")]
PODMAN: dict[str, tuple[Change, str]] = {
    "read_only_filesystem": (lambda made: made.update(read_only_filesystem=False), "read_only_root"),
    "cap_drop": (lambda made: made.update(cap_drop=[], cap_add=["CAP_NET_RAW"]), "capabilities"),
    "no_new_privileges": (lambda made: made.update(no_new_privileges=False), "does not start"),
    "seccomp": (lambda made: made.update(seccomp_profile_path="unconfined"), "seccomp"),
    "pids": (
        lambda made: made["resource_limits"].update(pids={"limit": -1}) or made.update(r_limits=_FEW),
        "processes",
    ),
    "memory": (lambda made: made["resource_limits"].pop("memory"), "memory"),
    "the runtime's inodes": (lambda made: made.update(annotations={}), "files"),
    "netns": (lambda made: made.update(netns={"nsmode": "host"}), "namespace_net"),
    "cgroupns": (lambda made: made.update(cgroupns={"nsmode": "host"}), "namespace_cgroup"),
    "user": (lambda made: made.update(user="0:0"), "user_is_root"),
    "r_limits": (lambda made: made.update(r_limits=_FEW), "rlimits"),
}


def found(engine: str) -> set[str]:
    """Return what the proofs find, or that there was nothing to look at."""
    try:
        return go(proofs.holes(SHARED.get(engine, frozenset())))
    except KooiError:
        return {"does not start"}


def _changed(monkeypatch: pytest.MonkeyPatch, module: Any, change: Change) -> None:
    real = module.config

    def without(*args: Any, **named: Any) -> dict[str, Any]:
        made: dict[str, Any] = real(*args, **named)
        change(made)
        return made

    monkeypatch.setattr(module, "config", without)


@pytest.mark.parametrize("engine_name", ["crun", "runc"])
@pytest.mark.parametrize("flag", BUNDLE)
def test_without_a_key_of_the_bundle_its_proof_fails(
    flag: str, engine_name: str, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(engine_name)
    change, finding = BUNDLE[flag]
    _changed(monkeypatch, bundle, change)
    assert finding in found(engine_name)


@pytest.mark.parametrize("part", PLAN)
def test_without_what_the_warden_sets_its_proof_fails(
    part: str, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use("crun")
    values, finding = PLAN[part]
    real = bundle.bundle

    def without(*args: Any) -> bundle.Bundle:
        made = dataclasses.replace(real(*args), **values)
        if part == "pids":
            made.config["process"]["rlimits"] = []
        return made

    monkeypatch.setattr(bundle, "bundle", without)
    assert finding in found("crun")


@pytest.mark.parametrize("flag", DOCKER)
def test_without_a_flag_of_docker_its_proof_fails(
    flag: str, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use("docker")
    change, finding = DOCKER[flag]
    _changed(monkeypatch, engine_config, change)
    assert finding in found("docker")


@pytest.mark.parametrize("flag", PODMAN)
def test_without_a_flag_of_podman_its_proof_fails(
    flag: str, use: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use("podman")
    change, finding = PODMAN[flag]
    _changed(monkeypatch, podman_config, change)
    assert finding in found("podman")
