"""The suites: a literal table of names to the modules of their programs."""

from __future__ import annotations

import importlib

from kooi.contract.errors import InvalidRequest
from kooi.proof.attacks.model import Program

SUITES: dict[str, tuple[str, ...]] = {
    "classic": ("classic.loop", "classic.memory", "classic.fork", "classic.disk", "classic.credentials",
                "classic.service"),
    "catalogue": (
        "catalogue.a1_busy_loop", "catalogue.a2_deaf", "catalogue.a3_daemon", "catalogue.a4_sleeper",
        "catalogue.a12_held_output", "catalogue.b1_allocate", "catalogue.b2_together", "catalogue.b3_shared_memory",
        "catalogue.c1_bombs", "catalogue.c3_zombies", "catalogue.c4_signals", "catalogue.c6_spy",
        "catalogue.c7_group", "catalogue.d1_fill", "catalogue.d2_inodes", "catalogue.d5_flood",
        "catalogue.d7_bytes", "catalogue.e1_secrets", "catalogue.e2_processes", "catalogue.e5_devices",
        "catalogue.e6_setuid", "catalogue.f1_paths", "catalogue.f2_folder_link", "catalogue.f3_race",
        "catalogue.f4_download", "catalogue.g1_network", "catalogue.g6_families", "catalogue.h1_bpf",
        "catalogue.h2_rings", "catalogue.h3_keys", "catalogue.h4_namespaces", "catalogue.h5_tracing",
        "catalogue.h6_machine", "catalogue.h8_terminal", "catalogue.i1_descriptors", "catalogue.i2_environment",
        "catalogue.i9_command_lines", "catalogue.j1_groups", "catalogue.k1_forgery", "catalogue.k2_exit_codes",
        "catalogue.k3_control_channel", "catalogue.l1_leftovers", "catalogue.l2_shared_memory",
        "catalogue.n2_full_pipe",
    ),
}  # fmt: skip


def load(suite: str, only: tuple[str, ...] = ()) -> tuple[Program, ...]:
    """Return the programs of `suite` in order, `only` those ids when any are named."""
    if suite not in SUITES:
        raise InvalidRequest(f"no suite {suite!r}", key="suite", fix=f"choose one of {', '.join(SUITES)}")
    programs = tuple(_program(name) for name in SUITES[suite])
    unknown = set(only) - {p.id for p in programs}
    if unknown:
        raise InvalidRequest(f"no program {', '.join(sorted(unknown))} in suite {suite!r}", key="only")
    return tuple(p for p in programs if not only or p.id in only)


def _program(name: str) -> Program:
    module = importlib.import_module(f"kooi.proof.attacks.{name}")
    program = module.PROGRAM
    assert isinstance(program, Program)
    return program
