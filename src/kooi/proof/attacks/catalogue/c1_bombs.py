"""C1: a bomb of processes and a bomb of threads, each up to 300 with 48 allowed."""

from kooi.proof.attacks.model import WHOLE, Evidence, Expectation, Program

# Every process adds a byte when it is up. Each level of the tree doubles; all end by themselves after a while.
SOURCE = """
import threading
name_me()
mark("started")
read_end, write_end = os.pipe()
refused_read, refused_write = os.pipe()
def bomb(depth):
    for _ in range(2):
        try:
            pid = os.fork()
        except OSError:
            os.write(refused_write, b"r")
            continue
        if pid == 0:
            os.write(write_end, b"x")
            if depth:
                bomb(depth - 1)
            time.sleep(2.5)
            os._exit(0)
try:
    pid = os.fork()
    if pid == 0:
        bomb(6)
        time.sleep(2.5)
        os._exit(0)
    time.sleep(1.5)
    os.set_blocking(read_end, False)
    os.set_blocking(refused_read, False)
    alive = 0
    try:
        alive = len(os.read(read_end, 4096))
    except BlockingIOError:
        pass
    mark("processes", alive)
    try:
        mark("forks_refused", len(os.read(refused_read, 4096)))
    except BlockingIOError:
        pass
    os.waitpid(pid, 0)
except OSError as error:
    mark("forks_refused", code_of(error))
time.sleep(2)
stop = threading.Event()
threads = []
try:
    while len(threads) < 300:
        thread = threading.Thread(target=stop.wait, daemon=True)
        thread.start()
        threads.append(thread)
except RuntimeError:
    mark("threads_refused", len(threads))
mark("threads", len(threads))
stop.set()
"""
CONTROL = """
import threading
done = []
thread = threading.Thread(target=lambda: done.append(1))
thread.start()
thread.join()
pid = os.fork()
if pid == 0:
    os._exit(0)
if done and os.waitpid(pid, 0)[1] == 0:
    mark("works")
"""


def _exploded(evidence: Evidence) -> str | None:
    most = max(evidence.number("processes"), evidence.seen_peak)
    if most >= 200:
        return f"{most} processes at once"
    return f"{evidence.number('threads')} threads at once" if evidence.number("threads") >= 300 else None


def _refused(evidence: Evidence) -> str | None:
    if evidence.status == "pids_limit" and "started" in evidence.marks:
        return "status pids_limit"
    if "forks_refused" in evidence.marks and "threads_refused" in evidence.marks:
        return f"{evidence.number('processes')} processes and {evidence.number('threads')} threads, then refused"
    return None


PROGRAM = Program(
    id="C1",
    title="fork bomb and thread bomb",
    source=SOURCE,
    control=CONTROL,
    harm=_exploded,
    refused=_refused,
    expect=Expectation(clause="processes", holds=WHOLE),
    limits={"processes": 48},
    resource=True,
    seconds=20.0,
)
