"""Landlock: each clause denies what it names, allows what it must, and the same program does harm without it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kooi.contract.errors import InvalidRequest, KooiError, PolicyUnenforceable
from kooi.linux import landlock, libc
from kooi.linux.landlock import CLAUSES, Ruleset
from tests.linux.children import errno_of, in_child

needs_abi_6 = pytest.mark.skipif(landlock.abi() < 6, reason="this kernel has no Landlock ABI 6")
pytestmark = needs_abi_6


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("open", "closed", "readonly"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("canary")
    (tmp_path / "open" / "link").symlink_to(tmp_path / "closed" / "file")
    return tmp_path


def restrict(tree: Path, *clauses: str) -> None:
    with Ruleset(clauses or tuple(CLAUSES)) as rules:
        rules.allow(str(tree / "open"), "read", "write", "execute")
        rules.allow(str(tree / "readonly"), "read")
        rules.allow("/dev/null", "read", "write")
        rules.restrict_self()


def attempts(tree: Path) -> dict[str, int]:
    """What a program can do to the tree, by errno (0: it worked)."""
    closed, readonly, free = str(tree / "closed"), str(tree / "readonly"), str(tree / "open")

    def opened(path: str, flags: int) -> None:
        os.close(os.open(path, flags, 0o600))

    return {
        "read allowed": errno_of(opened, free + "/file", os.O_RDONLY),
        "write allowed": errno_of(opened, free + "/new", os.O_CREAT | os.O_WRONLY),
        "read read-only": errno_of(opened, readonly + "/file", os.O_RDONLY),
        "write read-only": errno_of(opened, readonly + "/file", os.O_WRONLY),
        "truncate read-only": errno_of(os.truncate, readonly + "/file", 1),
        "read closed": errno_of(opened, closed + "/file", os.O_RDONLY),
        "read through a symlink": errno_of(opened, free + "/link", os.O_RDONLY),
        "list closed": errno_of(os.listdir, closed),
        "mkdir closed": errno_of(os.mkdir, closed + "/d"),
        "mkfifo closed": errno_of(os.mkfifo, closed + "/fifo"),
        "rename out": errno_of(os.rename, free + "/file", closed + "/moved"),
        "link in": errno_of(os.link, closed + "/file", free + "/hard"),
        "unlink closed": errno_of(os.unlink, closed + "/file"),
    }


HARM = (
    "write read-only",
    "truncate read-only",
    "read closed",
    "read through a symlink",
    "list closed",
    "mkdir closed",
    "mkfifo closed",
    "rename out",
    "link in",
    "unlink closed",
)


def test_files_outside_the_allow_list_are_denied(tree: Path) -> None:
    def sandboxed() -> dict[str, int]:
        restrict(tree)
        return attempts(tree)

    found = in_child(sandboxed)
    for name, code in found.items():
        assert code == 0 if name not in HARM else code in (errno.EACCES, errno.EXDEV), (name, code)


def test_the_same_program_does_the_harm_without_landlock(tree: Path) -> None:
    assert set(in_child(lambda: attempts(tree)).values()) == {0}


def test_truncate_stays_open_when_the_clause_is_left_out(tree: Path) -> None:
    def sandboxed() -> list[int]:
        restrict(tree, "files")
        path = str(tree / "readonly" / "file")
        return [errno_of(os.truncate, path, 1), errno_of(os.open, path, os.O_WRONLY)]

    assert in_child(sandboxed) == [0, errno.EACCES]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_tcp_connect_and_bind_are_denied(listener: socket.socket, tree: Path) -> None:
    port = listener.getsockname()[1]

    def both() -> list[int]:
        with socket.socket() as one, socket.socket() as two:
            return [errno_of(one.connect, ("127.0.0.1", port)), errno_of(two.bind, ("127.0.0.1", 0))]

    def sandboxed() -> list[int]:
        restrict(tree)
        return both()

    assert in_child(both) == [0, 0]
    assert in_child(sandboxed) == [errno.EACCES, errno.EACCES]


def test_signals_and_abstract_sockets_stop_at_the_edge_of_the_domain(tree: Path) -> None:
    name = f"\0kooi-test-{os.getpid()}"
    victim = os.getpid()

    def reach() -> dict[str, int]:
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        with socket.socket(socket.AF_UNIX) as client:
            found = {
                "outsider": errno_of(os.kill, victim, 0),
                "abstract": errno_of(client.connect, name),
                "own child": errno_of(os.kill, child, signal.SIGKILL),
            }
        os.waitpid(child, 0)
        return found

    def sandboxed() -> dict[str, int]:
        restrict(tree)
        return reach()

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert in_child(reach) == {"outsider": 0, "abstract": 0, "own child": 0}
        assert in_child(sandboxed) == {"outsider": errno.EPERM, "abstract": errno.EPERM, "own child": 0}


def test_device_ioctls_need_their_own_access(tree: Path) -> None:
    """A terminal's generic ioctl (TCGETS) on a device file opened after the restriction."""
    controller, terminal = os.openpty()
    path = os.ttyname(terminal)

    def get_attributes(*access: str) -> Callable[[], list[int]]:
        def run() -> list[int]:
            if access:
                with Ruleset() as rules:
                    rules.allow("/dev", *access)
                    rules.restrict_self()
            fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
            return [errno_of(fcntl.ioctl, fd, 0x5401, bytes(64))]

        return run

    try:
        assert in_child(get_attributes()) == [0]
        assert in_child(get_attributes("read", "write", "device")) == [0]
        assert in_child(get_attributes("read", "write")) == [errno.EACCES]
    finally:
        os.close(controller)
        os.close(terminal)


def test_a_clause_above_the_present_abi_is_refused_by_name() -> None:
    for clause, (needed, *_rest) in CLAUSES.items():
        landlock.check([clause], needed)
        with pytest.raises(PolicyUnenforceable) as caught:
            landlock.check([clause], needed - 1)
        text = str(caught.value)
        assert isinstance(caught.value, KooiError)
        assert repr(clause) in text and f"ABI {needed} " in text and f"ABI {needed - 1} " in text


def test_a_kernel_without_landlock_refuses_every_ruleset(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any) -> int:
        return -errno.ENOSYS

    monkeypatch.setattr(libc, "try_syscall", absent)
    assert landlock.abi() == 0
    with pytest.raises(PolicyUnenforceable):
        Ruleset(("files",))


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        Ruleset(("flies",))
    with Ruleset(("files",)) as rules, pytest.raises(InvalidRequest):
        rules.allow(str(tmp_path), "everything")


def test_a_missing_path_is_an_error_and_not_an_empty_rule(tmp_path: Path) -> None:
    with Ruleset() as rules, pytest.raises(FileNotFoundError):
        rules.allow(str(tmp_path / "nothing"), "read")


def test_a_single_file_can_be_allowed_by_descriptor(tree: Path) -> None:
    fd = os.open(tree / "closed" / "file", os.O_PATH)

    def sandboxed() -> list[int]:
        with Ruleset() as rules:
            rules.allow(fd, "read", "write", "device")
            rules.restrict_self()
        closed = str(tree / "closed")
        return [errno_of(os.open, closed + "/file", os.O_RDWR), errno_of(os.listdir, closed)]

    assert in_child(sandboxed) == [0, errno.EACCES]
    os.close(fd)


def test_the_attribute_layout_is_the_kernels(tmp_path: Path) -> None:
    """All rights at once: a wrong bit or a wrong size would be EINVAL or E2BIG."""
    with Ruleset() as rules:
        assert rules._fd >= 0 and os.get_inheritable(rules._fd) is False
        rules.allow(str(tmp_path), *landlock.ACCESS)
        rules.close()
        rules.close()
    assert struct.calcsize("=QQQ") == 24
