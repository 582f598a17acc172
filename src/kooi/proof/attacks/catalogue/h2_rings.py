"""H2: io_uring and userfaultfd, with arguments that can only be refused."""

from kooi.proof.attacks.probes import surface

PROGRAM = surface(
    "H2",
    "io_uring and userfaultfd",
    """
call("userfaultfd", 0x7FFFFFFF)
call("io_uring_setup", 0, 0)
call("io_uring_enter", -1, 0, 0, 0, 0, 0)
call("io_uring_register", -1, 0, 0, 0)
""",
)
