"""I2: read the environment for what the host has in its own."""

from kooi.proof.attacks.judges import marked, stolen
from kooi.proof.attacks.model import Expectation, Program

SOURCE = """
name_me()
for name, value in os.environ.items():
    os.write(2, ("%s=%s\\n" % (name, value)).encode("utf-8", "surrogateescape"))
try:
    with open("/proc/self/environ", "rb") as f:
        os.write(2, f.read())
except OSError:
    pass
mark("started", len(os.environ))
"""
CONTROL = """
os.environ["OWN"] = "1"
if os.environ["OWN"] == "1" and os.environ.get("HOME"):
    mark("works")
"""
PROGRAM = Program(
    id="I2",
    title="the host's environment",
    source=SOURCE,
    control=CONTROL,
    harm=stolen,
    refused=marked("started"),
    expect=Expectation(clause="environment"),
)
