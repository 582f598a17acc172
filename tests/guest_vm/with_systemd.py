"""The host's systemd and message bus in the test guest, so that a test sees control groups as most users have them.

The test is a service: of root below `system.slice`, or of a user in a login session of its own, beside that user's
service manager. What a real boot does besides (devices, clock, journal to disk) is masked: it only takes time here.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import image

SECURITY = "/usr/lib/x86_64-linux-gnu/security"
FOLDERS = ("/usr/lib/systemd", "/usr/share/dbus-1", "/etc/dbus-1", "/usr/lib/tmpfiles.d", "/usr/lib/sysusers.d",
           SECURITY, "/usr/lib/x86_64-linux-gnu/systemd")  # fmt: skip
PROGRAMS = ("systemctl", "busctl", "systemd-run", "loginctl", "journalctl", "systemd-tmpfiles", "dbus-daemon",
            "dbus-update-activation-environment", "dash", "mount", "umount", "true")  # fmt: skip
MASKED = (
    "systemd-udevd.service", "systemd-udev-trigger.service", "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket", "systemd-hwdb-update.service", "systemd-modules-load.service",
    "systemd-random-seed.service", "systemd-timesyncd.service", "systemd-update-utmp.service",
    "systemd-journal-flush.service", "systemd-sysctl.service", "systemd-binfmt.service",
    "kmod-static-nodes.service", "systemd-remount-fs.service", "systemd-pcrphase.service",
    "systemd-pcrphase-sysinit.service", "systemd-firstboot.service", "systemd-machine-id-commit.service",
    "systemd-sysusers.service", "modprobe@drm.service", "dev-hugepages.mount", "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount", "systemd-networkd.service", "getty.target", "systemd-tmpfiles-clean.timer",
    "systemd-pstore.service", "proc-sys-fs-binfmt_misc.automount",
)  # fmt: skip
PAM = b"auth required pam_permit.so\naccount required pam_permit.so\nsession required pam_systemd.so\n"


def missing() -> list[str]:
    """Return what the host lacks for such a guest."""
    needed = [
        "/usr/lib/systemd/systemd",
        "/usr/lib/systemd/user/dbus.socket",
        "/usr/lib/x86_64-linux-gnu/security/pam_systemd.so",
    ]
    needed += [f"/usr/bin/{name}" for name in ("busctl", "dbus-daemon", "systemctl")]
    return [path for path in needed if not os.path.exists(path)]


def add(cpio: image.Cpio, todo: dict[str, object]) -> None:
    """Add systemd, the bus, and the test `todo` as the one service that is started."""
    binaries = []
    for folder in FOLDERS:
        if os.path.isdir(folder):
            cpio.tree(Path(folder), folder, links=True)
            binaries += [path for path in Path(folder).rglob("*") if path.is_file() and os.access(path, os.X_OK)]
            binaries += list(Path(folder).rglob("*.so"))
    for name in PROGRAMS:
        path = Path("/usr/bin", name)
        if path.exists():
            cpio.copy(path, str(path))
            binaries.append(path)
    cpio.link("usr/bin/sh", "dash")
    for library in image.libraries(sorted(set(binaries))):
        cpio.copy(library, str(library))
    for name in MASKED:
        cpio.link(f"etc/systemd/system/{name}", "/dev/null")
    cpio.data("etc/machine-id", b"0123456789abcdef0123456789abcdef\n")
    cpio.data("etc/nsswitch.conf", b"passwd: files\ngroup: files\nshadow: files\n")
    cpio.data("etc/shadow", b"root:*:1::::::\nuser:*:1::::::\nnobody:*:1::::::\nmessagebus:*:1::::::\n", 0o600)
    for name in ("kooi", "systemd-user"):
        cpio.data(f"etc/pam.d/{name}", PAM)
    cpio.data("etc/systemd/system/kooi-test.service", unit(todo))
    cpio.link("etc/systemd/system/default.target", "/usr/lib/systemd/system/multi-user.target")
    cpio.link("etc/systemd/system/multi-user.target.wants/kooi-test.service", "../kooi-test.service")


def unit(todo: dict[str, object]) -> bytes:
    """Return the service file of the test."""
    argv, env = todo["argv"], todo["env"]
    assert isinstance(argv, list) and isinstance(env, dict)
    user = f"User={todo['uid']}\nPAMName=kooi\n" if todo["uid"] else ""
    return f"""[Unit]
Requires=dbus.socket systemd-logind.service
After=dbus.socket dbus.service systemd-logind.service systemd-user-sessions.service

[Service]
Type=simple
{user}WorkingDirectory={todo["cwd"]}
Environment={" ".join(shlex.quote(f"{name}={value}") for name, value in env.items())}
ExecStartPre=+/init ready
ExecStart={" ".join(json.dumps(word) for word in argv)}
ExecStopPost=+/init over
RuntimeMaxSec={todo["seconds"]}
TimeoutStopSec=5
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
""".encode()
