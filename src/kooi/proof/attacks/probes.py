"""Asking the kernel without wanting anything: calls with arguments that can only be refused, and what the answer tells.

EPERM, ENOSYS and EACCES mean that the call was refused before the kernel's own code for it ran. Any other answer
(EINVAL, EFAULT, EBADF, ESRCH or success) means that this code was reached.
"""

from __future__ import annotations

from kooi.proof.attacks.model import Bare, Evidence, Expectation, Program

# Runs inside: `call(name, arguments...)` marks what the kernel answered.
PROBE = """
import ctypes
_libc = ctypes.CDLL(None, use_errno=True)
def report(name, result, number):
    code = errno.errorcode.get(number, str(number)) if result == -1 else "OK"
    mark("refused" if code in ("EPERM", "ENOSYS", "EACCES") else "reached", name + ":" + code)
def call(name, *arguments):
    number = P["numbers"].get(name)
    if number is not None:
        ctypes.set_errno(0)
        values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
        result = _libc.syscall(ctypes.c_long(number), *values)
        report(name, result, ctypes.get_errno())
        return result
name_me()
mark("started")
"""
TWIN = """
import ctypes
if ctypes.CDLL(None).getpid() == os.getpid():
    mark("works")
"""
# A level that is no boundary lets the kernel be reached; so do levels whose kernel is not the host's.
SURFACE = Expectation(levels={"process": frozenset({"escaped"})})


def reached(evidence: Evidence) -> str | None:
    """Harm: some call reached the kernel's own code."""
    found = evidence.marks.get("reached", ())
    return f"reached {', '.join(found)}" if found else None


def all_refused(evidence: Evidence) -> str | None:
    """Proof: the program came to its end, and the kernel's answers were refusals."""
    found = evidence.marks.get("refused", ())
    if "done" in evidence.marks and found:
        return f"refused {', '.join(found)}"
    if "started" in evidence.marks and evidence.status == "signal" and evidence.facts.get("signal") == 31:
        return "killed by the filter (SIGSYS)"
    return None


def surface(id: str, title: str, calls: str, bare: Bare | None = None) -> Program:
    """Return a program that makes `calls` and reports the answers."""
    return Program(
        id=id,
        title=title,
        source=PROBE + calls + '\nmark("done")\n',
        control=TWIN,
        harm=reached,
        refused=all_refused,
        expect=SURFACE,
        bare=bare or Bare(),
    )
