"""C6: read the memory of the agent, of the parent and of the planted process, and trace them."""

from kooi.proof.attacks.model import Bare, Evidence, Expectation, Program
from kooi.proof.attacks.probes import PROBE, TWIN

# PTRACE_SEIZE does not stop its target. What is read is looked at and thrown away.
SOURCE = (
    PROBE
    + """
def raw(name, *arguments):
    ctypes.set_errno(0)
    values = [ctypes.c_long(a) for a in arguments]
    result = _libc.syscall(ctypes.c_long(P["numbers"][name]), *values)
    return result, ctypes.get_errno()
def tried(way, pid, ok, number=0):
    who = "agent" if pid == 1 else "planted" if pid == P["victim"] else "parent"
    why = "" if ok else ":" + errno.errorcode.get(number, "?")
    mark("reached" if ok else "refused", "%s of the %s%s" % (way, who, why))
targets = [P["victim"]] if P["aim"] == "victim" else [1, os.getppid(), P["victim"]]
for pid in dict.fromkeys(targets):
    if pid in (0, os.getpid()):
        continue
    for way in ("mem", "environ", "maps"):
        try:
            with open("/proc/%d/%s" % (pid, way), "rb") as f:
                if way != "mem":
                    tried(way, pid, len(f.read(10)) > 0, errno.ENODATA)
                else:
                    with open("/proc/%d/maps" % pid) as maps:
                        f.seek(int(maps.readline().split("-")[0], 16))
                    tried(way, pid, len(f.read(10)) > 0, errno.ENODATA)
        except OSError as error:
            tried(way, pid, False, error.errno)
    seized, code = raw("ptrace", 0x4206, pid, 0, 0)
    tried("ptrace", pid, seized >= 0, code)
    if seized >= 0:
        raw("ptrace", 17, pid, 0, 0)
    handle, code = raw("pidfd_open", pid, 0)
    if handle >= 0:
        stolen, code = raw("pidfd_getfd", handle, 1, 0)
        os.close(handle)
        tried("descriptor", pid, stolen >= 0, code)
mark("done")
"""
)


def _spied(evidence: Evidence) -> str | None:
    found = evidence.marks.get("reached", ())
    return f"got {', '.join(found)}" if found else None


def _kept_out(evidence: Evidence) -> str | None:
    found = evidence.marks.get("refused", ())
    return f"refused: {', '.join(found)}" if "done" in evidence.marks and found else None


PROGRAM = Program(
    id="C6",
    title="read and trace the agent",
    source=SOURCE,
    control=TWIN,
    harm=_spied,
    refused=_kept_out,
    expect=Expectation(clause="processes_hidden"),
    bare=Bare(params={"aim": "victim"}),
)
