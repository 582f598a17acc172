"""G6: sockets of families that a program has no use for. They are only made, never used."""

from kooi.proof.attacks.probes import surface

PROGRAM = surface(
    "G6",
    "sockets of odd families and raw sockets",
    """
import socket
def make(name, family, kind, protocol=0):
    try:
        socket.socket(family, kind, protocol).close()
        mark("reached", name)
    except OSError as error:
        mark("refused", name + ":" + code_of(error))
make("vsock", 40, socket.SOCK_STREAM)
make("packet", 17, socket.SOCK_RAW)
make("alg", 38, socket.SOCK_SEQPACKET)
make("bluetooth", 31, socket.SOCK_RAW, 1)
make("can", 29, socket.SOCK_RAW, 1)
make("tipc", 30, socket.SOCK_STREAM)
make("rds", 21, socket.SOCK_SEQPACKET)
make("kcm", 41, socket.SOCK_DGRAM)
make("xdp", 44, socket.SOCK_RAW)
make("netlink-generic", 16, socket.SOCK_RAW, 16)
make("netlink-netfilter", 16, socket.SOCK_RAW, 12)
make("netlink-audit", 16, socket.SOCK_RAW, 9)
make("raw", socket.AF_INET, socket.SOCK_RAW, 1)
make("ping", socket.AF_INET, socket.SOCK_DGRAM, 1)
make("sctp", socket.AF_INET, socket.SOCK_STREAM, 132)
make("mptcp", socket.AF_INET, socket.SOCK_STREAM, 262)
""",
)
