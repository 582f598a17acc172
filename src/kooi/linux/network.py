"""The one network setting a box needs: its own loopback device up (netdevice(7))."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1


def loopback_up() -> None:
    """Bring up `lo` of this network namespace."""
    request = struct.pack("16sh14x", b"lo", _IFF_UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as device:
        fcntl.ioctl(device.fileno(), _SIOCSIFFLAGS, request)


def bound_tcp() -> None:
    """Keep TCP from growing a socket's buffers beyond what every socket may hold; for this network namespace."""
    for name in ("rmem", "wmem"):
        with open(f"/proc/sys/net/core/{name}_default") as file:
            most = int(file.read())
        with open(f"/proc/sys/net/ipv4/tcp_{name}", "w") as file:
            file.write(f"4096 {min(most, 65536)} {most}")
