"""H6: calls that change the machine, with arguments that can only be refused."""

from kooi.proof.attacks.probes import surface

PROGRAM = surface(
    "H6",
    "calls that change the machine",
    """
# Every argument is one that the kernel refuses after it has let the call in.
call("kexec_load", 0, 9999, 0, 0xFFFFFFFF)
call("init_module", 0, 0, 0)
call("finit_module", -1, 0, 0x7FFF)
call("delete_module", 0, 0)
call("reboot", 0, 0, 0, 0)
call("swapon", 0, 0x7FFFFFFF)
call("acct", 1)
call("syslog", 9999, 0, 0)
call("iopl", 9)
call("ioperm", -1, 2, 1)
call("settimeofday", 1, 0)
call("sethostname", 0, -1)
call("quotactl", 0x7FFFFF00, 0, 0, 0)
call("mount", 0, 0, 0, 0, 0)
call("umount2", 0, 0x7FFFFFFF)
call("pivot_root", 0, 0)
call("open_tree", -1, 0, 0x7FFFFFFF)
call("move_mount", -1, 0, -1, 0, 0x7FFFFFFF)
call("fsopen", 0, 0x7FFFFFFF)
call("mount_setattr", -1, 0, 0, 0, 0)
call("open_by_handle_at", -1, 0, 0)
""",
)
