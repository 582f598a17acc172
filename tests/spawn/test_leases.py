"""Uid leases: one holder a block, given back by release or death, never a range that is somebody's."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kooi.contract.errors import InvalidRequest, SetupFailed
from kooi.spawn import leases
from kooi.spawn.leases import Leases, refuse_overlap, uids_in_use

BASE = 3_100_000_000


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    yield str(path)


@pytest.fixture(autouse=True)
def system_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for /etc/subuid, /etc/subgid and /etc/passwd."""
    (tmp_path / "subuid").write_text("# comment\n\nalice:100000:65536\nbob:165536:65536\n")
    (tmp_path / "subgid").write_text("alice:300000:65536\n")
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\ncarol:x:500100:500100::/:/bin/sh\n")
    monkeypatch.setattr(leases, "GIVEN_AWAY", (str(tmp_path / "subuid"), str(tmp_path / "subgid")))
    monkeypatch.setattr(leases, "PASSWD", str(tmp_path / "passwd"))
    return tmp_path


def test_blocks_are_taken_in_order_and_run_out(run_dir: str) -> None:
    pool = Leases(run_dir, BASE, 3000, block=1024)
    one, two = pool.take(), pool.take()
    assert [(lease.base, lease.count) for lease in (one, two)] == [(BASE, 1024), (BASE + 1024, 1024)]
    with pytest.raises(SetupFailed, match="all 2 blocks"):
        pool.take()
    one.release()
    one.release()
    assert pool.take().base == BASE
    two.release()
    pool.close()
    pool.close()


def test_a_cleared_run_directory_keeps_no_block_from_being_released(run_dir: str) -> None:
    pool = Leases(run_dir, BASE, 2048)
    lease = pool.take()
    os.unlink(os.path.join(run_dir, f"uids-{BASE}-1024.lock"))
    lease.release()
    assert pool.take().base == BASE
    pool.close()


def test_a_released_block_leaves_no_file(run_dir: str) -> None:
    pool = Leases(run_dir, BASE, 2048)
    lease = pool.take()
    assert os.listdir(run_dir) == [f"uids-{BASE}-1024.lock"]
    pool.close()
    lease.release()
    assert os.listdir(run_dir) == []


def test_two_processes_never_hold_the_same_block_and_death_gives_it_back(run_dir: str) -> None:
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            lease = Leases(run_dir, BASE, 2048).take()
            os.write(sink, str(lease.base).encode())
            time.sleep(60)
        finally:
            os._exit(0)
    assert int(os.read(source, 20)) == BASE
    pool = Leases(run_dir, BASE, 2048)
    lease = pool.take()
    assert lease.base == BASE + 1024
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert pool.take().base == BASE
    os.close(source)
    os.close(sink)


def test_the_lock_does_not_pass_to_programs(run_dir: str) -> None:
    lease = Leases(run_dir, BASE, 2048).take()
    assert not os.get_inheritable(lease._fd)


def test_many_takers_at_once_all_get_their_own(run_dir: str) -> None:
    source, sink = os.pipe()
    children = []
    for _ in range(12):
        pid = os.fork()
        if pid == 0:
            try:
                pool = Leases(run_dir, BASE, 12 * 64, block=64)
                for _ in range(20):
                    pool.take().release()
                os.write(sink, b"%d\n" % pool.take().base)
                time.sleep(60)
            finally:
                os._exit(0)
        children.append(pid)
    said = b""
    while said.count(b"\n") < 12:
        said += os.read(source, 4096)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert len(set(said.split())) == 12
    os.close(source)
    os.close(sink)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to take another uid")
def test_a_block_that_a_process_still_uses_is_passed_over(run_dir: str) -> None:
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(BASE + 7, BASE + 7, BASE + 7)
            os.write(sink, b"x")
            time.sleep(60)
        finally:
            os._exit(0)
    os.read(source, 1)
    assert uids_in_use(BASE, 1024) == [BASE + 7] and uids_in_use(BASE + 8, 1024) == []
    pool = Leases(run_dir, BASE, 2048)
    assert pool.take().base == BASE + 1024
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 5
    while uids_in_use(BASE, 1024) and time.monotonic() < end:
        time.sleep(0.01)
    assert uids_in_use(BASE, 1024) == [], "a zombie is no user"
    os.waitpid(pid, 0)
    assert pool.take().base == BASE
    os.close(source)
    os.close(sink)


@pytest.mark.parametrize(
    "base, count, where",
    [
        (100_000, 10, "subuid line 3"),
        (90_000, 10_001, "subuid line 3"),
        (165_535, 1, "subuid line 3"),
        (231_071, 1024, "subuid line 4"),
        (70_000, 900_000, "subuid line 3"),
        (365_535, 10, "subgid line 1"),
        (500_000, 101, "carol"),
    ],
)
def test_ranges_that_are_somebodys_are_refused(run_dir: str, base: int, count: int, where: str) -> None:
    with pytest.raises(SetupFailed, match=where):
        Leases(run_dir, base, count, block=1)


@pytest.mark.parametrize("base, count", [(90_000, 10_000), (231_072, 1000), (365_536, 10), (500_101, 1000)])
def test_ranges_right_beside_are_fine(base: int, count: int) -> None:
    refuse_overlap(base, count)


@pytest.mark.parametrize("line", ["alice", "alice:1", "alice:x:1", "alice:1:2:3", "alice:-1:5"])
def test_a_line_that_could_hide_an_overlap_is_refused(system_files: Path, line: str) -> None:
    (system_files / "subgid").write_text(f"ok:300000:1\n{line}\n")
    with pytest.raises(SetupFailed, match="subgid line 2 is not NAME:FIRST:COUNT"):
        refuse_overlap(BASE, 10)


def test_without_the_files_nothing_is_given_away(system_files: Path) -> None:
    for name in ("subuid", "subgid", "passwd"):
        (system_files / name).unlink()
    refuse_overlap(100_000, 10)


@pytest.mark.parametrize("base, count, block", [(0, 4096, 1024), (65_534, 4096, 1024), (BASE, 10, 1024), (BASE, 10, 0),
                                                (2**32 - 100, 1024, 64), (-5, 4096, 1024)])  # fmt: skip
def test_impossible_ranges_are_refused(run_dir: str, base: int, count: int, block: int) -> None:
    with pytest.raises(InvalidRequest):
        Leases(run_dir, base, count, block)
