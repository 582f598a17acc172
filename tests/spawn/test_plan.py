"""The plan is pure and golden: what a spec compiles to on a host with these facts, and in which order."""

from __future__ import annotations

import dataclasses
import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from kooi.contract.backend import HostFacts
from kooi.contract.limits import Limits
from kooi.contract.policy import Dataset, Policy
from kooi.contract.spec import Spec
from kooi.images.host import View, host_view
from kooi.spawn.plan import Plan, plan_jail, plan_process, plan_process_image
from kooi.spawn.plan_confined import plan_confined

GOLDEN = Path(__file__).parent / "golden"
VIEW = View(
    (("/usr", "/usr"),), (("/etc/passwd", "x"),), (("/bin", "usr/bin"),), "/usr/bin/python3.11", ("/lib",), ("re",)
)


def facts(**changes: Any) -> HostFacts:
    base = HostFacts(
        system="Linux", machine="x86_64", kernel="6.18", euid=0, cpus=2, landlock_abi=7, user_namespaces=True,
        mount_in_userns=True, proc_in_userns=True, cgroup="hybrid", cgroup_writable=True, subuid_count=65536,
        newuidmap=True, python="/usr/bin/python3", python_version=(3, 11),
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


CASES: dict[str, Plan] = {
    "jail-root": plan_jail(Spec(), facts(), VIEW),
    "jail-user": plan_jail(Spec(), facts(euid=1000, cgroup_writable=False), VIEW),
    "jail-one-id": plan_jail(Spec(), facts(euid=1000, cgroup_writable=False, newuidmap=False), VIEW),
    "jail-no-landlock": plan_jail(Spec(), facts(landlock_abi=0), VIEW),
    "confined-root": plan_confined(Spec(level="confined"), facts(), VIEW),
    "confined-user": plan_confined(Spec(level="confined"), facts(euid=1000, cgroup_writable=False), VIEW),
    "process-user": plan_process(Spec(level="process"), facts(euid=1000, cgroup_writable=False), VIEW, home="/run/x"),
    "process-image": plan_process_image(Spec(level="process", image="x"), facts(euid=1000), VIEW),
}


@pytest.mark.parametrize("name", CASES)
def test_plan_is_golden(name: str) -> None:
    plan = json.loads(json.dumps(dataclasses.asdict(CASES[name])))
    assert plan == json.loads((GOLDEN / f"{name}.json").read_text())


def test_order_is_security_order() -> None:
    steps = [name for name, _ in CASES["jail-root"].box.steps]
    assert steps == ["quota", "rlimits", "capabilities"]
    assert [name for name, _ in CASES["jail-root"].cell.seal] == ["no_new_privileges", "landlock", "seccomp"]


def test_boxes_of_different_limits_share_a_cell() -> None:
    small = plan_jail(Spec(limits=Limits(memory_bytes=64 << 20, processes=4)), facts(), VIEW)
    assert small.cell.key == CASES["jail-root"].cell.key
    assert small.box.encode() != CASES["jail-root"].box.encode()


def test_datasets_and_preload_make_another_cell() -> None:
    policy = Policy(datasets=(Dataset("sales", "/srv/sales"),))
    assert plan_jail(Spec(policy=policy), facts(), VIEW).cell.key != CASES["jail-root"].cell.key
    warm = dataclasses.replace(VIEW, warm=("re", "numpy"))
    assert plan_jail(Spec(), facts(), warm).cell.key != CASES["jail-root"].cell.key


def test_no_limit_is_no_limit() -> None:
    plan = plan_jail(Spec(limits=Limits(memory_bytes=None, processes=None, disk_bytes=None, files=None)), facts(), VIEW)
    assert (plan.box.memory_bytes, plan.box.processes) == (None, None)
    assert dict(plan.box.steps)["quota"] == {"size_bytes": None, "files": None}
    assert "processes" not in dict(plan.box.steps)["rlimits"]


def test_plan_carries_nothing_of_a_run() -> None:
    policy = Policy(env={"SECRET": "canary-value"})
    encoded = plan_jail(Spec(policy=policy), facts(), VIEW).box.encode()
    assert b"canary-value" not in encoded and b"SECRET" not in encoded


def test_what_the_interpreter_needs_reaches_the_zygote_and_the_code_and_not_the_host() -> None:
    moved = dataclasses.replace(VIEW, env=(("LD_LIBRARY_PATH", "/opt/python/lib"),))
    cell = plan_jail(Spec(), facts(), moved).cell
    assert cell.guest["env"]["LD_LIBRARY_PATH"] == "/opt/python/lib"
    sent = json.loads(cell.encode("/src"))
    assert ["LD_LIBRARY_PATH", "/opt/python/lib"] in sent["build"]["env"]
    assert "LD_LIBRARY_PATH" not in dict(sent["env"])


@pytest.mark.parametrize(
    ("base", "shared", "env"),
    [
        ("/srv/python", 1, (("LD_LIBRARY_PATH", "/opt/python/lib"),)),
        ("/srv/python", 0, ()),
        ("/usr", 1, ()),
    ],
)
def test_a_moved_interpreter_is_told_where_its_library_is(
    monkeypatch: pytest.MonkeyPatch, base: str, shared: int, env: Any
) -> None:
    monkeypatch.setattr(sys, "base_prefix", base)
    monkeypatch.setitem(sysconfig.get_config_vars(), "Py_ENABLE_SHARED", shared)
    found = dict(host_view().env)
    packages = found.pop("PYTHONPATH", "")
    assert tuple(found.items()) == env
    assert all(path.startswith("/opt/site-packages") for path in packages.split(":") if path)


def test_a_confined_box_is_bound_from_the_inside_out() -> None:
    cell = CASES["confined-user"].cell
    assert [name for name, _ in cell.enclose] == ["no_new_privileges", "domain_rules", "enter_domain", "zygote_calls"]
    # The warden stays in the box's own domain, and only what comes after it is the agent.
    assert [name for name, _ in cell.prepare] == ["domain_rules", "enter_domain", "warden", "domain_rules", "rlimits"]
    assert [name for name, _ in cell.code] == ["oom_first", "enter_domain", "seccomp"]
    rules = {values["name"]: values for name, values in (*cell.enclose, *cell.prepare) if name == "domain_rules"}
    assert "/proc" in dict(rules["box"]["allow"]) and "/proc" not in dict(rules["code"]["allow"])
    assert {"signal", "abstract_unix"} <= set(rules["box"]["clauses"]) & set(rules["code"]["clauses"])
    assert {"inet", "unix", "strangers", "memfd"} == set(dict(cell.code)["seccomp"]["restrictions"])


def test_nobody_writes_outside_the_private_folder() -> None:
    policy = Policy(datasets=(Dataset("sales", "/srv/sales"),))
    cell = plan_confined(Spec(level="confined", policy=policy), facts(), VIEW).cell
    for values in (values for name, values in (*cell.enclose, *cell.prepare) if name == "domain_rules"):
        writable = {path for path, access in values["allow"] if "write" in access}
        assert {path for path in writable if not path.startswith("/dev/")} <= {"/proc"}
        assert values["datasets"] == ("/srv/sales",) and "/srv/sales" not in dict(values["allow"])
