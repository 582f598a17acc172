"""H3: kernel keyrings, with arguments that can only be refused."""

from kooi.proof.attacks.probes import surface

PROGRAM = surface(
    "H3",
    "kernel keyrings",
    """
call("keyctl", 9999, 0, 0, 0, 0)
call("add_key", 0, 0, 0, 0, 0)
call("request_key", 0, 0, 0, 0)
""",
)
