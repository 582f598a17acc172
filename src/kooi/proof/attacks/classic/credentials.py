"""Read a credentials file that every user of the host can read."""

from kooi.proof.attacks.judges import marked, stolen
from kooi.proof.attacks.model import Expectation, Program

SOURCE = """
name_me()
mark("started")
try:
    with open(P["credentials"]) as file:
        os.write(1, file.read().encode())
except OSError as error:
    mark("refused", code_of(error))
"""
CONTROL = """
with open("mine.txt", "w") as file:
    file.write(P["nonce"])
with open("mine.txt") as file:
    if file.read() == P["nonce"]:
        mark("works")
os.unlink("mine.txt")
"""
PROGRAM = Program(
    id="credentials",
    title="read planted credentials",
    source=SOURCE,
    control=CONTROL,
    harm=stolen,
    refused=marked("refused", "ENOENT", "EACCES", "EPERM"),
    expect=Expectation(clause="host_files"),
)
