"""Connect to a service that listens on the host's loopback address."""

from kooi.proof.attacks.judges import either, knocked, marked, stolen
from kooi.proof.attacks.model import Expectation, Program

SOURCE = """
name_me()
mark("started")
import socket
try:
    with socket.create_connection(("127.0.0.1", P["port"]), timeout=2) as s:
        os.write(1, s.recv(64))
except OSError as error:
    mark("refused", code_of(error))
"""
CONTROL = """
import socket
try:
    left, right = socket.socketpair()
    left.sendall(P["nonce"].encode())
    if right.recv(64).decode() == P["nonce"]:
        mark("works")
except (OSError, AttributeError) as error:
    mark("works", "no sockets at all: " + code_of(error))
"""
REFUSALS = (
    "ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH", "EACCES", "EPERM", "EAFNOSUPPORT", "ENOSYS", "ETIMEDOUT",
    "TimeoutError", "timeout", "EADDRNOTAVAIL",
)  # fmt: skip
PROGRAM = Program(
    id="service",
    title="connect to a planted service",
    source=SOURCE,
    control=CONTROL,
    harm=either(knocked("tcp"), stolen),
    refused=marked("refused", *REFUSALS),
    expect=Expectation(clause="network"),
)
