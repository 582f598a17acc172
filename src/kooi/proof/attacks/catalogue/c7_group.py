"""C7: signal one's own process group, which namespaces do not cut. The signal is one that is ignored."""

from kooi.proof.attacks.judges import knocked, marked
from kooi.proof.attacks.model import Bare, Expectation, Program

SOURCE = """
import signal
name_me()
signal.signal(signal.SIGURG, signal.SIG_IGN)
for send, target in ((os.kill, 0), (os.killpg, 0), (os.killpg, os.getpgrp())):
    try:
        send(target, signal.SIGURG)
    except OSError:
        pass
mark("started", "three times to its own group")
time.sleep(0.2)
"""
CONTROL = """
import signal
got = []
before = signal.signal(signal.SIGURG, lambda *_: got.append(1))
os.kill(0, signal.SIGURG)
signal.signal(signal.SIGURG, before)
if got:
    mark("works")
"""
PROGRAM = Program(
    id="C7",
    title="signal the own process group",
    source=SOURCE,
    control=CONTROL,
    harm=knocked("signal"),
    refused=marked("started"),
    expect=Expectation(),
    bare=Bare(session=False),
)
