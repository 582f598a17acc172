"""G1: reach the host's loopback by TCP and UDP, by every name of it."""

from kooi.proof.attacks.judges import either, knocked, stolen
from kooi.proof.attacks.model import Evidence, Expectation, Program

SOURCE = """
import socket
name_me()
mark("started")
for address in ("127.0.0.1", "127.1", "localhost", "0.0.0.0", "::ffff:127.0.0.1"):
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.settimeout(1)
            s.connect((address, P["port"]))
            os.write(2, s.recv(64))
            mark("reached", address)
    except OSError as error:
        mark("refused", code_of(error))
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _ in range(3):
            s.sendto(b"x", ("127.0.0.1", P["udp_port"]))
        mark("sent", "datagrams")
except OSError as error:
    mark("refused", code_of(error))
time.sleep(0.2)
mark("done")
"""
CONTROL = """
import socket
left, right = socket.socketpair()
left.send(b"x")
if right.recv(1) == b"x":
    mark("works")
"""


def _refused(evidence: Evidence) -> str | None:
    if "done" in evidence.marks and "refused" in evidence.marks:
        return f"nothing arrived; refused {', '.join(sorted(set(evidence.marks['refused'])))}"
    return None


PROGRAM = Program(
    id="G1",
    title="reach the host's loopback by TCP and UDP",
    source=SOURCE,
    control=CONTROL,
    harm=either(knocked("tcp", "udp"), stolen),
    refused=_refused,
    expect=Expectation(clause="network"),
    seconds=15.0,
)
