"""What each engine is told, compared with what is stored: a change of it is a change of the boundary."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kooi.contract.backend import HostFacts
from kooi.contract.limits import MIB, Limits
from kooi.contract.policy import Policy
from kooi.contract.spec import Spec
from kooi.images.host import View
from kooi.oci import bundle, engine_config, podman_config
from kooi.spawn import host

GOLDEN = Path(__file__).parent / "golden"
VIEW = View(
    binds=(("/store/tree/usr", "/usr"), ("/store/tree/etc", "/etc")),
    texts=(),
    links=(("/bin", "usr/bin"),),
    python="/usr/bin/python3.11",
    sys_path=("/usr/lib/python311.zip", "/usr/lib/python3.11"),
    warm=("json", "numpy"),
)
COMMAND = ["/usr/bin/python3.11", "-I", "-S", "-B", "-c", "BOOT"]


def facts() -> HostFacts:
    return dataclasses.replace(host.host_facts(), cpus=2, cgroup="v1", cgroup_writable=True)


def compiled(name: str, spec: Spec) -> dict[str, Any]:
    if name in ("crun", "runc"):
        return dataclasses.asdict(bundle.bundle(spec, facts(), VIEW, COMMAND, "x86_64", name))
    module: Any = engine_config if name == "docker" else podman_config
    made: dict[str, Any] = module.config(
        spec, facts(), VIEW, COMMAND, image="sha256:0", uid=1_879_048_193, owner="1:2:3:4",
        profile="PROFILE",
    )  # fmt: skip
    return made


@pytest.mark.parametrize("name", ["crun", "runc", "docker", "podman"])
def test_it_is_what_is_stored(name: str) -> None:
    made = json.loads(json.dumps(compiled(name, Spec(level="container"))))
    assert made == json.loads((GOLDEN / f"{name}.json").read_text())


def test_both_tmpfs_together_hold_the_limits() -> None:
    for size in (4096, 1 * MIB, 256 * MIB, 2**40):
        for files in (1, 7, 10_000):
            parts = engine_config.tmpfs(size, files).values()
            numbers = [dict(each.split("=") for each in options if "=" in each) for options in parts]
            assert sum(int(each["size"]) for each in numbers) == size or len(numbers) == 1
            assert all(int(each["size"]) > 0 for each in numbers), "0 is no limit to the kernel"
            assert sum(int(each["nr_inodes"]) for each in numbers) <= files + 4


def test_no_limit_is_no_limit() -> None:
    limits = Limits(memory_bytes=None, processes=None, disk_bytes=None, files=None, cpu_seconds=None, open_files=None)
    spec = Spec(level="container", limits=limits)
    made = compiled("docker", spec)["HostConfig"]
    assert (made["Memory"], made["MemorySwap"], made["PidsLimit"]) == (0, -1, -1)
    assert {"nproc", "nofile", "cpu"}.isdisjoint(each["Name"] for each in made["Ulimits"])


def test_datasets_are_read_only_everywhere() -> None:
    spec = Spec(level="container", policy=Policy.from_mapping({"datasets": {"sales": "/srv/sales"}}))
    (mount,) = compiled("docker", spec)["HostConfig"]["Mounts"]
    assert mount["ReadOnly"] is True and mount["Target"] == "/data/sales"
    assert [each for each in compiled("podman", spec)["mounts"] if "ro" in each["options"]]
    assert compiled("crun", spec)["datasets"] == (("sales", "/srv/sales"),)


def test_nothing_of_the_host_is_in_it() -> None:
    for name in ("crun", "docker", "podman"):
        text = json.dumps(compiled(name, Spec(level="container")))
        assert "docker.sock" not in text and '"Binds"' not in text
