"""Process 1 of the test guest: mounts what a system has, runs one test, says how it ended, switches the machine off.

With "systemd" it makes way for that; the test is a service then, and this program is called again before and after it.

It runs on whatever Python was packed and imports only the standard library. `/vm.json` says what to do. The first line
on the second serial port is `ready`, the last `{"exit": N}`; all output of the test goes to the first.
"""

import ctypes
import json
import os
import signal
import socket
import struct
import sys
import time
import traceback

LIBC = ctypes.CDLL(None, use_errno=True)
MS_BIND, MS_MOVE = 4096, 8192
POWER_OFF = 0x4321FEDC
FINIT_MODULE = 313


def call(result, what):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source, target, kind, flags=0, data=None):
    os.makedirs(target, exist_ok=True)
    call(
        LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode() if data else None),
        "mount " + target,
    )


def move_root():
    """Put a mount over the initial root: pivot_root refuses to leave the very first mount."""
    mount("/", "/mnt", "none", MS_BIND)
    os.chdir("/mnt")
    call(LIBC.mount(b".", b"/", None, MS_MOVE, None), "move the root")
    os.chroot(".")
    os.chdir("/")


def mounts(cgroup):
    mount("proc", "/proc", "proc")
    mount("sysfs", "/sys", "sysfs")
    mount("devtmpfs", "/dev", "devtmpfs")
    mount("devpts", "/dev/pts", "devpts", data="ptmxmode=666")
    mount("tmpfs", "/dev/shm", "tmpfs")
    mount("tmpfs", "/tmp", "tmpfs", data="mode=1777")
    mount("tmpfs", "/run", "tmpfs", data="mode=755")
    if cgroup == "v2":
        mount("none", "/sys/fs/cgroup", "cgroup2")
    elif cgroup in ("v1", "hybrid"):
        mount("none", "/sys/fs/cgroup", "tmpfs")
        for name in ("memory", "pids", "cpu,cpuacct", "freezer"):
            mount("none", "/sys/fs/cgroup/" + name, "cgroup", data=name)
        if cgroup == "hybrid":
            mount("none", "/sys/fs/cgroup/unified", "cgroup2")
    for link, target in (("fd", "self/fd"), ("stdin", "self/fd/0"), ("stdout", "self/fd/1"), ("stderr", "self/fd/2")):
        if not os.path.lexists("/dev/" + link):
            os.symlink("/proc/" + target, "/dev/" + link)


def load_modules(folder):
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        call(LIBC.syscall(FINIT_MODULE, fd, b"", 0), "load " + name)
        os.close(fd)


def loopback_up():
    import fcntl

    with socket.socket() as one:
        fcntl.ioctl(one, 0x8914, struct.pack("16sH14x", b"lo", 1))


def run(todo):
    """Run the test as a child and reap whatever else ends meanwhile; return its exit code."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if todo["uid"]:
            os.setgroups([])
            os.setresgid(todo["uid"], todo["uid"], todo["uid"])
            os.setresuid(todo["uid"], todo["uid"], todo["uid"])
        os.chdir(todo["cwd"])
        os.execve(todo["argv"][0], todo["argv"], todo["env"])
    end = time.monotonic() + todo["seconds"]
    while time.monotonic() < end:
        done, status = os.waitpid(-1, os.WNOHANG)
        if done == pid:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        if done == 0:
            time.sleep(0.005)
    print(f"the test did not end in {todo['seconds']:g} s", flush=True)
    return 124


def report(line):
    fd = os.open("/dev/ttyS1", os.O_WRONLY | os.O_NOCTTY)
    os.write(fd, line.encode() + b"\n")
    call(LIBC.tcdrain(fd), "drain")
    os.close(fd)


def power_off():
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(0.1)
    LIBC.reboot(POWER_OFF)
    os._exit(1)


def over():
    """Report how the service ended, from what systemd says in the environment."""
    status = os.environ.get("EXIT_STATUS", "")
    code = int(status) if status.isdigit() else 124 if os.environ.get("SERVICE_RESULT") == "timeout" else 125
    report(json.dumps({"exit": code, "said": os.environ.get("SERVICE_RESULT")}))
    power_off()


def main():
    code = 125
    try:
        move_root()
        with open("/vm.json") as file:
            todo = json.load(file)
        if todo["systemd"]:
            load_modules("/modules")
            os.execv("/usr/lib/systemd/systemd", ["systemd"])
        mounts(todo["cgroup"])
        load_modules("/modules")
        loopback_up()
        report("ready")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = run(todo)
        sys.stdout.flush()
        report(json.dumps({"exit": code}))
    except BaseException:
        traceback.print_exc()
    finally:
        power_off()


if sys.argv[1:] == ["ready"]:
    report("ready")
elif sys.argv[1:] == ["over"]:
    over()
else:
    main()
