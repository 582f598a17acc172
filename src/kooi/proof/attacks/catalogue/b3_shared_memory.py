"""B3: memory that is no process's own: /dev/shm, /tmp, anonymous files, shared mappings."""

from kooi.proof.attacks.judges import at_least, by_status, either, marked
from kooi.proof.attacks.model import WHOLE, Expectation, Program

SOURCE = """
import mmap
name_me()
mark("started")
kept, total = [], 0
BLOCK = b"\\x01" * (1 << 20)
def count(way, megabytes):
    global total
    total += megabytes
    mark("megabytes", total)
    mark("way_" + way, megabytes)
def fill(way, fd):
    kept.append(fd)
    done = 0
    try:
        while done < 64:
            if os.write(fd, BLOCK) < len(BLOCK):
                break
            done += 1
    except OSError as error:
        mark("refused", way + ":" + code_of(error))
    count(way, done)
def mapping():
    shared = mmap.mmap(-1, 64 << 20)
    kept.append(shared)
    for at in range(0, 64 << 20, 4096):
        shared[at] = 1
    count("mapping", 64)
def in_folder(folder):
    path = "%s/%s" % (folder, P["tag"])
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    return fd
for way, work in (("dev_shm", lambda: fill("dev_shm", in_folder("/dev/shm"))),
                  ("tmp", lambda: fill("tmp", in_folder("/tmp"))),
                  ("memfd", lambda: fill("memfd", os.memfd_create("x"))),
                  ("home", lambda: fill("home", in_folder("."))),
                  ("mapping", mapping)):
    try:
        work()
    except (OSError, ValueError, AttributeError) as error:
        mark("refused", way + ":" + code_of(error))
"""
CONTROL = """
import mmap
shared = mmap.mmap(-1, 1 << 20)
shared[0] = 1
mark("works")
"""
PROGRAM = Program(
    id="B3",
    title="memory that is no process's own",
    source=SOURCE,
    control=CONTROL,
    harm=at_least("megabytes", 320, "MB"),
    refused=either(by_status("oom"), marked("refused")),
    expect=Expectation(clause="memory_bytes", holds=WHOLE, levels={"process": frozenset({"escaped", "prevented"})}),
    limits={"memory_bytes": 128 << 20, "disk_bytes": 64 << 20},
    resource=True,
)
