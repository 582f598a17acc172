"""Python packages, put into a tree by the host's own pip: wheels, without running anything that is in them.

pip's own option to take only wheels does not hold for a path, an address or a repository, so where the kernel has
Landlock pip cannot execute any program either, and building starts with that.
What pip leaves is made the same on every host: programs start with the image's interpreter, and the lists of files are
brought up to date. Byte code is compiled last (`precompile`), not by pip, whose own depends on times.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from kooi.contract.errors import InvalidRequest, SetupFailed
from kooi.linux import landlock

_WORDS = re.compile(r"(Collecting|Downloading|Using cached|Installing collected packages|Building wheel)")
_LAUNCHER = b"#!/bin/sh\n'''exec' "
_LAST_LINES = 12
_SOURCE = str(Path(__file__).resolve().parents[2])
# The working directory is no place to find pip in.
_BOOT = """import sys
sys.path[:] = [{source!r}, *filter(None, sys.path)]
from kooi.images.packages import forbid_execution
from kooi.linux.process import die_with_parent
die_with_parent()
{first}
del sys.path[0]
import runpy
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_SCRIPTS = "/usr/local/bin"
_FIX_PIP = "install pip for it: `python3 -m ensurepip`, or as root `apt-get install python3-pip`"
_FIX_WHEEL = "name versions that have a wheel, or allow what pip builds here, on the host, with --allow-source"


def install(
    tree: Path,
    work: Path,
    program: str,
    packages: str,
    asked: Sequence[str],
    *,
    source: bool,
    say: Callable[[str], None],
) -> None:
    """Install what `asked` (pip's arguments) names into the folder `packages` of a tree whose Python is `program`.

    With `source` pip may build from source, which runs the packages' own code on the host, as this user. Raises
    `InvalidRequest` where pip cannot, with its last words.
    """
    target = work / "pip"
    _run_pip(
        [
            "install", "--target", str(target), "--no-compile", "--ignore-installed", "--disable-pip-version-check",
            "--no-input", "--no-warn-script-location", "--root-user-action", "ignore", "--progress-bar", "off",
            *([] if source else ["--only-binary", ":all:"]), *asked,
        ],
        say,
        source,
    )  # fmt: skip
    bin_inside = tree / _SCRIPTS[1:]
    bin_inside.mkdir(parents=True, exist_ok=True)
    for script in sorted((target / "bin").glob("*")):
        _put_script(script, bin_inside / script.name, program)
    shutil.rmtree(target / "bin", ignore_errors=True)
    place = tree / packages[1:]
    place.mkdir(parents=True, exist_ok=True)
    for each in sorted(target.iterdir()):
        os.rename(each, place / each.name)
    for record in place.glob("*.dist-info/RECORD"):
        _update(record, place, tree, packages)


def forbid_execution() -> None:
    """Bind this process: it executes nothing any more. Without Landlock this does nothing."""
    clauses = [name for name in ("files", "rename", "truncate") if landlock.CLAUSES[name][0] <= landlock.abi()]
    if clauses:
        with landlock.Ruleset(clauses) as ruleset:
            ruleset.allow("/", "read", "write", "device")
            ruleset.restrict_self()


def _run_pip(arguments: Sequence[str], say: Callable[[str], None], source: bool) -> None:
    if importlib.util.find_spec("pip") is None:
        raise SetupFailed(f"{sys.executable} has no pip to install packages with", key="pip", fix=_FIX_PIP)
    last: list[str] = []
    boot = _BOOT.format(source=_SOURCE, first="" if source else "forbid_execution()")
    with subprocess.Popen(
        [sys.executable, "-c", boot, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as pip:  # fmt: skip
        assert pip.stdout is not None
        for line in map(str.strip, pip.stdout):
            last = [*last[1 - _LAST_LINES :], line]
            if _WORDS.match(line):
                say(line)
    if pip.returncode:
        told = "\n".join(line for line in last if line.startswith("ERROR")) or "\n".join(last)
        unbuilt = "No matching distribution" in told or "Permission denied" in told
        fix = _FIX_WHEEL if unbuilt and not source else None
        raise InvalidRequest(f"pip could not install that: {told}", key="pip", fix=fix)


def _put_script(script: Path, place: Path, program: str) -> None:
    data = script.read_bytes()
    if data.startswith(_LAUNCHER):  # pip's form for an interpreter whose path is too long for the first line
        data = b"#!\n" + data.split(b"\n", 3)[3]
    if data.startswith(b"#!"):
        first, _, rest = data.partition(b"\n")
        if first == b"#!" or os.fsencode(sys.executable) in first:
            data = b"#!" + program.encode() + b"\n" + rest
    place.write_bytes(data)
    place.chmod(0o755)


def _update(record: Path, place: Path, tree: Path, packages: str) -> None:
    """Write a distribution's list of files anew where pip's paths or sums are no longer right."""
    rows = list(csv.reader(io.StringIO(record.read_text("utf-8"))))
    for row in rows:
        outside = row[0].removeprefix("../../")
        if outside == row[0] or not outside.startswith("bin/"):
            row[0] = outside
            continue
        inside = f"{_SCRIPTS}/{outside[4:]}"
        data = (tree / inside[1:]).read_bytes()
        sum_ = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        row[:] = [os.path.relpath(inside, packages), f"sha256={sum_}", str(len(data))]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    record.write_text(text.getvalue(), "utf-8")
