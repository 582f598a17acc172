"""Removing trees that were built to make it hard."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kooi.contract.errors import KooiError
from kooi.spawn.removal import remove_tree


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    yield path


def remove(top: Path, name: str) -> None:
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        before = len(os.listdir("/proc/self/fd"))
        remove_tree(fd, name, "trash")
        assert len(os.listdir("/proc/self/fd")) == before, "descriptors left open"
    finally:
        os.close(fd)


def test_files_of_every_kind_and_folders(top: Path) -> None:
    (top / "a" / "b" / "c").mkdir(parents=True)
    (top / "a" / "file").write_text("x")
    (top / "a" / "b" / "file").write_text("x")
    os.mkfifo(top / "a" / "fifo")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(top / "a" / "s"))
    os.fsencode(top)
    os.mkdir(os.fsencode(top / "a") + b"/\xff\xfe")
    os.close(os.open(os.fsencode(top / "a") + b"/\xff\xfe/\n", os.O_CREAT | os.O_WRONLY))
    remove(top, "a")
    assert list(top.iterdir()) == []


def test_absent_things_empty_folders_and_single_files(top: Path) -> None:
    remove(top, "nothing")
    remove(top, "no/thing")
    (top / "empty").mkdir()
    remove(top, "empty")
    (top / "file").touch()
    remove(top, "file")
    assert list(top.iterdir()) == []


def test_links_are_removed_and_not_followed(top: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "sub").mkdir(parents=True)
    (victim / "sub" / "precious").write_text("x")
    mode = victim.stat().st_mode
    (top / "a").mkdir()
    (top / "a" / "link").symlink_to(victim)
    (top / "a" / "dangling").symlink_to("/nonexistent")
    (top / "b").symlink_to(victim)
    (top / "c").symlink_to(victim)
    remove(top, "a")
    remove(top, "b")
    with pytest.raises(KooiError, match="cannot remove c/sub"):
        remove(top, "c/sub")
    assert (victim / "sub" / "precious").read_text() == "x" and victim.stat().st_mode == mode


def test_a_very_deep_tree(top: Path) -> None:
    depth = 3000
    here = os.open(top, os.O_RDONLY)
    for index in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
        if index % 100 == 0:
            os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    remove(top, "d")
    assert list(top.iterdir()) == []


def test_a_wide_folder(top: Path) -> None:
    (top / "wide").mkdir()
    for index in range(3500):
        os.mkdir(top / "wide" / f"n{index}")
    for index in range(0, 3500, 5):
        (top / "wide" / f"n{index}" / "f").touch()
    remove(top, "wide")
    assert list(top.iterdir()) == []


def test_folders_without_rights_as_an_ordinary_user(top: Path) -> None:
    locked = top / "a" / "b" / "locked"
    locked.mkdir(parents=True)
    (locked / "f").touch()
    (locked / "below").mkdir()
    (locked / "below" / "f").touch()
    for path in (locked / "below", locked, locked.parent, top / "a"):
        path.chmod(0)
    if os.geteuid() != 0:
        remove(top, "a")
        assert list(top.iterdir()) == []
        return
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for folder, folders, files in os.walk(top):
        for name in (".", *folders, *files):
            os.chown(os.path.join(folder, name), 65534, 65534)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            remove_tree(fd, "a", "trash")
            code = 0
        finally:
            os._exit(code)
    os.close(fd)
    assert os.waitpid(pid, 0)[1] == 0
    assert list(top.iterdir()) == []


def test_an_interrupted_removal_is_finished_by_the_next(top: Path) -> None:
    (top / "trash" / "0-x" / "deep").mkdir(parents=True)
    (top / "trash" / "0-x" / "deep" / "f").touch()
    (top / "trash" / "loose").touch()
    (top / "a" / "b").mkdir(parents=True)
    remove(top, "a")
    assert list(top.iterdir()) == []
    (top / "trash" / "0-x").mkdir(parents=True)
    remove(top, "trash")
    assert list(top.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_another_file_system_is_not_entered(top: Path, tmp_path: Path) -> None:
    """In a mount namespace of its own: a tmpfs mounted inside the tree is refused, not emptied."""
    import ctypes

    (top / "a" / "mounted").mkdir(parents=True)
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.unshare(0x00020000) == 0 and libc.mount(None, b"/", None, 0x44000, None) == 0
            there = str(top / "a" / "mounted").encode()
            assert libc.mount(b"none", there, b"tmpfs", 0, None) == 0
            (top / "a" / "mounted" / "precious").touch()
            os.chdir(top)
            inner = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
            try:
                remove_tree(inner, "a", "trash")
            except KooiError as error:
                kept = list(top.rglob("precious"))
                code = 0 if "a file system is mounted" in str(error) and kept else 2
            except OSError:
                code = 0 if list(top.rglob("precious")) else 3
        finally:
            os._exit(code)
    os.close(fd)
    assert os.waitpid(pid, 0)[1] == 0
