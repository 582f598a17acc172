"""D2: ten thousand empty files, with two thousand allowed."""

from kooi.proof.attacks.judges import at_least, by_status, either, marked
from kooi.proof.attacks.model import Expectation, Outcome, Program

SOURCE = """
name_me()
mark("started")
os.mkdir("many")
made = 0
try:
    while made < 10000:
        os.close(os.open("many/%d" % made, os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    mark("refused", code_of(error))
mark("files", made)
import shutil
shutil.rmtree("many")
"""
CONTROL = """
open("one", "w").close()
os.unlink("one")
mark("works")
"""
# A child process has a home of a fixed size only where it can have a mount of its own.
EITHER: dict[str, frozenset[Outcome]] = {"process": frozenset({"escaped", "prevented"})}
PROGRAM = Program(
    id="D2",
    title="ten thousand files",
    source=SOURCE,
    control=CONTROL,
    harm=at_least("files", 10000, "files"),
    refused=either(marked("refused", "ENOSPC", "EDQUOT"), by_status("disk_limit")),
    expect=Expectation(levels=EITHER),
    limits={"files": 2000},
    resource=True,
)
