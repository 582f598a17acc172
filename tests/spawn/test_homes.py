"""Private folders: what is in them is hostile, and is measured and removed all the same."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kooi.spawn.homes import Gauge, Homes
from kooi.spawn.journal import Journal
from kooi.spawn.reaper import reap


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Homes]:
    journal = Journal.create(str(tmp_path / "run"))
    made = Homes(journal)
    yield made
    made.close()
    journal.close()
    os.close(made.wakeup_fd)
    assert not Path(f"/tmp/{journal.name}.homes").exists()


def place(homes: Homes, name: str) -> Path:
    return Path(homes.path) / name / "home"


def remove(homes: Homes, name: str) -> None:
    gone: list[bool] = []
    homes.remove(name, lambda: gone.append(True))
    deadline = time.monotonic() + 5
    while not gone and time.monotonic() < deadline:
        homes.deliver() if homes._done.qsize() else time.sleep(0.005)
    assert gone and not (Path(homes.path) / name).exists()


def test_an_empty_folder_is_gone_at_once(homes: Homes) -> None:
    name, gone = homes.make(None, []), []
    homes.remove(name, lambda: gone.append(True))
    assert gone == [True] and os.listdir(homes.path) == []


def test_bytes_and_files_are_counted_wherever_they_are(homes: Homes) -> None:
    name = homes.make(None, [])
    home = place(homes, name)
    (home / "a").write_bytes(b"x" * 100_000)
    (home / "deep" / "er").mkdir(parents=True)
    (home.parent / "tmp" / "b").write_bytes(b"x" * 100_000)
    os.link(home / "a", home / "again")
    found = homes.measure(name, None, None)
    assert found.files == 5 and 200_000 <= found.bytes < 320_000


def test_no_link_is_followed(homes: Homes, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 1_000_000)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    name = homes.make(None, [["sales", str(tmp_path / "kept")]])
    (place(homes, name) / "file").symlink_to(tmp_path / "big")
    (place(homes, name) / "folder").symlink_to(tmp_path)
    assert homes.measure(name, None, None).bytes < 100_000
    remove(homes, name)
    assert (tmp_path / "kept" / "file").exists() and (tmp_path / "big").exists()


def test_what_is_deeper_than_any_path_is_too_much_and_is_removed(homes: Homes) -> None:
    name = homes.make(None, [])
    here = os.open(place(homes, name), os.O_RDONLY)
    for _ in range(60):
        os.mkdir("x" * 100, dir_fd=here)
        below = os.open("x" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert homes.measure(name, 1 << 40, 1 << 20).bytes > 1 << 40
    remove(homes, name)


def test_a_closed_folder_hides_nothing(homes: Homes) -> None:
    name = homes.make(None, [])
    closed = place(homes, name) / "closed"
    closed.mkdir()
    (closed / "a").write_bytes(b"x" * 100_000)
    closed.chmod(0)
    assert homes.measure(name, None, None).bytes >= 100_000
    closed.chmod(0)
    remove(homes, name)


def test_the_gauge_calls_once(homes: Homes) -> None:
    name, full = homes.make(None, []), []
    gauge = Gauge(homes, full.append)
    gauge.add(7, name, None, 2)
    for number in range(3):
        (place(homes, name) / str(number)).touch()
    for _ in range(3):
        time.sleep(gauge.seconds() or 0)
        gauge.tick()
    assert full == [7] and gauge.seconds() is None
    gauge.remove(7)


def test_the_reaper_removes_what_a_dead_spawner_left(tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    child = os.fork()
    if child == 0:
        homes = Homes(Journal.create(run_dir))
        (place(homes, homes.make(None, [])) / "left").write_text("x")
        os._exit(0)
    os.waitpid(child, 0)
    (journal,) = Path(run_dir).glob("kooi-*.journal")
    folder = Path(f"/tmp/{journal.stem}.homes")
    assert folder.exists()
    report = reap(run_dir, uid_range=(1, 1), cgroup_roots=[])
    assert report.clean and not folder.exists() and not journal.exists()


def test_the_reaper_follows_no_link_in_its_place(tmp_path: Path) -> None:
    run_dir, victim = str(tmp_path / "run"), tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").touch()
    child = os.fork()
    if child == 0:
        journal = Journal.create(run_dir)
        journal.intend("homes", path=f"/tmp/{journal.name}.homes")
        os.symlink(victim, f"/tmp/{journal.name}.homes")
        os._exit(0)
    os.waitpid(child, 0)
    (journal_file,) = Path(run_dir).glob("kooi-*.journal")
    report = reap(run_dir, uid_range=(1, 1), cgroup_roots=[])
    os.unlink(f"/tmp/{journal_file.stem}.homes")
    assert len(report.aside) == 1 and (victim / "kept").exists()
