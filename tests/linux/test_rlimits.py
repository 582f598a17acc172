"""Resource limits bind, cannot be raised again from inside, and read back."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest

from kooi.contract.errors import InvalidRequest, Unsupported
from kooi.linux import caps, rlimits
from tests.linux.children import errno_of, in_child

EVERY = {
    "open_files": 64,
    "processes": 32,
    "file_bytes": 4096,
    "data_bytes": 256 << 20,
    "cpu_seconds": 7.2,
    **rlimits.BASE,
}


def test_soft_and_hard_are_equal_and_read_back() -> None:
    def limited() -> dict[str, list[int | None]]:
        rlimits.apply(rlimits.table(EVERY))
        return {name: list(pair) for name, pair in rlimits.report().items()}

    before = rlimits.report()
    found = in_child(limited)
    for name, value in EVERY.items():
        assert value is not None
        wanted = 8 if name == "cpu_seconds" else value
        if not int(caps.read()["effective"]) >> 24 & 1:  # without CAP_SYS_RESOURCE a lower hard limit stays
            wanted = min(wanted, wanted if before[name][1] is None else int(before[name][1] or 0))
        assert found[name] == [wanted, wanted], name
    assert found["stack_bytes"] == list(before["stack_bytes"])


def test_a_limit_can_be_read_of_another_process() -> None:
    child = os.fork()
    if child == 0:
        rlimits.apply(rlimits.table({"open_files": 33}))
        signal.pause()
        os._exit(0)
    try:
        deadline = time.monotonic() + 5
        while rlimits.report(child)["open_files"] != (33, 33) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert rlimits.report(child)["open_files"] == (33, 33)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_open_files_and_file_size_bind(tmp_path: Path) -> None:
    def fill() -> list[int]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        fds: list[int] = []
        opened = 0
        while opened == 0 and len(fds) < 500:
            opened = errno_of(lambda: fds.append(os.open("/dev/null", os.O_RDONLY)))
        for fd in fds:
            os.close(fd)
        fd = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
        return [opened, os.write(fd, bytes(10_000))]

    def limited() -> list[int]:
        rlimits.apply(rlimits.table(EVERY))
        return fill()

    assert in_child(fill) == [0, 10_000]
    assert in_child(limited) == [24, 4096]  # EMFILE


def test_data_bytes_binds() -> None:
    def allocate() -> str:
        try:
            return str(len(bytearray(600 << 20)))
        except MemoryError:
            return "MemoryError"

    def limited() -> str:
        rlimits.apply(rlimits.table(EVERY))
        return allocate()

    assert in_child(allocate) == str(600 << 20)
    assert in_child(limited) == "MemoryError"


def test_the_cpu_limit_kills() -> None:
    child = os.fork()
    if child == 0:
        rlimits.apply(rlimits.table({"cpu_seconds": 1}))
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            pass
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_an_ordinary_user_cannot_raise_a_limit_again() -> None:
    def limited() -> int:
        rlimits.apply(rlimits.table(EVERY))
        os.setresuid(61234, 61234, 61234)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (65, 65))
        except ValueError:
            return 1
        return 0

    assert in_child(limited) == 1


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), -0.5])
def test_absurd_values_are_refused(value: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rlimits.table({"open_files": value})
    assert caught.value.key == "open_files"


def test_unknown_names_and_missing_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest):
        rlimits.table({"opened_files": 3})
    monkeypatch.delattr(resource, "RLIMIT_MSGQUEUE")
    with pytest.raises(Unsupported):
        rlimits.table({"queue_bytes": 3})
    assert "queue_bytes" not in rlimits.report()


def test_none_leaves_a_limit_alone_and_the_report_is_readable() -> None:
    assert rlimits.table({"open_files": None}) == ()
    lines = rlimits.describe({"open_files": (64, 64), "cpu_seconds": (None, None), "core_bytes": (0, None)})
    assert lines == [
        "open_files: 64 descriptors",
        "cpu_seconds: no limit",
        "core_bytes: 0 bytes (may be raised to any value)",
    ]
