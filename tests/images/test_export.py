"""What is written out comes back as the same digest, twice the same bytes, and is what other tools take."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kooi.contract.errors import InvalidRequest, Unsupported
from kooi.images import build, export, take
from kooi.images.meta import Meta
from kooi.images.store import Store
from tests.images.conftest import little


def written(shelf: Store, meta: Meta, path: Path, kind: str) -> Path:
    tree, entries = shelf.tree(meta.digest), shelf.manifest(meta.digest)
    export.export(tree, entries, meta, "python", path, kind, lambda _: None)
    assert sorted(os.listdir(path.parent)) == sorted({*os.listdir(path.parent)}) and path.is_file()
    return path


@pytest.mark.parametrize("kind", ["tar", "oci"])
def test_there_and_back_is_the_same_image(shelf: Store, python: Meta, store: Store, tmp_path: Path, kind: str) -> None:
    first = written(shelf, python, tmp_path / "one", kind)
    assert first.read_bytes() == written(shelf, python, tmp_path / "two", kind).read_bytes()
    assert take.take(store, "back", str(first)).digest == python.digest
    back = store.meta(python.digest)
    assert (back.python, back.sys_path, back.warm) == (python.python, python.sys_path, python.warm)


def test_a_folder_is_taken_without_what_a_running_system_has_in_it(shelf: Store, python: Meta, store: Store,
                                                                   tmp_path: Path) -> None:  # fmt: skip
    folder = tmp_path / "root"
    shutil.copytree(shelf.tree(python.digest), folder, symlinks=True)
    for path in ("dev/shm", "run", "tmp", "proc"):
        (folder / path / "left").write_text("x")
    os.mkfifo(folder / "dev/pipe")
    (folder / "etc/resolv.conf").write_text("nameserver 192.0.2.1\n")
    (folder / "usr/bin/python3").chmod(0o777)
    assert take.take(store, "back", str(folder)).digest == python.digest
    os.mkfifo(folder / "usr/pipe")
    with pytest.raises(InvalidRequest, match="usr/pipe"):
        take.take(store, "no", str(folder))


@pytest.mark.parametrize("kind", ["tar", "oci", "folder"])
def test_names_that_are_not_text_survive(store: Store, tmp_path: Path, kind: str) -> None:
    folder = little(tmp_path / "tree")
    for name in (b"\xff\xfe", "é".encode(), b"new\nline", b"a" * 200, b"-rf", b" "):
        (folder / os.fsdecode(name)).write_bytes(name)
        os.symlink(name, os.fsencode(folder) + b"/usr/" + name)
    meta = take.take(store, "first", str(folder))
    out = tmp_path / "out"
    source = store.tree(meta.digest) if kind == "folder" else written(store, meta, out, kind)
    assert take.take(store, "again", str(source)).digest == meta.digest
    assert b"\xff\xfe" in os.listdir(os.fsencode(store.tree(meta.digest)))
    store.verify(meta.digest)


def test_what_cannot_be_taken(store: Store, tmp_path: Path) -> None:
    for source, says in (
        (str(tmp_path / "no"), "No such file"),
        ("/dev/null", "neither"),
        ("docker:a b", "not the name"),
    ):
        with pytest.raises(InvalidRequest, match=says):
            take.take(store, "it", source)
    if os.geteuid() != 0:
        (tmp_path / "d").mkdir(0o000)
        with pytest.raises(InvalidRequest, match="Permission"):
            take.take(store, "it", str(tmp_path))
        (tmp_path / "d").chmod(0o700)


def test_docker_save_is_read_from_the_engine(
    shelf: Store, python: Meta, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the engine's command: writes what `docker save` writes, or fails as it does."""
    archive = written(shelf, python, tmp_path / "image.oci", "oci")
    tool = tmp_path / "bin" / "docker"
    tool.parent.mkdir()
    tool.write_text(
        f"#!/bin/sh\n[ \"$1 $2\" = 'save it:1' ] || {{ echo 'no such image' >&2; exit 1; }}\nexec cat {archive}\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    assert take.take(store, "it", "docker:it:1").digest == python.digest
    with pytest.raises(InvalidRequest, match="no such image"):
        take.take(store, "other", "docker:other")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Unsupported, match="docker"):
        take.take(store, "it", "docker:it")


def test_the_oci_archive_is_valid(shelf: Store, python: Meta, tmp_path: Path) -> None:
    path = written(shelf, python, tmp_path / "image.oci", "oci")
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive if member.isreg()}
        data = {name: content.read() for name, content in files.items() if content is not None}
    for name, content in data.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"

    def follow(entry: dict[str, Any]) -> bytes:
        content = data["blobs/sha256/" + entry["digest"].removeprefix("sha256:")]
        assert entry["size"] == len(content)
        return content

    assert json.loads(data["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(data["index.json"])["manifests"]
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "python"}
    manifest = json.loads(follow(entry))
    config = json.loads(follow(manifest["config"]))
    (layer,) = manifest["layers"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"]] and layer["mediaType"].endswith("layer.v1.tar")
    assert config["os"] == "linux" and python.digest in config["history"][0]["created_by"]
    follow(layer)
    (legacy,) = json.loads(data["manifest.json"])
    assert {legacy["Config"], *legacy["Layers"]} <= data.keys()


def test_the_tar_depends_on_nothing_but_the_tree(shelf: Store, python: Meta, tmp_path: Path) -> None:
    with tarfile.open(written(shelf, python, tmp_path / "it.tar", "tar")) as archive:
        for member in archive:
            assert (member.uid, member.gid, member.uname, member.gname, member.mtime) == (0, 0, "", "", 0)
            shared = member.name in ("tmp", "var/tmp")
            assert member.mode in ((0o1777,) if shared else (0o755, 0o644, 0o777))
            assert member.isreg() or member.isdir() or member.issym()


@pytest.mark.parametrize(("kind", "tool"), [("ext4", "mke2fs"), ("erofs", "mkfs.erofs")])
def test_a_file_system(shelf: Store, python: Meta, tmp_path: Path, kind: str, tool: str) -> None:
    if shutil.which(tool, path=export._SYSTEM_PATH) is None:
        with pytest.raises(Unsupported, match="apt-get install"):
            written(shelf, python, tmp_path / "it", kind)
        return
    path = written(shelf, python, tmp_path / "it", kind)
    if kind == "ext4":
        checked = subprocess.run(["/sbin/e2fsck", "-fn", str(path)], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout
        said = subprocess.run(["/sbin/debugfs", "-R", "stat /usr/bin/python3.11", str(path)], capture_output=True,
                              text=True).stdout  # fmt: skip
        if sys.version_info[:2] == (3, 11):
            assert "Type: regular    Mode:  0755" in said
            assert "User:     0" in said or os.geteuid() != 0
    assert path.stat().st_size > python.size_bytes // 2


def test_a_missing_tool_is_named_with_its_package(
    shelf: Store, python: Meta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_SYSTEM_PATH", "/nonexistent")
    for kind, package in (("ext4", "e2fsprogs"), ("erofs", "erofs-utils")):
        with pytest.raises(Unsupported, match=package):
            written(shelf, python, tmp_path / "it", kind)
    assert os.listdir(tmp_path) == []


def test_the_format_is_that_of_the_name() -> None:
    assert [export.format_of(Path(f"x.{s}"), None) for s in ("tar", "oci", "ext4", "erofs")] == list(export.FORMATS)
    assert export.format_of(Path("x"), "tar") == "tar"
    with pytest.raises(InvalidRequest, match="not known"):
        export.format_of(Path("x.zip"), None)


def test_an_imported_image_runs(shelf: Store, python: Meta, of_user: Store, tmp_path: Path) -> None:
    """A Debian-like tree that was not made here: other names, other accounts, other modes."""
    import kooi
    from tests import levels

    levels.need("jail")
    folder = tmp_path / "root"
    shutil.copytree(shelf.tree(python.digest), folder, symlinks=True)
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nmine:x:77:77::/:/bin/sh\n")
    (folder / "opt/tool").mkdir()
    (folder / "opt/tool/text").write_text("tool")
    (folder / "var/lib/mine").mkdir(parents=True)
    (folder / "usr/share/secret").write_text("only its owner")
    (folder / "usr/share/secret").chmod(0o600)
    meta = take.take(of_user, "imported", str(folder))
    code = (
        "print(open('/opt/tool/text').read(), open('/usr/share/secret').read()); import pwd, os; print("
        "pwd.getpwnam('mine').pw_uid, pwd.getpwuid(1000).pw_name, os.listdir('/var/lib'))"
    )
    assert meta.digest != python.digest
    result = kooi.run(code, image="imported")
    assert result.stdout == "tool only its owner\n77 user ['mine']\n", result.error
    assert build.DEFINITIONS  # the shared store keeps this image: it is its own name
