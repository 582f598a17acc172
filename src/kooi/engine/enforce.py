"""May this spec be built at this level? Every clause is held, waived by name, or the answer is no.

A clause graded `none` is refused unless the policy waives it by name or the level itself is open there (a backend
lists those in `Enforcement.waivers`). `strict` accepts nothing but `kernel`, whatever was waived. What `require` names
must be there and held by the kernel.
"""

from __future__ import annotations

import dataclasses

from kooi.contract.errors import PolicyUnenforceable
from kooi.contract.policy import Policy
from kooi.contract.result import Clause, Enforcement
from kooi.spawn.host import host_facts


def granted(enforcement: Enforcement, policy: Policy) -> Enforcement:
    """Return `enforcement` with the waivers that took effect; raise `PolicyUnenforceable` naming every open clause."""
    if policy.strict:
        _refuse(enforcement, [c for c in enforcement.clauses if c.grade != "kernel"], "strict accepts only kernel")
    held = {clause.name for clause in enforcement.clauses if clause.grade == "kernel"}
    missing = [Clause(name, "not there", "none") for name in policy.require if name not in held]
    if missing:
        _refuse(enforcement, missing, "the policy requires it")
    waived = {*policy.waive, *enforcement.waivers}
    bare = [clause for clause in enforcement.clauses if clause.grade == "none"]
    if refused := [clause for clause in bare if clause.name not in waived]:
        names = ", ".join(f'"{clause.name}"' for clause in refused)
        _refuse(enforcement, refused, f"choose a stronger level, or waive by name: waive = [{names}]")
    return dataclasses.replace(enforcement, waivers=tuple(clause.name for clause in bare))


def _refuse(enforcement: Enforcement, clauses: list[Clause], fix: str) -> None:
    if not clauses:
        return
    said = ", ".join(f"{clause.name} ({clause.grade}: {clause.mechanism})" for clause in clauses)
    key = clauses[0].name
    raise PolicyUnenforceable(f"level {enforcement.level!r} cannot hold {said}", key=key, fix=fix)


__all__ = ["granted", "host_facts"]
