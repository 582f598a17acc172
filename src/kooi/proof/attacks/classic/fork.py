"""Start 200 processes that stay, with 64 allowed."""

from kooi.proof.attacks.judges import at_least, by_status, either, marked
from kooi.proof.attacks.model import WHOLE, Expectation, Program

# Each child proves by a byte that it runs, and ends by itself after a while: 200 is the most there ever are.
SOURCE = """
name_me()
mark("started")
read_end, write_end = os.pipe()
children = []
try:
    while len(children) < 200:
        pid = os.fork()
        if pid == 0:
            try:
                os.write(write_end, b"x")
                time.sleep(8)
            finally:
                os._exit(0)
        children.append(pid)
except (OSError, AttributeError) as error:
    mark("refused", code_of(error))
os.close(write_end)
alive = 0
while alive < len(children):
    alive += len(os.read(read_end, 200))
if hasattr(os, "waitpid"):
    mark("alive", alive - sum(1 for pid in children if os.waitpid(pid, os.WNOHANG)[0]))
time.sleep(0.2)
for pid in children:
    os.kill(pid, 9)
for pid in children:
    os.waitpid(pid, 0)
"""
CONTROL = """
pid = os.fork() if hasattr(os, "fork") else None
if pid == 0:
    os._exit(7)
if pid is None or os.waitpid(pid, 0)[1] == 7 << 8:
    mark("works")
"""
PROGRAM = Program(
    id="fork",
    title="fork 200 processes",
    source=SOURCE,
    control=CONTROL,
    harm=at_least("alive", 200, "processes at once"),
    refused=either(marked("refused", "EAGAIN", "AttributeError", "ENOSYS"), by_status("pids_limit")),
    expect=Expectation(clause="processes", holds=WHOLE, levels={"microvm": frozenset({"contained", "prevented"})}),
    limits={"processes": 64},
    resource=True,
)
