"""B2: four processes that each stay below the limit and together go far beyond it."""

from kooi.proof.attacks.judges import at_least, by_status, either, marked
from kooi.proof.attacks.model import WHOLE, Expectation, Program

SOURCE = """
name_me()
mark("started")
read_end, write_end = os.pipe()
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        try:
            held = b"\\x01" * (100 << 20)
            os.write(write_end, b"m" if held[-1] else b"-")
            time.sleep(6)
        except MemoryError:
            os.write(write_end, b"-")
        os._exit(0)
    children.append(pid)
os.close(write_end)
os.set_blocking(read_end, False)
answers = b""
deadline = time.monotonic() + 4
while len(answers) < 4 and time.monotonic() < deadline:
    try:
        answers += os.read(read_end, 4)
    except BlockingIOError:
        pass
    time.sleep(0.02)
time.sleep(0.5)
gone = [pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]]
alive = [pid for pid in children if pid not in gone]
mark("megabytes", 100 * min(answers.count(b"m"), len(alive)))
if gone or b"-" in answers:
    mark("refused", "%d of 4 were ended or got no memory" % max(len(gone), answers.count(b"-")))
for pid in alive:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
"""
CONTROL = """
pid = os.fork()
if pid == 0:
    os._exit(len(b"\\x01" * (8 << 20)) >> 20)
if os.waitpid(pid, 0)[1] == 8 << 8:
    mark("works")
"""
PROGRAM = Program(
    id="B2",
    title="processes that exceed the memory together",
    source=SOURCE,
    control=CONTROL,
    harm=at_least("megabytes", 400, "MB"),
    refused=either(by_status("oom"), marked("refused")),
    expect=Expectation(clause="memory_bytes", holds=WHOLE),
    limits={"memory_bytes": 192 << 20},
    resource=True,
)
