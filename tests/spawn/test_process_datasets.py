"""Datasets at the level `process`: the code reads them at the place it is told, and cannot change them there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kooi.contract.limits import Limits
from kooi.contract.policy import Dataset, Policy
from kooi.contract.spec import Spec
from kooi.images.host import native_view
from kooi.spawn.host import host_facts
from kooi.spawn.plan import Plan, plan_process
from tests.spawn.conftest import Workshop

InWorkshop = Callable[..., Any]

READ = """
import os
root = os.environ['KOOI_DATA']
print(open(root + '/folder/deep/a.csv').read(), open(root + '/file').read(), end='')
"""
WRITE = """
import os
root = os.environ['KOOI_DATA']
tries = {
    'append': lambda: open(root + '/folder/deep/a.csv', 'a'),
    'file': lambda: open(root + '/file', 'w'),
    'create': lambda: open(root + '/folder/new', 'w'),
    'unlink': lambda: os.unlink(root + '/folder/deep/a.csv'),
    'chmod': lambda: os.chmod(root + '/file', 0o777),
    'replace': lambda: os.rename(root + '/folder', root + '/other'),
}
for name, attempt in tries.items():
    try:
        attempt()
        print(name, 'done')
    except OSError:
        pass
"""
REMOVE = "import os, shutil; shutil.rmtree(os.environ['KOOI_DATA'], ignore_errors=True); print('tried')"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a file below."""
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.csv").write_text("x")
    return folder


def plan(tmp_path: Path, source: Path, **limits: Any) -> Plan:
    facts = host_facts()
    if not (facts.user_namespaces and facts.mount_in_userns):
        pytest.skip("boxes of this level are plain children here")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    policy = Policy(datasets=(Dataset("folder", str(source)), Dataset("file", str(source / "deep" / "a.csv"))))
    spec = Spec(level="process", policy=policy, limits=Limits(**limits))
    return plan_process(spec, facts, native_view(), home=str(home))


def test_datasets_are_read_and_never_written(in_workshop: InWorkshop, tmp_path: Path, source: Path) -> None:
    wanted = plan(tmp_path, source)

    async def work(workshop: Workshop) -> tuple[str, ...]:
        return tuple([await workshop.run(code, wanted) for code in (READ, WRITE, REMOVE)])

    assert in_workshop(work, ids="none") == ("x x", "", "tried\n")
    assert [path.name for path in source.rglob("*")] == ["deep", "a.csv"]
    assert (source / "deep" / "a.csv").read_text() == "x"


def test_the_end_of_a_box_leaves_the_dataset_and_no_mount(
    in_workshop: InWorkshop, tmp_path: Path, source: Path
) -> None:
    wanted = plan(tmp_path, source)
    in_workshop(lambda workshop: workshop.run(READ, wanted), ids="none")
    assert list((tmp_path / "home").iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert (source / "deep" / "a.csv").read_text() == "x"


def test_datasets_take_nothing_of_the_number_of_files(in_workshop: InWorkshop, tmp_path: Path, source: Path) -> None:
    wanted = plan(tmp_path, source, files=1)
    code = "open('one', 'w'); print('one'); open('two', 'w')"
    said = in_workshop(lambda workshop: workshop.run(code, wanted), ids="none")
    assert said.startswith("one\n") and "No space left" in said
