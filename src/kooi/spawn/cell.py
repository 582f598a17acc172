"""Builds one cell and turns into its zygote. Run as a program by the spawner, once per cell.

Theory of operation. As root the file view is built first, with full rights, in a private mount namespace, and becomes
the root; only then is the cell's first process forked into new user, pid, mount, network, ipc, uts and cgroup
namespaces, where the ids are a leased range and the mounts are locked. As an ordinary user the order is the other way
round, because mounting needs the user namespace: fork first, build the view inside with the user's own rights.
This program writes the id maps from outside, reports the first process to the spawner by pidfd, and ends; the first
process, now a child of the spawner (a subreaper), gives up what it does not need and executes the image's
interpreter as `spawn/zygote.py`.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Mapping
from typing import Any

from kooi.linux import caps, mounts, namespaces, paths, process, seccomp
from kooi.spawn import messages

_STAGE = "/tmp"
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS = (
    ("/dev/fd", "/proc/self/fd"), ("/dev/stdin", "/proc/self/fd/0"), ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"), ("/dev/ptmx", "pts/ptmx"), ("/var/tmp", "/tmp"), ("/var/run", "/run"),
    ("/etc/mtab", "/proc/self/mounts"),
)  # fmt: skip
_DIRECTORIES = (
    "/proc", "/sys", "/dev/pts", "/dev/shm", "/tmp", "/var", "/run/stage", "/run/empty", "/home/user", "/data", "/root",
    "/etc", "/opt",
)  # fmt: skip
_NAMESPACES = (
    namespaces.NEWUSER | namespaces.NEWPID | namespaces.NEWNS | namespaces.NEWNET | namespaces.NEWIPC
    | namespaces.NEWUTS | namespaces.NEWCGROUP
)  # fmt: skip
# What the zygote needs: to give its boxes ids, nothing else.
_ZYGOTE_CAPS = ("setuid", "setgid")
# With one id the zygote maps its own root into its boxes, which asks for one more.
_ZYGOTE_CAPS_SINGLE = ("setuid", "setgid", "setfcap")


def main(control_fd: int) -> None:
    """Build the cell that the first message on `control_fd` describes."""
    control = socket.socket(fileno=control_fd)
    try:
        _build(messages.receive(control)[0] or {}, control)
    except BaseException as error:
        messages.send(control, {"failed": "cell: %s: %s" % (type(error).__name__, error)})
    finally:
        os._exit(70)


def _build(config: Mapping[str, Any], control: socket.socket) -> None:
    """Build it, and end this process; the first process of the cell goes on. Raises what went wrong, in either."""
    os.umask(0o022)
    if config["ids"] == "root":
        namespaces.unshare(namespaces.NEWNS)
        build_view(config)
    ready_read, ready_write = os.pipe()
    pid, pidfd = namespaces.fork_into(_NAMESPACES)
    if pid == 0:
        os.close(ready_write)
        _become_zygote(config, control, ready_read)
    _map_ids(pid, config)
    messages.send(control, {"cell": True}, fds=[pidfd])
    os.write(ready_write, b"1")
    os._exit(0)


def _map_ids(pid: int, config: Mapping[str, Any]) -> None:
    base, count = config["id_base"], config["id_count"]
    if config["ids"] == "root":
        namespaces.write_maps(pid, [(0, base, count)], [(0, base, count)])
    elif config["ids"] == "single":
        uid, gid = os.getuid(), os.getgid()
        namespaces.write_maps(pid, [(0, uid, 1)], [(0, gid, 1)], deny_setgroups=True)
    else:
        for tool, own, first, number in (
            ("newuidmap", os.getuid(), base, count),
            ("newgidmap", os.getgid(), config["gid_base"], config["gid_count"]),
        ):
            command = [tool, str(pid), "0", str(own), "1", "1", str(first), str(number)]
            done = subprocess.run(command, stderr=subprocess.PIPE, check=False)
            if done.returncode != 0:
                raise RuntimeError("%s: %s" % (tool, done.stderr.decode("utf-8", "replace").strip()))


def _become_zygote(config: Mapping[str, Any], control: socket.socket, ready: int) -> None:
    if os.read(ready, 1) != b"1":
        raise RuntimeError("the ids could not be mapped")
    if config["ids"] != "single":
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    if config["ids"] != "root":
        build_view(config)
    mounts.mount("proc", "/proc", "proc", mounts.NOSUID | mounts.NODEV | mounts.NOEXEC)
    socket.sethostname("kooi")
    os.setsid()
    process.leave_session_keyring()
    kept = caps.mask(_ZYGOTE_CAPS_SINGLE if config["ids"] == "single" else _ZYGOTE_CAPS)
    caps.drop_bounding(keep=kept)
    caps.set_caps(permitted=kept, effective=kept)
    process.no_new_privileges()
    seccomp.install(seccomp.zygote_program())
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.set_inheritable(control.fileno(), True)
    process.close_all_but((0, 1, 2, control.fileno()))
    python = config["python"]
    os.execve(python, zygote_argv(python, config["guest_root"], control.fileno()), dict(config["env"]))


def zygote_argv(python: str, guest_root: str, control_fd: int) -> list[str]:
    """Return the command line that starts `spawn/zygote.py` with our code at `guest_root`."""
    boot = "import sys; sys.path.insert(0, %r); from kooi.spawn.zygote import main; main(%d)" % (guest_root, control_fd)
    return [python, "-I", "-S", "-B", "-c", boot]


def build_view(config: Mapping[str, Any]) -> None:
    """Make the root of this mount namespace the read-only view that `config` lists."""
    mounts.make_private()
    trees = [(mounts.clone_tree(source), target, os.path.isdir(source)) for source, target in config["binds"]]
    trees += [dataset_tree(name, source) for name, source in config["datasets"]]
    trees += [(mounts.clone_tree("/dev/" + name), "/dev/" + name, False) for name in _DEVICES]
    host_proc = mounts.clone_tree("/proc")
    mounts.mount("kooi", _STAGE, "tmpfs", mounts.NOSUID | mounts.NODEV, "mode=0755,size=16m")
    for path in _DIRECTORIES:
        os.makedirs(_STAGE + path, exist_ok=True)
    for path, target in list(config["links"]) + list(_DEVICE_LINKS):
        os.makedirs(os.path.dirname(_STAGE + path), exist_ok=True)
        os.symlink(target, _STAGE + path)
    for path, text in config["texts"]:
        _write(_STAGE + path, text)
    # A new /proc may be mounted in a user namespace only where a whole one is visible; ours will cover this one.
    mounts.attach(host_proc, _STAGE + "/proc")
    for fd, target, is_dir in sorted(trees, key=lambda tree: tree[1]):
        _place(fd, _STAGE + target, is_dir)
    mounts.remount_read_only(_STAGE, mounts.NOSUID | mounts.NODEV)
    mounts.pivot(_STAGE)


def dataset_tree(name: str, source: str) -> tuple[int, str, bool]:
    """Return a dataset as a detached tree, where it is shown, and whether it is a folder. Follows no link."""
    fd = paths.open_absolute_no_symlinks(source)
    try:
        return mounts.clone_tree("", fd), "/data/" + name, stat.S_ISDIR(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def _place(fd: int, target: str, is_dir: bool) -> None:
    if not os.path.exists(target):
        if is_dir:
            os.makedirs(target)
        else:
            _write(target, "")
    flags = mounts.RDONLY | mounts.NOSUID
    # A device node is of use only where devices are; data is of use only where nothing is executed.
    flags |= mounts.NOEXEC if target.startswith((_STAGE + "/dev/", _STAGE + "/data/")) else 0
    flags |= 0 if target.startswith(_STAGE + "/dev/") else mounts.NODEV
    mounts.set_attributes(fd, flags)
    mounts.attach(fd, target)
    os.close(fd)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
