"""A2: ignore every signal that can be ignored and block the rest, then stay."""

from kooi.proof.attacks.judges import by_status
from kooi.proof.attacks.model import Bare, Evidence, Expectation, Program

SOURCE = """
import signal
name_me()
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    os.kill(os.getpid(), number)
mark("started", "and survived SIGTERM, SIGINT and SIGHUP")
while True:
    time.sleep(1)
"""
CONTROL = """
import signal
before = signal.signal(signal.SIGUSR1, lambda *_: mark("works"))
os.kill(os.getpid(), signal.SIGUSR1)
signal.signal(signal.SIGUSR1, before)
"""


def _survives(evidence: Evidence) -> str | None:
    if "started" in evidence.marks and not evidence.returned:
        return f"survived every polite signal and ran on for {evidence.elapsed_seconds:.1f} s"
    return f"{evidence.seen_after} processes were left after the timeout" if evidence.seen_after else None


PROGRAM = Program(
    id="A2",
    title="ignore and block every signal",
    source=SOURCE,
    control=CONTROL,
    harm=_survives,
    refused=by_status("timeout"),
    expect=Expectation(clause="wall_seconds"),
    limits={"wall_seconds": 1.0},
    bare=Bare(seconds=1.5),
)
