"""Recognising the container around kooi, from the files that engines leave, in a root of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kooi.proof.container import inside
from tests.spawn.test_plan import facts

REFUSED: dict[str, Any] = {"user_namespaces": False, "mount_in_userns": False, "proc_in_userns": False}
MASKED = "1 2 0:5 / /proc/kcore rw - tmpfs tmpfs rw\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/1/cgroup", "0::/init.scope\n")
    write(tmp_path, "proc/self/status", "Name:\tpython\nSeccomp:\t2\nSeccomp_filters:\t1\n")
    write(tmp_path, "proc/self/mountinfo", "1 2 0:5 / /proc rw - proc proc rw\n")
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_a_host_is_no_container(root: Path) -> None:
    assert inside(facts(**REFUSED), root) is None


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("run/systemd/container", "systemd-nspawn", "nspawn"),
        ("proc/1/cgroup", "12:pids:/docker/0123\n", "docker"),
        ("proc/1/cgroup", "0::/kubepods/burstable/pod1\n", "kubernetes"),
        ("proc/1/cgroup", "0::/user.slice/session-1.scope\n", None),
        ("proc/1/cgroup", "0::/machine.slice/libpod/1\n", "podman"),
    ],
)
def test_the_marks_of_engines(root: Path, path: str, text: str, kind: str | None) -> None:
    write(root, path, text)
    around = inside(facts(), root)
    assert (around.kind if around else None) == kind


def test_where_nothing_is_refused_nothing_is_asked_for(root: Path) -> None:
    write(root, ".dockerenv", "")
    around = inside(facts(), root)
    assert around is not None and (around.refused, around.flags) == ((), "")


def test_each_refusal_has_its_flag(root: Path) -> None:
    write(root, ".dockerenv", "")
    write(root, "proc/self/mountinfo", MASKED)
    write(root, "proc/self/attr/apparmor/current", "docker-default (enforce)\n")
    around = inside(facts(**REFUSED), root)
    assert around is not None
    assert around.flags.split()[1::2] == ["seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"]
    assert "docker-default" in around.refused[1].by


def test_what_is_masked_is_found_after_namespaces_are_granted(root: Path) -> None:
    write(root, ".dockerenv", "")
    around = inside(facts(proc_in_userns=False), root)
    assert around is not None and around.flags == "--security-opt systempaths=unconfined"


def test_settings_of_the_host_are_no_flag_of_the_engine(root: Path) -> None:
    write(root, ".dockerenv", "")
    write(root, "proc/self/status", "Seccomp:\t0\n")
    around = inside(facts(**REFUSED), root)
    assert around is not None and around.flags == "" and "sysctl" in around.refused[0].by
