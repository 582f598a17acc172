"""H5: tracing other processes, with arguments that can only be refused."""

from kooi.proof.attacks.probes import surface

PROGRAM = surface(
    "H5",
    "tracing other processes",
    """
call("ptrace", 9999, -1, 0, 0)
call("process_vm_readv", -1, 0, 0, 0, 0, 0)
call("process_vm_writev", -1, 0, 0, 0, 0, 0)
call("pidfd_getfd", -1, -1, 0)
call("kcmp", -1, -1, 0, 0, 0)
call("process_madvise", -1, 0, 0, 0, 0)
""",
)
