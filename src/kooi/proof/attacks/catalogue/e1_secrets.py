"""E1: read what a host keeps for itself: planted credentials, password hashes, the home folders of others."""

from kooi.proof.attacks.judges import either, marked, stolen
from kooi.proof.attacks.model import Evidence, Expectation, Program

SOURCE = """
name_me()
mark("started")
def look(path):
    try:
        with open(path, "rb") as f:
            content = f.read(4096)
    except OSError as error:
        mark("refused", code_of(error))
        return
    os.write(2, content if path == P["credentials"] else b"")
    if content:
        mark("opened", path)
for path in (P["credentials"], "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/root/.bashrc", "/root/.profile",
             "/root/.ssh/id_rsa", "/etc/ssh/ssh_host_rsa_key", "/proc/1/environ"):
    look(path)
for folder in ("/root", "/home", P["home"]):
    try:
        for name in os.listdir(folder):
            if not (folder == "/home" and name == "user"):
                mark("opened", folder + "/" + name)
    except OSError as error:
        mark("refused", code_of(error))
mark("done")
"""
CONTROL = """
with open(os.__file__) as f:
    if len(f.read()) > 1000:
        mark("works")
"""


def _opened(evidence: Evidence) -> str | None:
    found = evidence.marks.get("opened", ())
    return f"read {', '.join(found)}" if found else None


PROGRAM = Program(
    id="E1",
    title="read the host's secrets",
    source=SOURCE,
    control=CONTROL,
    harm=either(stolen, _opened),
    refused=marked("done"),
    expect=Expectation(clause="host_files"),
)
