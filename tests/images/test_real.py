"""The image `python`, built for real from this host, at every level that works here."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kooi
from kooi.contract.errors import InvalidPolicy, InvalidRequest
from kooi.contract.spec import Spec
from kooi.images import build, furnish, inside
from kooi.images.elf import Libraries, read
from kooi.images.meta import Meta
from kooi.images.store import Store
from kooi.images.tree import Entry, digest_of, scan
from kooi.images.view import Images, image_view
from tests import levels

LEVELS = ("jail", "process")


def test_the_same_host_gives_the_same_digest(store: Store, python: Meta) -> None:
    assert build.build(store, "again", build.DEFINITIONS["python"]).digest == python.digest


def test_the_image_has_nothing_of_this_host(shelf: Store, python: Meta) -> None:
    tree = shelf.tree(python.digest)
    entries = {entry.path: entry for entry in shelf.manifest(python.digest)}
    assert not entries.keys() & {"etc/shadow", "etc/machine-id", "etc/hostid", "etc/fstab", "etc/ld.so.cache"}
    assert (tree / "etc/hostname").read_text() == "kooi\n"
    for empty in ("root", "home/user", "tmp", "proc", "sys", "run", "data", "dev/shm"):
        assert os.listdir(tree / empty) == [], empty
    assert all(entry.kind != "f" or (tree / path).stat().st_nlink == 1 for path, entry in entries.items())
    own = [os.path.realpath(sys.base_prefix), sys.prefix, str(Path.home())]
    for path in ("usr/bin/python3.*", "usr/lib/python3.*/_sysconfigdata*.py"):
        for file in tree.glob(path):
            text = file.read_bytes()
            assert not [each for each in own if each not in ("/usr", "/root", "/") and each.encode() in text], file
    compiled = [path for path, entry in entries.items() if entry.kind == "f" and "__pycache__" in path]
    assert compiled and all((tree / path).read_bytes()[4] == 1 for path in compiled)  # unchecked hashes, not times


def test_every_program_finds_its_libraries_inside(shelf: Store, python: Meta) -> None:
    tree = shelf.tree(python.digest)
    libraries = Libraries()
    there = {path.name for path in tree.glob("usr/lib*/**/*.so*")}
    for program in [*(tree / "usr/bin").iterdir(), *tree.glob("usr/lib/python3.*/lib-dynload/*.so")]:
        if program.is_symlink() or read(program) is None:
            continue
        _, interpreters, _ = libraries.closure(str(program))
        found = read(program)
        assert found is not None
        assert set(found.needed) <= there, program
        assert all((tree / each[1:]).exists() for each in interpreters)


@pytest.mark.parametrize("level", LEVELS)
def test_code_runs_in_the_image(level: str, of_user: Store, python: Meta) -> None:
    levels.need(level)
    with kooi.Sandbox(level=level, image="python") as box:
        result = box.run("import os, sys\n(sys.version_info[:2], sys.executable, sorted(os.listdir('/usr/local')))")
        assert result.ok and result.results[0].text == f"({sys.version_info[:2]}, '{python.python}', ['bin', 'lib'])"
        box.files.write("x.txt", "hello")
        shell = box.commands.run(
            "cat x.txt; id -u; pwd; python3 -c 'import ssl, sqlite3, lzma, zoneinfo; print(6 * 7)'"
        )
        assert shell.stdout == "hello1000\n/home/user\n42\n", shell.stderr
        assert not box.run("open('/usr/bin/python3', 'w')").ok
        assert box.run("open('/tmp/x', 'w').write('x'); open('/var/tmp/y', 'w').write('y')").ok
        assert not box.run(f"open({str(Path(__file__))!r})").ok


@pytest.mark.parametrize("level", LEVELS)
def test_the_image_by_its_digest_and_in_a_new_interpreter(level: str, of_user: Store, python: Meta) -> None:
    levels.need(level)
    for image in (python.digest, python.digest[:12]):
        assert kooi.run("print(6 * 7)", level=level, image=image).stdout == "42\n"
    with kooi.Sandbox(level=level, image="python", fresh=True) as box:
        assert box.run("import sys; print(sys.executable)").stdout == f"{python.python}\n"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("image", ["nope", "0" * 64, "a/b:c"])
def test_an_image_that_is_not_there_is_refused(level: str, image: str, of_user: Store) -> None:
    levels.need(level)
    with pytest.raises(InvalidPolicy) as caught:
        kooi.run("print(1)", level=level, image=image)
    assert caught.value.key == "image" and "kooi image build" in str(caught.value)


def test_the_cell_is_that_of_the_digest_and_not_of_the_name(of_user: Store, python: Meta) -> None:
    levels.need("jail")
    from kooi.engine import registry

    backend = registry.find("jail")
    plans = [backend.explain(Spec(image=name))["cell"] for name in ("python", python.digest)]  # type: ignore[attr-defined]
    assert plans[0] == plans[1] and python.digest in json.dumps(plans[0])


def test_an_image_that_a_sandbox_may_use_is_not_removed(of_user: Store, python: Meta, tmp_path: Path) -> None:
    levels.need("jail")
    code = """
import kooi
with kooi.Sandbox(image="python") as box:
    print(box.run("print('up')").stdout, end="", flush=True)
    input()
"""
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        with pytest.raises(InvalidRequest, match="in use"):
            of_user.remove(python.digest)
        child.communicate("\n")
    assert python.digest in of_user.digests()


def test_a_name_that_is_given_to_another_image_means_that_from_then_on(
    store: Store, shelf: Store, python: Meta, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = Images()
    monkeypatch.setattr(images, "_store", store)
    from tests.images.test_store import add

    one = add(store, "it", "1")
    assert images.pin("it") == one.digest
    two = add(store, "it", "2")
    assert images.pin("it") == two.digest != one.digest
    assert set(store.users(one.digest)) <= {os.getpid()}
    with pytest.raises(InvalidRequest):
        store.remove(one.digest)  # what was pinned may still run
    images.release()
    assert store.remove(one.digest) == (one.digest, True)


def test_the_view_shows_the_tree_and_leaves_room_for_ours(shelf: Store, python: Meta) -> None:
    tree = shelf.tree(python.digest)
    view = image_view(tree, dataclasses.replace(python, warm=("json",)), None)
    inside_paths = [target for _, target in view.binds]
    assert "/usr" in inside_paths and "/etc" in inside_paths and ("/lib64", "usr/lib64") in view.links
    assert not {"/opt", "/var", "/proc", "/dev", "/tmp", "/home", "/run", "/data"} & set(inside_paths)
    assert "json" in view.warm and all(source.startswith(str(tree)) for source, _ in view.binds)
    assert "json" not in image_view(tree, python, ()).warm[len(view.warm) - 1 :]


def test_an_image_for_another_machine_is_refused(of_user: Store, python: Meta, monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images()
    monkeypatch.setattr(Store, "meta", lambda *_: dataclasses.replace(python, machine="vax"))
    with pytest.raises(InvalidPolicy, match="for vax"):
        images.view(images.pin("python"), None)
    images.release()


def test_furnishing_twice_changes_nothing(shelf: Store, python: Meta) -> None:
    tree = shelf.tree(python.digest)
    fd = os.open(tree, os.O_RDONLY)
    furnish.furnish(fd)
    os.close(fd)
    shelf.verify(python.digest)


def test_the_warm_set_is_a_part_of_the_tree(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    before = digest_of(scan(tmp_path))
    assert inside.read_warm(tmp_path) == ()
    inside.write_warm(tmp_path, ("json", "os.path"))
    assert inside.read_warm(tmp_path) == ("json", "os.path") and digest_of(scan(tmp_path)) != before
    for bad in ("[]", "{}", '{"warm": ["a b"]}', '{"warm": 1}', '{"warm": [1]}', "{" * 100_000):
        (tmp_path / "etc/kooi.json").write_text(bad)
        with pytest.raises(InvalidRequest):
            inside.read_warm(tmp_path)
    (tmp_path / "etc/kooi.json").unlink()
    (tmp_path / "etc/kooi.json").symlink_to("/etc/passwd")
    assert inside.read_warm(tmp_path) == ()


def test_a_tree_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="/pipe"):
        scan(tmp_path)
    assert Entry("a", "d").line() == b'["d","a"]\n'
