"""H8: type into a terminal from inside (TIOCSTI). The terminal is one of the program's own."""

from kooi.proof.attacks.model import Bare, Evidence, Program
from kooi.proof.attacks.probes import SURFACE

# ENOTTY on a terminal that does answer for its size is a refusal by a filter.
SOURCE = """
import fcntl, termios
name_me()
try:
    master, slave = os.openpty()
except OSError as error:
    mark("started", "no terminal at all")
    mark("none", code_of(error))
    raise SystemExit
pid = os.fork()
if pid == 0:
    os.setsid()
    own = os.open(os.ttyname(slave), os.O_RDWR)
    fcntl.ioctl(own, termios.TIOCGWINSZ, b"\\0" * 8)
    mark("started", "a terminal that answers")
    for name, request, argument in (("TIOCSTI", 0x5412, b"x"), ("TIOCLINUX", 0x541C, b"\\x63")):
        try:
            fcntl.ioctl(own, request, argument)
            mark("reached", name + ":OK")
        except OSError as error:
            code = code_of(error)
            known = ("EPERM", "ENOSYS", "EACCES", "ENOTTY")
            mark("refused" if code in known else "reached", name + ":" + code)
    os._exit(0)
os.waitpid(pid, 0)
mark("done")
"""
CONTROL = """
try:
    master, slave = os.openpty()
except PermissionError:
    # A level without terminals: then a pipe has to do.
    master, slave = os.pipe()
os.write(slave, b"x")
if os.read(master, 1) == b"x":
    mark("works")
"""


def _typed(evidence: Evidence) -> str | None:
    found = evidence.marks.get("reached", ())
    return f"reached {', '.join(found)}" if found else None


def _refused(evidence: Evidence) -> str | None:
    if evidence.last("none") == "EACCES":
        return "no terminal can be had"
    found = evidence.marks.get("refused", ())
    return f"refused {', '.join(found)}" if len(found) == 2 and "started" in evidence.marks else None


PROGRAM = Program(
    id="H8",
    title="type into a terminal from inside",
    source=SOURCE,
    control=CONTROL,
    harm=_typed,
    refused=_refused,
    expect=SURFACE,
    bare=Bare(),
)
