"""The store under races, crashes and changes: real processes, real locks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kooi.contract.errors import InvalidPolicy, InvalidRequest, SetupFailed
from kooi.images import build
from kooi.images.meta import Meta, checked_name
from kooi.images.store import Store
from kooi.images.tree import Entry, difference, digest_of, read_manifest, resolve, scan, write_manifest
from tests.images.conftest import little

SOURCE = str(Path(build.__file__).parents[2])
ROOT = str(Path(__file__).parents[2])

BUILDER = """
import sys; sys.path[:0] = {paths!r}
import time
from pathlib import Path
from kooi.images.build import finish, silent
from kooi.images.store import Store
from tests.images.conftest import little
store = Store(Path(sys.argv[1]))
with store.job() as work:
    tree = little(work / "tree", sys.argv[3])
    print("made", flush=True)
    if sys.argv[4] == "hang":
        time.sleep(600)
    sys.stdin.readline()
    print(finish(store, tree, sys.argv[2], (), {{}}, silent).digest, flush=True)
"""


def builder(store: Store, name: str, text: str, mode: str = "go") -> subprocess.Popen[str]:
    code = BUILDER.format(paths=[SOURCE, ROOT])
    argv = [sys.executable, "-c", code, str(store.folder), name, text, mode]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def digest_made(child: subprocess.Popen[str]) -> str:
    """Let a builder go on; return the digest of what it added."""
    out, _ = child.communicate("\n", 60)
    assert child.returncode == 0
    return out.strip()


def add(store: Store, name: str | None, text: str = "x") -> Meta:
    with store.job() as work:
        return build.finish(store, little(work / "tree", text), name, ("json",), {"why": "test"}, build.silent)


def test_what_is_added_is_found_by_name_and_digest(store: Store) -> None:
    meta = add(store, "one")
    assert store.names() == {"one": meta.digest} and store.digests() == [meta.digest]
    for name in ("one", meta.digest, meta.digest[:12], f"sha256:{meta.digest}"):
        assert store.resolve(name) == meta.digest
    found = store.meta(meta.digest)
    assert (found.python, found.version, found.warm) == ("/usr/bin/python3.11", "3.11", ("json",))
    assert found == meta and os.listdir(store.folder / "tmp") == []
    store.verify(meta.digest)


@pytest.mark.parametrize("name", ["nope", "a" * 12, "0" * 64, "registry.invalid/nothing:0", "../x", ".x", ""])
def test_what_is_not_there_is_refused_and_says_how_to_get_it(store: Store, name: str) -> None:
    add(store, "one")
    with pytest.raises(InvalidPolicy) as caught:
        store.resolve(name)
    assert caught.value.key == "image" and "kooi image list" in str(caught.value.fix)
    assert "kooi image build" in str(caught.value.fix)


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "..", "-x", "a" * 65, "abcdefabcdef", "é"])
def test_names_that_no_image_may_have(name: str) -> None:
    with pytest.raises(InvalidPolicy):
        checked_name(name)


def test_the_digest_is_of_what_matters_and_of_nothing_else(tmp_path: Path) -> None:
    one, two = little(tmp_path / "1"), little(tmp_path / "2")
    os.utime(two / "usr/share/text", (1, 1))
    (two / "usr/share/text").chmod(0o600)
    same = digest_of(scan(one, settle=True))
    assert digest_of(scan(two, settle=True)) == same
    assert (two / "usr/share/text").stat().st_mode & 0o7777 == 0o644
    for change in (
        lambda: (two / "usr/share/text").write_text("y"),
        lambda: (two / "usr/share/text").chmod(0o755),
        lambda: (two / "usr/share/more").mkdir(),
        lambda: (two / "sbin").symlink_to("usr/sbin"),
    ):
        before = digest_of(scan(two))
        change()
        assert digest_of(scan(two)) not in (before, same)


def test_a_manifest_is_read_back_whatever_paths_hold() -> None:
    entries = [Entry("a\nb", "d"), Entry("é\udcff", "f", True, 3, "0" * 64), Entry('"', "l", target="x\0"[:1])]
    assert read_manifest(write_manifest(entries)) == entries
    assert difference(entries, entries) is None and "a\nb" in str(difference(entries, entries[1:]))


def test_links_of_a_tree_are_followed_inside_it_only(tmp_path: Path) -> None:
    tree = little(tmp_path)
    (tree / "up").symlink_to("../../../../etc/passwd")
    (tree / "abs").symlink_to("/bin/python3")
    (tree / "loop").symlink_to("loop")
    assert resolve(tree, "/abs") == "/usr/bin/python3.11"
    assert resolve(tree, "/up") == "/etc/passwd"
    assert resolve(tree, "/loop") is None and resolve(tree, "/no/such") is None


def test_many_builders_of_one_tree_all_succeed(store: Store) -> None:
    children = [builder(store, f"n{number}", "same") for number in range(6)]
    assert [said(child) for child in children] == ["made"] * 6
    assert len(os.listdir(store.folder / "tmp")) == 12  # nobody took another's job for a dead one's
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    digests = {digest_made(child) for child in children}
    assert len(digests) == 1 and len(store.names()) == 6 and len(store.digests()) == 1
    assert os.listdir(store.folder / "tmp") == []


def test_many_builders_of_different_trees_under_one_name(store: Store) -> None:
    children = [builder(store, "name", f"text {number}") for number in range(5)]
    for child in children:
        assert child.stdin is not None and said(child) == "made"
        child.stdin.write("\n")
        child.stdin.flush()
    digests = {digest_made(child) for child in children}
    assert set(store.digests()) == digests and len(digests) == 5
    assert store.names()["name"] in digests
    assert len(store.prune().removed) == 4 and store.digests() == [store.names()["name"]]


def test_a_builder_that_is_killed_half_way_leaves_nothing_that_the_next_does_not_remove(store: Store) -> None:
    child = builder(store, "half", "x", "hang")
    assert said(child) == "made"
    assert store.prune().jobs == 0  # while it lives, its job is its own
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert len(os.listdir(store.folder / "tmp")) == 2 and store.names() == {}
    meta = add(store, "next")
    assert os.listdir(store.folder / "tmp") == [] and store.names() == {"next": meta.digest}


@pytest.mark.parametrize("step", range(12))
def test_killed_at_any_moment_of_adding_the_store_is_whole(store: Store, step: int) -> None:
    """The builder is stopped before its Nth change of the store's files; what is listed then can be verified."""
    add(store, "old", "old")
    code = f"""
import os, sys; sys.path[:0] = {[SOURCE, ROOT]!r}
from pathlib import Path
from kooi.images import build, store as module
from tests.images.conftest import little
left = {step}
def counted(real):
    def call(*args, **more):
        global left
        if left == 0:
            os.kill(os.getpid(), 9)
        left -= 1
        return real(*args, **more)
    return call
store = module.Store(Path({str(store.folder)!r}))
with store.job() as work:
    tree = little(work / "tree", "new")
    os.rename, os.fsync = counted(os.rename), counted(os.fsync)
    build.finish(store, tree, "new", (), {{}}, build.silent)
    os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode in (0, -9), done.stderr
    for digest in store.digests():
        store.verify(digest)
        store.meta(digest)
    again = add(store, "new", "new")
    assert store.names()["new"] == again.digest and "old" in store.names()
    assert os.listdir(store.folder / "tmp") == []
    store.prune()
    assert len(store.digests()) == 2 and not list((store.folder / "about").glob(".*"))


def test_an_image_in_use_is_not_removed(store: Store) -> None:
    meta = add(store, "busy")
    fd = store.hold(meta.digest)
    with pytest.raises(InvalidRequest, match="in use") as caught:
        store.remove("busy")
    assert caught.value.key == "image" and store.resolve("busy") == meta.digest
    assert store.users(meta.digest) in ([os.getpid()], [])
    (store.folder / "names" / "busy").unlink()
    assert store.prune().kept == (meta.digest,)
    os.close(fd)
    assert store.prune().removed == (meta.digest,) and store.digests() == []
    assert os.listdir(store.folder / "locks") == os.listdir(store.folder / "about") == []


def test_a_holder_that_is_killed_holds_no_more(store: Store) -> None:
    meta = add(store, "busy")
    code = f"""
import sys, time; sys.path.insert(0, {SOURCE!r})
from pathlib import Path
from kooi.images.store import Store
fd = Store(Path({str(store.folder)!r})).hold({meta.digest!r})
print("held", flush=True); time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert said(child) == "held"
        with pytest.raises(InvalidRequest, match=f"{child.pid}|another process"):
            store.remove("busy")
        child.kill()
    assert store.remove("busy") == (meta.digest, True)


def test_the_tree_goes_with_its_last_name(store: Store) -> None:
    meta = add(store, "a")
    add(store, "b")
    assert store.remove("a") == (meta.digest, False) and store.names() == {"b": meta.digest}
    assert store.remove(meta.digest[:16]) == (meta.digest, True) and store.names() == {}
    with pytest.raises(InvalidPolicy, match="there is no image"):
        store.hold(store.resolve("b"))
    with pytest.raises(InvalidPolicy, match="removed meanwhile"):
        store.hold(meta.digest)


@pytest.mark.parametrize("change", ["content", "mode", "more", "less", "manifest"])
def test_a_changed_tree_is_found_and_named(store: Store, change: str) -> None:
    meta = add(store, "one")
    tree = store.tree(meta.digest)
    text = tree / "usr/share/text"
    if change == "content":
        text.write_text("z")
    elif change == "mode":
        text.chmod(0o755)
    elif change == "more":
        (tree / "usr/share/text2").write_text("")
    elif change == "less":
        text.unlink()
    else:
        text.write_text("z")
        (store.folder / "about" / f"{meta.digest}.manifest").write_bytes(write_manifest(scan(tree)))
    with pytest.raises(SetupFailed, match="manifest" if change == "manifest" else "/usr/share/text") as caught:
        store.verify(meta.digest)
    assert caught.value.key == "image"


def test_two_removers_and_a_user_at_once(store: Store) -> None:
    """Whoever gets a hold has a tree; whoever removes leaves none."""
    code = f"""
import sys, time; sys.path.insert(0, {SOURCE!r})
from pathlib import Path
from kooi.contract.errors import KooiError
from kooi.images.store import Store
store = Store(Path({str(store.folder)!r}))
end = time.monotonic() + 3
held = 0
while time.monotonic() < end:
    try:
        digest = store.resolve("x")
        if sys.argv[1] == "use":
            fd = store.hold(digest)
            assert (store.tree(digest) / "usr/share/text").read_text() == "x"
            held += 1
            __import__("os").close(fd)
        else:
            store.remove("x")
    except KooiError:
        time.sleep(0.001)
print(held)
"""
    with_roles = [subprocess.Popen([sys.executable, "-c", code, role], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True) for role in ("use", "use", "remove", "remove")]  # fmt: skip
    while any(child.poll() is None for child in with_roles):
        add(store, "x")
        time.sleep(0.01)
    for child in with_roles:
        out, err = child.communicate()
        assert child.returncode == 0, err
        assert json.loads(out) >= 0
