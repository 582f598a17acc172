"""The plan of the level `confined`: no namespace, so Landlock domains one inside the other, and filters. Pure.

Theory of operation. Three domains, each inside the last: the zygote's reads what an interpreter needs and writes to
private folders; a box's, of its warden and agent, is the edge that no signal crosses, and writes to its own folder
only; the code's, entered by each of its processes, has no /proc and reaches neither warden nor agent.
"""

from __future__ import annotations

from typing import Any

from kooi.contract.backend import HostFacts
from kooi.contract.spec import Spec
from kooi.images.host import HOME, View
from kooi.spawn.plan import AGENT_PROCESSES, BoxPlan, CellPlan, Plan, Step, agent_setup

# What a clause needs of Landlock: without `truncate` a file that cannot be opened can be emptied all the same.
FILES_ABI, SCOPE_ABI = 3, 6
# The warden comes on top of what every box has.
OWN_PROCESSES = AGENT_PROCESSES + 1

_FILES = (("files", 1), ("rename", 2), ("truncate", 3))
_SCOPES = ("abstract_unix", "signal")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_READ = ("read", "execute")
_PROC: tuple[str, tuple[str, ...]] = ("/proc", ("read", "write"))


def plan_confined(spec: Spec, facts: HostFacts, view: View) -> Plan:
    """Compile a spec for the level `confined`."""
    scoped = facts.landlock_abi >= SCOPE_ABI
    restrictions = ("inet", "unix", "strangers") + (() if facts.cgroup_writable else ("memfd",))
    files = tuple(name for name, needed in _FILES if facts.landlock_abi >= needed)
    scopes = _SCOPES if scoped else ()
    common = _common(view)
    datasets = tuple((d.name, d.source) for d in spec.policy.datasets)
    own = ("home", "tmp")
    cell = CellPlan(
        isolated=False,
        ids="leased" if facts.euid == 0 else "none",
        view=view,
        datasets=datasets,
        namespaces=(),
        guest=agent_setup(view, HOME, "", None),
        restrictions=restrictions,
        prepare=(
            _rules("box", (*files, *scopes), [*common, _PROC], own, spec),
            ("enter_domain", {"name": "box"}),
            ("warden", {"scoped": scoped}),
            _rules("code", (*files, *scopes), common, own, spec),
            ("rlimits", {}),
        ),
        seal=(("no_new_privileges", {}), ("agent_calls", {"restrictions": restrictions})),
        enclose=(
            ("no_new_privileges", {}),
            _rules("zygote", files, [*common, _PROC], ("",), spec),
            ("enter_domain", {"name": "zygote"}),
            ("zygote_calls", {}),
        ),
        code=(
            ("oom_first", {}),
            ("enter_domain", {"name": "code", "keep": True}),
            ("seccomp", {"restrictions": restrictions}),
        ),
    )
    return Plan(cell, _box(spec))


def _box(spec: Spec) -> BoxPlan:
    limits = spec.limits
    values: dict[str, Any] = {
        "open_files": limits.open_files,
        "file_bytes": limits.disk_bytes,
        "data_bytes": limits.memory_bytes,
    }
    if limits.cpu_seconds is not None:
        # Per process, and only a backstop: the host measures the whole box.
        values["cpu_seconds"] = int(limits.cpu_seconds) + 1
    processes = None if limits.processes is None else limits.processes + OWN_PROCESSES
    return BoxPlan(
        (("rlimits", values),),
        spec.fresh,
        HOME,
        limits.memory_bytes,
        processes,
        disk_bytes=limits.disk_bytes,
        files=limits.files,
    )


def _common(view: View) -> list[tuple[str, tuple[str, ...]]]:
    """Return what every domain allows: the view where it is, and harmless devices."""
    found: list[tuple[str, tuple[str, ...]]] = [(source, _READ) for source, _ in view.binds]
    return found + [(f"/dev/{name}", ("read", "write")) for name in _DEVICES]


def _rules(
    name: str,
    clauses: tuple[str, ...],
    allow: list[tuple[str, tuple[str, ...]]],
    own: tuple[str, ...],
    spec: Spec,
) -> Step:
    sources = tuple(d.source for d in spec.policy.datasets)
    return "domain_rules", {"name": name, "clauses": clauses, "allow": allow, "own": own, "datasets": sources}
