"""C4: signal every process there could be, and the planted one by its number. The signal is one that is ignored."""

from kooi.proof.attacks.judges import knocked
from kooi.proof.attacks.model import Bare, Evidence, Expectation, Program

# Without a process table of its own only the planted process is aimed at.
SOURCE = """
import signal
name_me()
tried = 0
def send(pid):
    global tried
    try:
        os.kill(pid, signal.SIGURG)
    except OSError:
        pass
    tried += 1
signal.signal(signal.SIGURG, signal.SIG_IGN)
if P["aim"] == "all" and P["level"] != "process" and not os.path.exists("/proc/%d" % P["victim"]):
    for pid in range(1, 50000):
        if pid != os.getpid():
            send(pid)
    send(-1)
send(P["victim"])
mark("started", tried)
time.sleep(0.2)
"""
CONTROL = """
import signal
before = signal.signal(signal.SIGURG, lambda *_: mark("works"))
os.kill(os.getpid(), signal.SIGURG)
signal.signal(signal.SIGURG, before)
"""


def _reached_nobody(evidence: Evidence) -> str | None:
    return f"{evidence.number('started')} signals reached nobody outside" if "started" in evidence.marks else None


PROGRAM = Program(
    id="C4",
    title="signal every process",
    source=SOURCE,
    control=CONTROL,
    harm=knocked("signal"),
    refused=_reached_nobody,
    expect=Expectation(clause="processes_hidden"),
    bare=Bare(params={"aim": "victim"}),
)
