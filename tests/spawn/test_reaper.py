"""The reaper kills what a dead spawner left, and nothing else, whatever stands in a journal."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kooi.contract.errors import KooiError
from kooi.linux import cgroup
from kooi.linux.cgroup import Group, Tree
from kooi.spawn import journal, reaper
from kooi.spawn.journal import Journal, encode
from kooi.spawn.reaper import Report, reap

# In a guest of our own this process may be moved into a scope; on a developer's machine it stays where it is.
LAYOUT = cgroup.layout(delegate="KOOI_IN_GUEST_VM" in os.environ)
ROOTS = [found.mount for found in LAYOUT.hierarchies]
UIDS = (3_000_000_000, 65_536)
needs_groups = pytest.mark.skipif(not LAYOUT.available, reason=f"no control groups: {LAYOUT.reason}")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give things to another user")


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    yield str(path)


class Left:
    """A dead spawner's journal that a test writes by hand, and a live process in a group it names."""

    def __init__(self, run_dir: str) -> None:
        self.ident = os.urandom(6).hex()
        self.path = Path(run_dir, f"kooi-{self.ident}.journal")
        self.tree = Tree.create(LAYOUT, f"kooi-{self.ident}")
        self.group: Group = self.tree.group("box")
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
        self.group.attach(self.process.pid)
        self.records: list[dict[str, object]] = [{"n": 0, "do": "cgroup", "paths": dict(self.tree.paths)}]
        self.header: dict[str, object] = {
            "kooi_journal": 1, "id": self.ident, "boot_id": journal.boot_id(), "uid": os.geteuid(),
            "owner": [1, 1], "spawner": [2**22 + 1, 1], "pid_ns": journal.pid_namespace(),
        }  # fmt: skip

    def data(self) -> bytes:
        return b"".join(encode(line) for line in (self.header, *self.records))

    def write(self, data: bytes | None = None) -> None:
        self.path.write_bytes(self.data() if data is None else data)
        self.path.chmod(0o600)

    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        with suppress(OSError):
            self.process.kill()
        self.process.wait()
        self.tree.remove()


@pytest.fixture
def left(run_dir: str) -> Iterator[Left]:
    one = Left(run_dir)
    yield one
    one.end()


def reaped(run_dir: str) -> Report:
    return reap(run_dir, uid_range=UIDS, cgroup_roots=ROOTS)


def spared(run_dir: str, left: Left, reason: str) -> None:
    """Reap, and see that nothing was killed and the journal was set aside for `reason`."""
    report = reaped(run_dir)
    time.sleep(0.02)
    assert left.alive()
    assert len(report.aside) == 1 and reason in report.aside[0][1], report
    assert (report.reaped, report.groups, report.dirs) == ([], [], [])
    assert not report.clean
    assert [name for name in os.listdir(run_dir) if name.endswith(left.path.name)] == [report.aside[0][0]]
    assert reaped(run_dir).aside == [], "it is not met again"


@needs_groups
def test_the_positive_control_a_whole_journal_is_reaped(run_dir: str, left: Left) -> None:
    left.write()
    report = reaped(run_dir)
    assert report.reaped == [left.ident] and report.clean, report
    assert left.process.wait(5) == -signal.SIGKILL
    assert sorted(report.groups) == sorted(left.tree.paths.values())
    assert not any(os.path.exists(path) for path in left.tree.paths.values())
    assert os.listdir(run_dir) == []


@needs_groups
@pytest.mark.parametrize("damage", range(8))
def test_a_damaged_journal_kills_nothing(run_dir: str, left: Left, damage: int) -> None:
    whole = left.data()
    middle = whole.index(b"\n") + 30
    bytes_, reason = [
        (whole[:-1], "cut off"),
        (whole[:middle], "cut off"),
        (whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], "checksum"),
        (whole.replace(b"\n", b"\n\x00\n", 1), "checksum"),
        (whole + b"garbage\n", "checksum"),
        (whole.split(b"\n", 1)[1], "version"),
        (b" \n" * 3, "no header"),
        (whole + encode({"n": 0, "do": "dir", "path": "x"}), "comes after"),
    ][damage]
    left.write(bytes_)
    spared(run_dir, left, reason)


@needs_groups
@pytest.mark.parametrize(
    "change, reason",
    [
        ({"kooi_journal": 2}, "version is 2"),
        ({"kooi_journal": None}, "version is None"),
        ({"kooi_journal": True}, "version is True"),
        ({"id": "0" * 12}, "journal '000000000000'"),
        ({"uid": 12345}, "of user 12345"),
        ({"boot_id": 7}, "does not say boot"),
        ({"spawner": [1]}, "does not say boot"),
        ({"spawner": [1, None]}, "does not say boot"),
    ],
)
def test_an_unknown_header_kills_nothing(run_dir: str, left: Left, change: dict[str, object], reason: str) -> None:
    left.header.update(change)
    left.write()
    spared(run_dir, left, reason)


@needs_groups
@pytest.mark.parametrize(
    "record, reason",
    [
        ({"n": 1, "do": "process", "pid": 1}, "not a journal record"),
        ({"n": 1, "do": "cgroup", "paths": {"memory": "/sys/fs/cgroup"}}, "not a journal record"),
        ({"n": 1, "do": "dir", "path": "../../etc"}, "not a journal record"),
        ({"n": 1, "do": "dir", "path": "/etc"}, "not a journal record"),
        ({"n": 1, "do": "uid_block", "base": 1, "count": 10}, "not ours"),
        ({"n": 1, "do": "uid_block", "base": UIDS[0], "count": UIDS[1] + 1}, "not ours"),
        ({"n": "1", "do": "dir", "path": "x"}, "without a number"),
        ({"done": 5}, "was not open"),
    ],
)
def test_one_bad_record_spoils_the_journal(run_dir: str, left: Left, record: dict[str, object], reason: str) -> None:
    left.records.append(record)
    left.write()
    spared(run_dir, left, reason)


@needs_groups
@needs_root
def test_a_journal_of_another_user_kills_nothing(run_dir: str, left: Left) -> None:
    left.write()
    os.chown(left.path, 12345, 12345)
    spared(run_dir, left, "belongs to user 12345")


@needs_groups
def test_a_journal_that_others_can_use_kills_nothing(run_dir: str, left: Left) -> None:
    left.write()
    left.path.chmod(0o666)
    spared(run_dir, left, "mode 666")


@needs_groups
def test_a_journal_that_is_a_link_or_no_file_kills_nothing(run_dir: str, left: Left, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(left.data())
    left.path.symlink_to(tmp_path / "elsewhere")
    spared(run_dir, left, "cannot be opened")
    assert (tmp_path / "elsewhere").exists()
    os.unlink(next(Path(run_dir).iterdir()))
    os.mkfifo(left.path, 0o600)
    spared(run_dir, left, "not a regular file")


@needs_groups
@needs_root
def test_another_users_group_is_not_touched(run_dir: str, left: Left) -> None:
    left.write()
    for path in left.tree.paths.values():
        os.chown(path, 12345, 12345)
    spared(run_dir, left, "belongs to user 12345")


@needs_groups
def test_a_group_with_another_name_is_not_touched(run_dir: str, left: Left) -> None:
    ident = os.urandom(6).hex()
    left.header["id"] = ident
    left.path = Path(run_dir, f"kooi-{ident}.journal")
    left.write()
    spared(run_dir, left, "not a journal record")


@needs_groups
def test_a_group_outside_the_roots_is_not_touched(run_dir: str, left: Left, tmp_path: Path) -> None:
    left.write()
    report = reap(run_dir, uid_range=UIDS, cgroup_roots=["/proc", str(tmp_path), "/nonexistent"])
    assert left.alive() and "not below" in report.aside[0][1], report


@needs_groups
def test_a_folder_that_only_looks_like_a_group_is_not_touched(run_dir: str, left: Left, tmp_path: Path) -> None:
    fake = tmp_path / "cgroup" / f"kooi-{left.ident}"
    fake.mkdir(parents=True)
    for path in (fake, fake.parent):
        (path / "cgroup.procs").write_text(f"{left.process.pid}\n")
    left.records = [{"n": 0, "do": "cgroup", "paths": {"memory": str(fake)}}]
    left.write()
    spared(run_dir, left, "not below")
    assert (fake / "cgroup.procs").exists()


@needs_groups
def test_a_later_bad_group_saves_the_earlier_good_one(run_dir: str, left: Left, tmp_path: Path) -> None:
    other = tmp_path / f"kooi-{left.ident}"
    other.mkdir()
    left.records.append({"n": 1, "do": "cgroup", "paths": {"memory": str(other)}})
    left.write()
    spared(run_dir, left, "not below")


@needs_groups
def test_a_live_journal_is_left_alone(run_dir: str) -> None:
    log = Journal.create(run_dir)
    tree = Tree.create(LAYOUT, log.name)
    log.intend("cgroup", paths=tree.paths)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    tree.group("box").attach(process.pid)
    code = f"from kooi.spawn.reaper import reap\nprint(reap({run_dir!r}, uid_range={UIDS}, cgroup_roots={ROOTS}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert f"reaped=[], live=['{log.id}']" in said
    assert reaped(run_dir).live == [log.id], "also within the spawner's own process"
    assert process.poll() is None
    tree.remove()
    process.wait()
    log.done(0)
    assert log.close()


@needs_groups
def test_a_copy_of_a_live_journal_is_left_alone(run_dir: str, tmp_path: Path) -> None:
    log = Journal.create(run_dir)
    tree = Tree.create(LAYOUT, log.name)
    log.intend("cgroup", paths=tree.paths)
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o700)
    shutil.copy(Path(run_dir, log.file), copy)
    assert reaped(str(copy)).live == [log.id]
    assert all(os.path.isdir(path) for path in tree.paths.values())
    tree.remove()
    log.close()


@needs_groups
def test_a_lock_that_an_orphan_holds_does_not_save_a_dead_spawner(run_dir: str, left: Left) -> None:
    left.write()
    with open(left.path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        left.header["pid_ns"] = 7
        left.write()
        assert reaped(run_dir).live == [left.ident], "its spawner's pid means nothing here"
        left.header.update(pid_ns=journal.pid_namespace(), boot_id="another")
        left.write()
        assert reaped(run_dir).live == [left.ident], "a lock held now and a boot before: somebody's work"
        left.header["boot_id"] = journal.boot_id()
        left.write(left.data()[:-1])
        assert reaped(run_dir).live == [left.ident], "damaged and locked: left alone"
        assert left.alive()
        left.write()
        assert reaped(run_dir).reaped == [left.ident]
    assert left.process.wait(5) == -signal.SIGKILL


def test_reapers_wait_for_each_other(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "LOCK_SECONDS", 0.05)
    fd = os.open(run_dir, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(KooiError, match="another reaper"):
        reaped(run_dir)
    os.close(fd)
    assert reaped(run_dir).clean


@needs_groups
def test_a_reused_pid_is_not_killed(run_dir: str, left: Left) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started = journal.start_time(bystander.pid)
    assert started is not None
    left.header["spawner"] = [bystander.pid, started - 1]
    left.header["owner"] = [bystander.pid, started - 1]
    left.write()
    assert reaped(run_dir).reaped == [left.ident]
    assert left.process.wait(5) == -signal.SIGKILL
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


@needs_groups
def test_after_another_boot_only_folders_go(run_dir: str, left: Left) -> None:
    Path(run_dir, "temp").mkdir()
    left.header["boot_id"] = "00000000-0000-0000-0000-000000000000"
    left.records.append({"n": 1, "do": "dir", "path": "temp"})
    left.records.append({"n": 2, "do": "uid_block", "base": UIDS[0], "count": 1024})
    left.write()
    report = reaped(run_dir)
    assert left.alive()
    assert (report.reaped, report.groups, report.dirs) == ([left.ident], [], ["temp"])
    assert os.listdir(run_dir) == []


@needs_groups
def test_what_is_done_is_not_touched(run_dir: str, left: Left) -> None:
    left.records.append({"done": 0})
    left.write()
    assert reaped(run_dir).reaped == [left.ident]
    assert left.alive()


SPAWNER = """
import os, signal, sys, time
from kooi.linux.cgroup import Tree, layout, planned
from kooi.spawn.journal import Journal
from kooi.spawn.leases import Leases
run_dir, hold = sys.argv[1], int(sys.argv[2])
log = Journal.create(run_dir)
lease = None
if os.geteuid() == 0:
    log.intend("uid_block", base=3_000_000_000, count=1024)
    lease = Leases(run_dir, 3_000_000_000, 65_536).take()
    assert lease.base == 3_000_000_000
where = layout(delegate="KOOI_IN_GUEST_VM" in os.environ)
log.intend("cgroup", paths=planned(where, log.name))
tree = Tree.create(where, log.name)
log.intend("dir", path="work")
os.makedirs(run_dir + "/work/deep/er")
open(run_dir + "/work/deep/file", "w").close()
log.intend("socket", path="control")
import socket
socket.socket(socket.AF_UNIX).bind(run_dir + "/control")
for index in range(4):
    group = tree.group(f"box-{index}")
    pid = os.fork()
    if pid == 0:
        os.read(0, 1)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if lease:
            os.setresuid(lease.base + index, lease.base + index, lease.base + index)
        for _ in range(6):
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
                os.write(hold, b".")
                time.sleep(120)
        os.write(hold, b".")
        time.sleep(120)
        os._exit(0)
    group.attach(pid)
print(log.id, flush=True)
time.sleep(120)
"""


@needs_groups
def test_everything_of_a_killed_spawner_is_gone(run_dir: str) -> None:
    """28 processes in four groups: own sessions, double forks, all signals blocked, own uids as root."""
    source, hold = os.pipe()
    go, start = os.pipe()
    spawner = subprocess.Popen(
        [sys.executable, "-c", SPAWNER, run_dir, str(hold)],
        stdin=go,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(hold,),
    )
    os.close(hold)
    os.close(go)
    assert spawner.stdout is not None
    ident = spawner.stdout.readline().strip()
    os.write(start, b"xxxx")
    os.close(start)
    started = 0
    while started < 28:
        assert select.select([source], [], [], 20)[0], f"only {started} started"
        started += len(os.read(source, 100))
    assert reaped(run_dir).live == [ident], "while it lives it is left alone"
    spawner.kill()
    spawner.wait()
    spawner.stdout.close()
    assert not select.select([source], [], [], 0.1)[0], "the positive control: they outlive their spawner"
    report = reaped(run_dir)
    assert report.reaped == [ident] and not report.aside and not report.failed, report
    assert select.select([source], [], [], 5)[0] and os.read(source, 1) == b"", "somebody still holds the pipe"
    os.close(source)
    assert report.strays == []
    assert sorted(report.dirs) == ["control", "work"]
    assert os.listdir(run_dir) == []
    assert not [path for root in ROOTS for path in Path(root).rglob(f"*{ident}*")]


def test_an_empty_journal_is_just_removed(run_dir: str) -> None:
    Path(run_dir, "kooi-0123456789ab.journal").touch(0o600)
    report = reaped(run_dir)
    assert report.reaped == ["0123456789ab"] and report.clean
    assert os.listdir(run_dir) == []


def test_scratch_without_a_holder_goes_and_strangers_stay(run_dir: str) -> None:
    log = Journal.create(run_dir)
    for name in (".kooi-0123456789ab.journal.new", "uids-3000000000-1024.lock", "notes.txt", "kooi-notes"):
        Path(run_dir, name).touch(0o600)
    assert reaped(run_dir).live == [log.id]
    assert sorted(os.listdir(run_dir)) == sorted(["notes.txt", "kooi-notes", log.file])
    log.close()


def test_a_folder_that_cannot_be_removed_keeps_the_journal(run_dir: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    log = Journal.create(run_dir)
    log.intend("dir", path="sub/precious")
    os.symlink(victim, Path(run_dir, "sub"))
    data = Path(run_dir, log.file).read_bytes()
    log.close()
    path = Path(run_dir, log.file)
    head = reaper._decode(data.split(b"\n")[0])
    path.write_bytes(data.replace(encode(head), encode({**head, "spawner": [2**22 + 1, 1]})))
    for _ in range(2):
        report = reaped(run_dir)
        assert len(report.failed) == 1 and "sub" in report.failed[0][1], report
        assert (victim / "precious").exists() and path.exists()
    os.unlink(Path(run_dir, "sub"))
    assert reaped(run_dir).reaped == [log.id]


IDENT = "0123456789ab"
GOOD = b"".join(
    encode(line)
    for line in (
        {
            "kooi_journal": 1,
            "id": IDENT,
            "boot_id": "b",
            "uid": os.geteuid(),
            "owner": [1, 1],
            "spawner": [2, 2],
            "pid_ns": 3,
        },
        {"n": 0, "do": "cgroup", "paths": {"memory": f"/sys/fs/cgroup/memory/kooi-{IDENT}"}},
        {"n": 1, "do": "dir", "path": "a/b"},
        {"done": 0},
        {"n": 2, "do": "uid_block", "base": UIDS[0], "count": 5},
    )
)


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 40), st.binary(max_size=40)), min_size=1, max_size=4)
)
def test_no_mutation_is_read_as_something_else(edits: list[tuple[int, int, bytes]]) -> None:
    data = GOOD
    for at, gone, new in edits:
        data = data[:at] + new + data[at + gone :]
    whole = reaper.parse(GOOD, IDENT, UIDS).open
    try:
        found = reaper.parse(data, IDENT, UIDS).open
    except reaper.Damaged:
        return
    allowed = [*whole, {"n": 0, "do": "cgroup", "paths": {"memory": f"/sys/fs/cgroup/memory/kooi-{IDENT}"}}]
    assert all(record in allowed for record in found)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(["n", "do", "done", "paths", "path", "base", "count"]), JSON), max_size=4)
)
def test_well_formed_nonsense_is_damage(records: list[dict[str, object]]) -> None:
    header = GOOD.split(b"\n")[0] + b"\n"
    with suppress(reaper.Damaged):
        reaper.parse(header + b"".join(encode(record) for record in records), IDENT, UIDS)
