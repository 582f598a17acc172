"""The crash journal: what it writes, when it is there and when it is gone, and that a kill never tears a record."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kooi.contract.errors import InvalidRequest, SetupFailed
from kooi.spawn import journal, reaper
from kooi.spawn.journal import Journal

UIDS = (100_000, 65_536)


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    yield str(path)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line[9:]) for line in path.read_bytes().split(b"\n") if line.strip(b" ")]


def test_the_file_is_private_locked_and_says_who(run_dir: str) -> None:
    log = Journal.create(run_dir)
    path = Path(run_dir, log.file)
    assert path.stat().st_mode & 0o7777 == 0o600
    with open(path, "rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    (header,) = lines(path)
    me, parent = os.getpid(), os.getppid()
    assert header == {
        "kooi_journal": 1,
        "id": log.id,
        "boot_id": journal.boot_id(),
        "uid": os.geteuid(),
        "owner": [parent, journal.start_time(parent)],
        "spawner": [me, journal.start_time(me)],
        "pid_ns": os.stat("/proc/self/ns/pid").st_ino,
    }
    assert log.close() and log.close()
    assert os.listdir(run_dir) == []


def test_records_are_there_at_once_and_stay_until_done(run_dir: str) -> None:
    log = Journal.create(run_dir)
    paths = {"memory": f"/sys/fs/cgroup/memory/kooi-{log.id}", "self": f"/sys/fs/cgroup/kooi-{log.id}-self"}
    one = log.intend("cgroup", paths=paths)
    two = log.intend("dir", path=f"{run_dir}/box/1")
    three = log.intend("socket", path="control")
    four = log.intend("uid_block", base=100_000, count=1024)
    assert lines(Path(run_dir, log.file))[1:] == [
        {"n": 0, "do": "cgroup", "paths": paths},
        {"n": 1, "do": "dir", "path": "box/1"},
        {"n": 2, "do": "socket", "path": "control"},
        {"n": 3, "do": "uid_block", "base": 100_000, "count": 1024},
    ]
    for number in (two, one, four):
        log.done(number)
    with pytest.raises(InvalidRequest):
        log.done(one)
    entries = reaper.parse(Path(run_dir, log.file).read_bytes(), log.id, UIDS)
    assert [record["n"] for record in entries.open] == [three]
    assert not log.close(), "something is not done, so it stays"
    assert os.listdir(run_dir) == [log.file]


@pytest.mark.parametrize(
    "kind, data",
    [
        ("process", {"pid": 1}),
        ("cgroup", {}),
        ("cgroup", {"paths": {}}),
        ("cgroup", {"paths": ["/sys/fs/cgroup/kooi-ID"]}),
        ("cgroup", {"paths": {"memory": "/sys/fs/cgroup/kooi-other"}}),
        ("cgroup", {"paths": {"memory": "/sys/fs/cgroup"}}),
        ("cgroup", {"paths": {"memory": "kooi-ID"}}),
        ("cgroup", {"paths": {"memory": "/a/../kooi-ID"}}),
        ("cgroup", {"paths": {"memory": "/a/kooi-ID/"}}),
        ("dir", {"path": ""}),
        ("dir", {"path": "../x"}),
        ("dir", {"path": "a/../../x"}),
        ("dir", {"path": "a//b"}),
        ("dir", {"path": "/etc"}),
        ("dir", {"path": "a\0b"}),
        ("dir", {"path": "a/" + "b" * 256}),
        ("dir", {"path": "kooi-1.journal"}),
        ("dir", {"path": "uids-1.lock"}),
        ("dir", {"path": "a", "more": 1}),
        ("socket", {"path": "."}),
        ("uid_block", {"base": 0, "count": 1}),
        ("uid_block", {"base": True, "count": 1}),
        ("uid_block", {"base": 1}),
    ],
)
def test_records_that_a_reaper_would_not_accept_are_refused(run_dir: str, kind: str, data: dict[str, object]) -> None:
    log = Journal.create(run_dir)
    text = json.dumps(data).replace("ID", log.id)
    with pytest.raises(InvalidRequest):
        log.intend(kind, **json.loads(text))  # type: ignore[arg-type]
    assert log.close()


def test_no_record_crosses_a_page(run_dir: str) -> None:
    log = Journal.create(run_dir)
    for index in range(400):
        log.intend("dir", path="/".join("dddddddddd" for _ in range(1 + index * 7 % 90)))
    data = Path(run_dir, log.file).read_bytes()
    start = 0
    for line in data.split(b"\n")[:-1]:
        end = start + len(line)
        assert start // 4096 == end // 4096, (start, end)
        start = end + 1
    assert len(reaper.parse(data, log.id, UIDS).open) == 400
    with pytest.raises(InvalidRequest, match="too long"):
        log.intend("dir", path="/".join("y" * 1500))
    log.close()


def test_a_long_lived_journal_stays_small_and_locked(run_dir: str) -> None:
    log = Journal.create(run_dir)
    kept = log.intend("dir", path="kept")
    for _ in range(12_000):
        log.done(log.intend("dir", path="d" * 100))
    path = Path(run_dir, log.file)
    assert path.stat().st_size < 2 << 20
    assert os.listdir(run_dir) == [log.file]
    with open(path, "rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert [record["n"] for record in reaper.parse(path.read_bytes(), log.id, UIDS).open] == [kept]
    log.done(kept)
    assert log.close()


def test_a_full_disk_is_an_error_and_leaves_whole_records(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Journal.create(run_dir)
    log.intend("dir", path="one")
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
    with pytest.raises(SetupFailed, match="only 10 of"):
        log.intend("dir", path="two")
    monkeypatch.undo()
    log.intend("dir", path="three")
    entries = reaper.parse(Path(run_dir, log.file).read_bytes(), log.id, UIDS)
    assert [record["path"] for record in entries.open] == ["one", "three"]
    log.close()


def test_a_run_dir_that_is_not_private_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(SetupFailed, match="mode 777"):
        Journal.create(str(path))
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError):
        Journal.create(str(tmp_path / "link"))
    assert Journal.create(str(tmp_path / "new" / "deep")).close()


def test_a_kill_at_any_moment_leaves_a_whole_journal(run_dir: str) -> None:
    """Forty writers killed while they write as fast as they can: every journal parses."""
    for index in range(40):
        pid = os.fork()
        if pid == 0:
            try:
                log = Journal.create(run_dir)
                while True:
                    number = log.intend("dir", path="/".join(["d" * 200] * 4))
                    log.intend("dir", path="e" * 50)
                    log.done(number)
            finally:
                os._exit(1)
        while len(os.listdir(run_dir)) <= index:  # a busy machine may take its time to let the writer begin
            time.sleep(0.001)
        time.sleep(0.001 + 0.0007 * index)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    report = reaper.reap(run_dir, uid_range=UIDS, cgroup_roots=[])
    assert (report.aside, report.failed, report.live) == ([], [], [])
    assert len(report.reaped) == 40
    assert os.listdir(run_dir) == []


def test_the_start_time_tells_processes_apart() -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    started = journal.start_time(pid)
    assert started is not None and started >= (journal.start_time(os.getpid()) or 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert journal.start_time(pid) is None
