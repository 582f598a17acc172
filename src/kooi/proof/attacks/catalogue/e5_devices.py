"""E5: find, open and make devices."""

from kooi.proof.attacks.judges import marked
from kooi.proof.attacks.model import Bare, Evidence, Expectation, Program

# Only devices that do nothing when they are opened are opened. Allowed: null, zero, full, random, urandom, terminals.
SOURCE = """
import stat
name_me()
mark("started")
allowed = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)}
for folder, _, names in os.walk("/dev"):
    for name in names:
        path = os.path.join(folder, name)
        try:
            found = os.stat(path, follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISBLK(found.st_mode) or stat.S_ISCHR(found.st_mode):
            number = (os.major(found.st_rdev), os.minor(found.st_rdev))
            if number not in allowed and not 136 <= number[0] <= 143:
                mark("device", path)
for path in ("/dev/kmsg", "/dev/mem", "/dev/kvm", "/dev/fuse", "/dev/cuse", "/dev/loop-control", "/dev/net/tun"):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        mark("device", path)
    except OSError as error:
        mark("refused", code_of(error))
for kind in (stat.S_IFCHR, stat.S_IFBLK):
    try:
        os.mknod("made", kind | 0o600, os.makedev(1, 3))
        os.unlink("made")
        mark("device", "one of its own making")
    except OSError as error:
        mark("refused", code_of(error))
mark("done")
"""
CONTROL = """
with open("/dev/urandom", "rb") as source, open("/dev/null", "wb") as sink:
    if sink.write(source.read(8)) == 8:
        mark("works")
"""


def _devices(evidence: Evidence) -> str | None:
    found = evidence.marks.get("device", ())
    return f"{len(found)} devices, like {found[0]}" if found else None


PROGRAM = Program(
    id="E5",
    title="find, open and make devices",
    source=SOURCE,
    control=CONTROL,
    harm=_devices,
    refused=marked("done"),
    expect=Expectation(levels={"process": frozenset({"escaped"})}),
    bare=Bare(),
)
