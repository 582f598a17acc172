"""Packages from the real index: the same list at every level, the same digest twice, nothing of this host."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

import kooi
from kooi.contract.errors import InvalidRequest
from kooi.images import build, inside
from kooi.images.meta import Meta
from kooi.images.packages import _put_script
from kooi.images.store import Store
from kooi.linux import landlock
from kooi.settings import load_settings
from tests import levels

LEVELS = ("jail", "process")
# What `pip freeze` reads, without pip.
LISTED = """
import importlib.metadata as m, re, json
found = ((d.metadata["Name"], d.version) for d in m.distributions())
print(json.dumps(sorted({re.sub(r"[-_.]+", "-", name).lower() + "==" + version for name, version in found})))
"""
FREEZE = "import subprocess as s, sys; s.run([sys.executable, '-m', 'pip', 'freeze', '--all'], check=True)"


def built(shelf: Store, name: str, definition: build.Definition) -> Meta:
    """Build, or skip where no index can be reached (and fail where levels must work)."""
    try:
        return build.build(shelf, name, definition)
    except InvalidRequest as error:
        offline = re.search(r"No matching distribution|Could not find|connection|resolve", error.message)
        if not offline or load_settings().levels_must_work:
            raise
        pytest.skip(f"no package index in reach: {error.message}")


@pytest.fixture(scope="module")
def small(shelf: Store) -> Meta:
    """Return an image with two small packages, one of which has a program."""
    return built(shelf, "small", build.Definition(pip=("six", "wheel"), warm=("six",)))


def same_everywhere(meta: Meta, name: str) -> None:
    """Check that every level lists exactly the packages that the store says, by both ways."""
    freezes = set()
    for level in LEVELS:
        levels.need(level)
        with kooi.Sandbox(level=level, image=name, limits={"wall_seconds": 60}) as box:
            listed = box.run(LISTED)
            assert json.loads(listed.stdout) == list(meta.packages), (level, listed.error)
            freezes.add(box.run(FREEZE).stdout)
            shell = box.commands.run("python3 -m pip freeze --all")
            freezes.add(shell.stdout)
    (freeze,) = freezes
    frozen = (line.partition("==") for line in freeze.splitlines())
    assert sorted(f"{inside.canonical(n)}=={version}" for n, _, version in frozen) == list(meta.packages)


def test_the_same_packages_at_every_level(of_user: Store, small: Meta) -> None:
    assert {"six", "wheel", "pip"} <= {each.partition("==")[0] for each in small.packages}
    same_everywhere(small, "small")
    warm = kooi.run("import sys; print('six' in sys.modules)", image="small")
    assert warm.stdout == "True\n"
    assert kooi.run("import subprocess as s; s.run(['wheel', 'version'])", image="small").stdout.startswith("wheel ")


def test_twice_is_the_same_and_its_lists_of_files_are_right(shelf: Store, store: Store, small: Meta) -> None:
    again = built(store, "again", build.Definition(pip=("six", "wheel"), warm=("six",)))
    assert again.digest == small.digest
    tree = shelf.tree(small.digest)
    records = sorted(tree.glob("usr/**/*.dist-info/RECORD"))
    assert len(records) == len(small.packages)
    for record in records:
        for path, sum_, size in csv.reader(record.read_text().splitlines()):
            file = Path(os.path.normpath(record.parent.parent / path))
            assert file.is_relative_to(tree) and file.is_file(), path
            if sum_:
                found = urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
                assert sum_ == f"sha256={found}" and int(size) == file.stat().st_size, path


def test_nothing_in_it_names_the_interpreter_that_ran_pip(shelf: Store, small: Meta) -> None:
    tree = shelf.tree(small.digest)
    places = [
        each.encode() for each in {sys.prefix, sys.executable, str(tree)} if each not in ("/usr", "/usr/bin/python3")
    ]
    for entry in shelf.manifest(small.digest):
        if entry.kind == "f" and ("dist-info" in entry.path or entry.path.startswith("usr/local/bin")):
            data = (tree / entry.path).read_bytes()
            assert not [place for place in places if place in data], entry.path
    assert (tree / "usr/local/bin/wheel").read_bytes().startswith(f"#!{small.python}\n".encode())


@pytest.mark.parametrize(
    "head", [f"#!{sys.executable}\n", f"#!/bin/sh\n'''exec' {sys.executable} \"$0\" \"$@\"\n' '''\n"]
)
def test_programs_start_with_the_interpreter_of_the_image(tmp_path: Path, head: str) -> None:
    (tmp_path / "a").write_text(f"{head}import x\n")
    _put_script(tmp_path / "a", tmp_path / "b", "/usr/bin/python3.11")
    assert (tmp_path / "b").read_text() == "#!/usr/bin/python3.11\nimport x\n"


def test_what_has_no_wheel_is_not_built_without_being_asked(store: Store, tmp_path: Path) -> None:
    """A source package whose set-up leaves a mark on the host: refused, and its code has not run."""
    mark, source = tmp_path / "mark", tmp_path / "evil"
    source.mkdir()
    (source / "setup.py").write_text(f"open({str(mark)!r}, 'w'); import setuptools; setuptools.setup(name='evil')")
    import tarfile

    with tarfile.open(tmp_path / "evil-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, "evil-1.0")
    if landlock.abi() == 0:
        pytest.skip("only Landlock keeps pip from building what it is given as a file")
    (tmp_path / "list").write_text(f"evil @ file://{tmp_path}/evil-1.0.tar.gz\n")
    for definition in (
        build.Definition(pip=(str(tmp_path / "evil-1.0.tar.gz"),)),
        build.Definition(pip=(str(source),)),
        build.Definition(requirements=(str(tmp_path / "list"),)),
    ):
        with pytest.raises(InvalidRequest, match="pip could not install") as caught:
            build.build(store, "evil", definition)
        assert "--allow-source" in str(caught.value.fix), caught.value
        assert not mark.exists() and store.digests() == [] and os.listdir(store.folder / "tmp") == []
    built(store, "evil", build.Definition(pip=(str(tmp_path / "evil-1.0.tar.gz"),), allow_source=True))
    assert mark.exists()  # the twin: where it is allowed, it does run


def test_a_build_that_is_killed_while_pip_runs_leaves_no_process_and_no_folder(store: Store) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(build.__file__).parents[2])!r})
from pathlib import Path
from kooi.doors.cli import show
from kooi.images import build
from kooi.images.store import Store
build.build(Store(Path(sys.argv[1])), "half", build.Definition(pip=("scipy",)), show.progress)
"""
    argv = [sys.executable, "-c", code, str(store.folder)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        if not any("Collecting" in line for line in child.stderr):
            pytest.skip("no package index in reach")
        child.kill()
    end = time.monotonic() + 10
    while left := using(store):
        assert time.monotonic() < end, left
        time.sleep(0.05)
    assert os.listdir(store.folder / "tmp") and store.digests() == []
    assert store.prune().jobs == 1 and os.listdir(store.folder / "tmp") == []


def using(store: Store) -> list[bytes]:
    """Return the command lines of all processes that name the store."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{name}/cmdline").read_bytes()
            if os.fsencode(store.folder) in line:
                found.append(line)
    return found


def test_data_is_built_and_is_the_same_at_every_level(of_user: Store) -> None:
    """The bar: built from the package index alone, and its parts work together inside."""
    meta = built(of_user, "data", build.DEFINITIONS["data"])
    same_everywhere(meta, "data")
    code = """
import sys
assert "pandas" in sys.modules
import duckdb, IPython, matplotlib, numpy as np, openpyxl, pandas as pd, PIL.Image, pyarrow.parquet, requests
import scipy.stats, sklearn.linear_model
matplotlib.use("agg")
import matplotlib.pyplot as plt
frame = pd.DataFrame({"x": np.arange(50.0), "y": np.arange(50.0) * 2 + 1})
frame.to_parquet("f.parquet"); frame.to_excel("f.xlsx", index=False)
assert pd.read_excel("f.xlsx").astype(float).equals(pd.read_parquet("f.parquet"))
model = sklearn.linear_model.LinearRegression().fit(frame[["x"]], frame.y)
plt.plot(frame.x, frame.y); plt.savefig("f.png")
print(round(float(model.coef_[0]), 6), duckdb.sql("select sum(y) from 'f.parquet'").fetchall()[0][0],
      round(float(scipy.stats.pearsonr(frame.x, frame.y)[0]), 6), PIL.Image.open("f.png").format)
"""
    for level in LEVELS:
        limits = {"wall_seconds": 60, "cpu_seconds": 60, "memory_bytes": 2 << 30}
        result = kooi.run(code, level=level, image="data", limits=limits)
        assert result.stdout == "2.0 2500.0 1.0 PNG\n", (level, result.error, result.stderr)
