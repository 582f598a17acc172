"""Paths under hostile hands: planted symlinks, races, deep and locked trees. The plain way does the harm."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kooi.contract.errors import InvalidPolicy
from kooi.linux import libc, paths
from kooi.linux.seccomp_numbers import numbers
from tests.linux.children import errno_of

EXCHANGE = 2


@pytest.fixture(params=["openat2", "walk"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with the kernel's resolution, and with the walk used where the kernel lacks it."""
    if request.param == "walk":
        monkeypatch.setattr(paths, "_openat2", lambda *_: -errno.ENOSYS)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("canary")
    inside = tmp_path / "inside"
    (inside / "a" / "b").mkdir(parents=True)
    (inside / "a" / "file").write_text("fine")
    (inside / "link").symlink_to("a/file")
    (inside / "out").symlink_to("../outside")
    (inside / "absolute").symlink_to(tmp_path / "outside" / "secret")
    (inside / "a" / "magic").symlink_to("/proc/self/root/etc/passwd")
    fd = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def read(root: int, path: str) -> str:
    with open(paths.open_beneath(root, path, os.O_RDONLY), encoding="utf-8") as file:
        return file.read()


@pytest.mark.usefixtures("either_way")
def test_what_is_below_is_opened_and_closed_on_exec(root: int) -> None:
    assert read(root, "a/file") == "fine"
    assert read(root, "./a//file") == "fine"
    fd = paths.open_beneath(root, "a/b/new", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
    assert not os.get_inheritable(fd) and os.fstat(fd).st_mode & 0o777 == 0o640
    os.close(fd)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("link", errno.ELOOP),
        ("absolute", errno.ELOOP),
        ("a/magic", errno.ELOOP),
        ("/etc/passwd", errno.EXDEV),
        ("../outside/secret", errno.EXDEV),
        ("a/../../outside/secret", errno.EXDEV),
        ("a/nothing", errno.ENOENT),
        ("a/file/below", errno.ENOTDIR),
        ("", errno.EINVAL),
        ("a\0b", errno.EINVAL),
    ],
)
def test_symlinks_and_ways_out_are_refused(root: int, path: str, code: int) -> None:
    for flags in (os.O_RDONLY, os.O_PATH, os.O_WRONLY | os.O_CREAT):
        if (path, flags) != ("a/nothing", os.O_WRONLY | os.O_CREAT):
            assert errno_of(paths.open_beneath, root, path, flags) == code


@pytest.mark.usefixtures("either_way")
def test_a_symlink_in_the_middle_is_refused(root: int) -> None:
    """The plain call follows it: that is the harm."""
    fd = os.open("out/secret", os.O_RDONLY, dir_fd=root)
    assert os.read(fd, 9) == b"canary"
    os.close(fd)
    assert errno_of(paths.open_beneath, root, "out/secret", os.O_RDONLY) in (errno.ELOOP, errno.ENOTDIR)


def exchange(one: Path, two: Path) -> None:
    number = numbers(os.uname().machine)["renameat2"]
    libc.syscall(number, -100, os.fsencode(one), -100, os.fsencode(two), EXCHANGE)


def while_swapping(one: Path, two: Path, action: Callable[[], str], wanted: set[str]) -> set[str]:
    """Return what `action` returned, called while another thread swaps the two names without pause.

    It is called 1,500 times at least, and on until everything `wanted` was seen, for 20 seconds at most.
    """
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            exchange(one, two)

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[str] = set()
    deadline = time.monotonic() + 20
    try:
        rounds = 0
        while rounds < 1500 or (not wanted <= seen and time.monotonic() < deadline):
            seen.add(action())
            rounds += 1
    finally:
        stop.set()
        thread.join()
    return seen


@pytest.mark.usefixtures("either_way")
def test_a_folder_swapped_for_a_symlink_never_leads_out(root: int, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    (inside / "a" / "secret").write_text("fine")

    def plainly() -> str:
        with open(os.open("a/secret", os.O_RDONLY, dir_fd=root), encoding="utf-8") as file:
            return file.read()

    def by_us() -> str:
        try:
            return read(root, "a/secret")
        except OSError as error:
            assert error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EAGAIN, errno.EXDEV)
            return "refused"

    folder, link = inside / "a", inside / "out"
    assert while_swapping(folder, link, plainly, {"fine", "canary"}) == {"fine", "canary"}
    assert while_swapping(folder, link, by_us, {"fine", "refused"}) == {"fine", "refused"}


@pytest.mark.usefixtures("either_way")
def test_an_operators_path_is_opened_when_it_is_plain(root: int, tmp_path: Path) -> None:
    for path in (str(tmp_path / "inside" / "a" / "file"), str(tmp_path / "inside") + "/", "/"):
        fd = paths.open_absolute_no_symlinks(path)
        assert os.path.samestat(os.fstat(fd), os.stat(path))
        os.close(fd)


@pytest.mark.usefixtures("either_way")
def test_an_operators_path_in_the_way_of_which_something_is_names_that(root: int, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    cases = {
        inside / "out" / "secret": f"{inside / 'out'} is a symlink",
        inside / "link": f"{inside / 'link'} is a symlink",
        inside / "gone" / "x": f"{inside / 'gone'}: No such file",
        inside / "a" / "file" / "x": f"{inside / 'a' / 'file'} is not a folder",
    }
    for path, text in cases.items():
        with pytest.raises(InvalidPolicy) as caught:
            paths.open_absolute_no_symlinks(str(path))
        assert text in str(caught.value) and caught.value.key == str(path) and caught.value.fix


def test_the_fix_for_a_symlink_is_where_it_leads(root: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        paths.open_absolute_no_symlinks(str(tmp_path / "inside" / "absolute"))
    assert str(tmp_path / "outside" / "secret") in (caught.value.fix or "")


@pytest.mark.parametrize("path", ["relative", "", "/a/../b", "/a\0b"])
def test_an_operators_path_must_be_absolute(path: str) -> None:
    with pytest.raises(InvalidPolicy):
        paths.open_absolute_no_symlinks(path)
