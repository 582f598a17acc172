"""Paths under hostile hands: planted symlinks, races, deep and locked trees. The plain way does the harm."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kooi.contract.errors import InvalidPolicy
from kooi.linux import libc, paths
from kooi.linux.seccomp_numbers import numbers
from tests.linux.children import errno_of, in_child

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


@pytest.mark.usefixtures("either_way")
def test_a_tree_is_removed_and_what_its_symlinks_name_is_not(root: int, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "inside" / "a" / "fifo")
    (tmp_path / "inside" / "a" / "odd \udcff\n").write_text("x")
    parent = os.open(tmp_path, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    for name in ("inside", "inside", "nothing"):
        paths.remove_tree(parent, name)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(parent)
    assert sorted(os.listdir(tmp_path)) == ["outside"]
    assert (tmp_path / "outside" / "secret").read_text() == "canary"


def test_a_symlink_as_the_tree_itself_is_only_unlinked(root: int, tmp_path: Path) -> None:
    paths.remove_tree(root, "out")
    assert not (tmp_path / "inside" / "out").is_symlink()
    assert (tmp_path / "outside" / "secret").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_only_one_entry_can_be_named(root: int, name: str) -> None:
    assert errno_of(paths.remove_tree, root, name) == errno.EINVAL


@pytest.mark.usefixtures("either_way")
def test_a_tree_deeper_than_any_path_and_any_descriptor_limit_is_removed(tmp_path: Path) -> None:
    def deep() -> list[str]:
        most = max(map(int, os.listdir("/proc/self/fd"))) + 24
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        parent = os.open(tmp_path, os.O_RDONLY)
        here = os.dup(parent)
        for _ in range(3000):
            os.mkdir("folder", dir_fd=here)
            below = os.open("folder", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        paths.remove_tree(parent, "folder")
        return os.listdir(parent)

    assert in_child(deep) == []


def test_a_wide_tree_is_removed_in_good_time(tmp_path: Path) -> None:
    for n in range(2000):
        (tmp_path / "wide" / str(n)).mkdir(parents=True)
        (tmp_path / "wide" / str(n) / "file").touch()
    parent = os.open(tmp_path, os.O_RDONLY)
    paths.remove_tree(parent, "wide")
    os.close(parent)
    assert os.listdir(tmp_path) == []


def test_folders_their_owner_locked_are_removed(tmp_path: Path) -> None:
    def locked() -> list[str]:
        if os.geteuid() == 0:
            os.chown(tmp_path, 61234, 61234)
            parent = os.open(tmp_path, os.O_RDONLY)
            os.setresuid(61234, 61234, 61234)
        else:
            parent = os.open(tmp_path, os.O_RDONLY)
        os.mkdir("locked", dir_fd=parent)
        os.mkdir("locked/below", dir_fd=parent)
        os.close(os.open("locked/below/file", os.O_CREAT, dir_fd=parent))
        os.chmod("locked/below", 0, dir_fd=parent)
        os.chmod("locked", 0, dir_fd=parent)
        paths.remove_tree(parent, "locked")
        return os.listdir(parent)

    assert in_child(locked) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_mount_in_the_tree_stops_the_removal_before_its_files(tmp_path: Path) -> None:
    """A bind mount of the same file system, which a look at device numbers does not show."""
    (tmp_path / "tree" / "mounted").mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "secret").write_text("canary")

    def mounted() -> int:
        libc.syscall(libc.nr("unshare"), 0x20000)
        libc.syscall(libc.nr("mount"), b"none", b"/", None, 0x44000, None)  # private, recursively
        source, target = os.fsencode(tmp_path / "victim"), os.fsencode(tmp_path / "tree" / "mounted")
        libc.syscall(libc.nr("mount"), source, target, None, 0x1000, None)
        return errno_of(paths.remove_tree, os.open(tmp_path, os.O_RDONLY), "tree")

    assert in_child(mounted) in (errno.EXDEV, errno.EBUSY)
    assert (tmp_path / "victim" / "secret").read_text() == "canary"


def test_a_folder_swapped_for_a_symlink_during_removal_saves_the_victim(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text("canary")
    parent = os.open(tmp_path, os.O_RDONLY)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            try:
                exchange(tmp_path / "tree" / "folder", tmp_path / "tree" / "link")
            except FileNotFoundError:
                pass

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(150):
            (tmp_path / "tree" / "folder").mkdir(parents=True)
            (tmp_path / "tree" / "link").symlink_to(victim)
            for n in range(3):
                try:
                    (tmp_path / "tree" / "folder" / str(n)).touch()
                except FileExistsError:
                    pass
            for n in range(3):
                (victim / str(n)).unlink(missing_ok=True)
            try:
                paths.remove_tree(parent, "tree")
            except OSError as error:
                assert error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EAGAIN, errno.ENOTEMPTY), error
                _until_removed(parent)
            assert (victim / "secret").read_text() == "canary"
    finally:
        stop.set()
        thread.join()
        os.close(parent)
    assert os.listdir(tmp_path) == ["victim"]


def _until_removed(parent: int) -> None:
    for _ in range(1000):
        if errno_of(paths.remove_tree, parent, "tree") == 0:
            return
    raise AssertionError("the tree could not be removed")
