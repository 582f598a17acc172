"""Whether kooi itself runs inside a container, who refuses what there, and what its operator would have to grant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kooi.contract.backend import HostFacts

_MARKS = (("docker", "/.dockerenv"), ("podman", "/run/.containerenv"), ("nspawn", "/run/systemd/container"))
_GROUPS = re.compile(r"/(docker|kubepods|containerd|libpod|lxc)\b")
_KINDS = {"libpod": "podman", "kubepods": "kubernetes"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that `jail` needs and does not get: what, who refuses it, and the flag that grants it."""

    what: str
    by: str
    flag: str


@dataclass(frozen=True, slots=True)
class Container:
    """The container around this process. `refused` is what stands in the way of `jail`, empty when nothing does."""

    kind: str
    refused: tuple[Refusal, ...]

    @property
    def flags(self) -> str:
        """Return what `docker run` would have to be given for `jail`."""
        return " ".join(refusal.flag for refusal in self.refused)


def inside(host: HostFacts, root: Path = Path("/")) -> Container | None:
    """Return the container that this process is in; None outside of one. `root` is where its files are looked for."""
    kind = _kind(root)
    if kind is None:
        return None
    found = []
    if not host.user_namespaces:
        found.append(_userns(root))
    if _profile(root) and not host.mount_in_userns:
        by = f"the AppArmor profile {_profile(root)}"
        found.append(Refusal("mounts in a user namespace", by, "--security-opt apparmor=unconfined"))
    # It is refused only after namespaces are, so it is looked up and not waited for.
    if not host.proc_in_userns and (host.mount_in_userns or _masked(root)):
        by = "the engine, which masks parts of /proc"
        found.append(Refusal("a fresh /proc", by, "--security-opt systempaths=unconfined"))
    return Container(kind, tuple(found))


def _kind(root: Path) -> str | None:
    for kind, mark in _MARKS:
        if (root / mark[1:]).exists():
            return "kubernetes" if (root / "var/run/secrets/kubernetes.io").exists() else kind
    match = _GROUPS.search(_text(root / "proc/1/cgroup"))
    return None if match is None else _KINDS.get(match[1], match[1])


def _userns(root: Path) -> Refusal:
    filtered = re.search(r"^Seccomp:\s*2$", _text(root / "proc/self/status"), re.MULTILINE)
    if filtered:
        return Refusal("user namespaces", "the engine's seccomp profile", "--security-opt seccomp=unconfined")
    return Refusal("user namespaces", "the host's settings (sysctl)", "")


def _masked(root: Path) -> bool:
    lines = _text(root / "proc/self/mountinfo").splitlines()
    return any(fields[4].startswith("/proc/") for fields in map(str.split, lines) if len(fields) > 4)


def _profile(root: Path) -> str:
    """Return the AppArmor profile in force; empty for none."""
    said = _text(root / "proc/self/attr/apparmor/current").strip()
    return "" if said in ("", "unconfined") else said


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
