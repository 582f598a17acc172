"""What the sandbox costs the code itself: the same work inside a jail and outside, in turns, timed by itself."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from kooi.contract.errors import KooiError
from kooi.contract.limits import Limits
from kooi.contract.spec import Spec
from kooi.proof.access import open_box
from kooi.proof.bench.baseline import PLAIN_ENV
from kooi.proof.bench.machine import run_command, wait_until_idle
from kooi.proof.bench.results import Results

# As many threads as inside: what one of them takes is not what is compared.
_NATIVE_ENV = {name: value for name, value in PLAIN_ENV.items() if not name.endswith("_NUM_THREADS")}
_TIMER = """
import time as _time
def timed(work):
    t = _time.perf_counter()
    work()
    print(_time.perf_counter() - t)
"""


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work: the code, which calls `timed` once."""

    name: str
    code: str


WORKS = (
    Work("loop", """
def work():
    total = 0
    for n in range(3000000):
        total += n & 7
timed(work)
"""),
    Work("matmul", """
import numpy
a = numpy.random.default_rng(1).random((1000, 1000))
a @ a
def work():
    for _ in range(5):
        a @ a
timed(work)
"""),
    Work("getppid", """
import os
def work(call=os.getppid):
    for _ in range(500000):
        call()
timed(work)
"""),
    Work("open_read_close", """
import os
path = os.__file__
def work():
    for _ in range(20000):
        fd = os.open(path, os.O_RDONLY)
        os.read(fd, 100)
        os.close(fd)
timed(work)
"""),
    # Everything is imported once before, so that both sides do the same work the second time.
    Work("imports", """
import importlib, sys
roots = ("argparse", "json", "csv", "configparser", "xml", "html", "email", "unittest", "difflib", "calendar",
         "tarfile", "zipfile", "pprint", "statistics", "fractions", "http", "decimal", "logging", "urllib")
names = roots + ("xml.dom.minidom", "html.parser", "email.message", "http.client", "urllib.request")
def forget():
    for name in [n for n in sys.modules if n.partition(".")[0] in roots]:
        del sys.modules[name]
for name in names:
    importlib.import_module(name)
forget()
def work():
    for _ in range(3):
        for name in names:
            importlib.import_module(name)
        forget()
timed(work)
"""),
    Work("fork", """
import os
def work():
    for _ in range(200):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
timed(work)
"""),
)  # fmt: skip


async def ratios(results: Results, quick: bool) -> None:
    """Do every work inside a jail and outside, in turns; a series for each side."""
    rounds = 3 if quick else 15
    for work in WORKS:
        await wait_until_idle(patience_seconds=5)
        try:
            await _ratio(work, rounds, results)
        except (KooiError, OSError) as error:
            results.absent[f"inside_{work.name}"] = f"{type(error).__name__}: {error}"


async def _ratio(work: Work, rounds: int, results: Results) -> None:
    # A new interpreter on both sides: a forked one holds more memory, which is a property of warmth, not of the jail.
    spec = Spec(level="jail", fresh=True, limits=Limits(wall_seconds=60, cpu_seconds=None))

    async def inside() -> float:
        box = await open_box(spec)
        try:
            result = await box.run(_TIMER + work.code)
        finally:
            await box.close()
        if not result.ok:
            raise KooiError(f"{work.name} inside came to {result.status}: {result.error or result.stderr[-200:]}")
        return float(result.stdout)

    async def native() -> float:
        return float(run_command([sys.executable, "-c", _TIMER + work.code], _NATIVE_ENV)[1])

    sides: dict[str, Callable[[], Awaitable[float]]] = {"inside": inside, "native": native}
    for side in sides.values():
        await side()
    for _ in range(rounds):
        results.add({f"{name}_{work.name}": await side() for name, side in sides.items()})


async def import_time(results: Results, quick: bool) -> None:
    """Measure `import kooi`, and `import kooi` with the first use of its API, in new interpreters."""
    root = str(Path(__file__).parents[3])
    for _ in range(5 if quick else 30):
        for name, use in (("import_kooi", ""), ("import_kooi_and_sandbox", "kooi.Sandbox; ")):
            code = (
                f"import sys, time; sys.path.insert(0, {root!r}); t = time.perf_counter(); import kooi; {use}"
                "print(time.perf_counter() - t)"
            )
            results.add({name: float(run_command([sys.executable, "-I", "-c", code], PLAIN_ENV)[1])})
