"""H1: BPF and performance events, with arguments that can only be refused."""

from kooi.proof.attacks.probes import surface

PROGRAM = surface(
    "H1",
    "BPF and performance events",
    """
call("bpf", 9999, 0, 0)
call("perf_event_open", 0, 0, -1, -1, 0)
""",
)
