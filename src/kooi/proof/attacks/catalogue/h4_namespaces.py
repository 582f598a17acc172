"""H4: new namespaces, with arguments that can only be refused."""

from kooi.proof.attacks.probes import surface

PROGRAM = surface(
    "H4",
    "new namespaces",
    """
# In a child, for it may work. 17 is SIGCHLD.
for name, flag in (("user", 0x10000000), ("mount", 0x20000), ("network", 0x40000000), ("pid", 0x20000000)):
    pid = os.fork()
    if pid == 0:
        if flag == 0x10000000:
            call("unshare", flag)
        else:
            call("unshare", flag | 0x10000000)
        os._exit(0)
    os.waitpid(pid, 0)
pid = os.fork()
if pid == 0:
    main = os.getpid()
    result = _libc.syscall(ctypes.c_long(P["numbers"]["clone"]), ctypes.c_long(0x10000000 | 17), ctypes.c_long(0),
                           ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0))
    if result == 0:
        os._exit(0)
    report("clone", result, ctypes.get_errno())
    os._exit(0)
os.waitpid(pid, 0)
call("clone3", 0, 0)
call("setns", -1, 0)
""",
)
