"""The level `confined` from inside: what there is to reach, and that it is refused; each with a twin that works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kooi
from tests.levels import need

TRY = """
import ctypes, errno, os, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, work):
    try:
        got = work()
    except OSError as error:
        print(name, errno.errorcode.get(error.errno))
    else:
        print(name, "worked")
def call(name, *arguments):
    def work():
        if getattr(libc, name)(*arguments) < 0:
            raise OSError(ctypes.get_errno(), "")
    return work
"""

# Everybody may read and write the file at the path.
OUTSIDE = """
tried("read", lambda: open(%(path)r))
tried("write", lambda: open(%(path)r, "r+"))
tried("empty", lambda: os.truncate(%(path)r, 0))
tried("list", lambda: os.listdir("/proc"))
tried("tmp", lambda: os.listdir("/tmp"))
tried("make", lambda: open("/tmp/kooi-made", "w"))
tried("shm", lambda: open("/dev/shm/kooi-made", "w"))
tried("passwd", lambda: open("/etc/passwd"))
tried("memory", lambda: open("/proc/self/mem"))
tried("parent", lambda: os.listdir(".."))
tried("others", lambda: os.listdir("../.."))
tried("remove", lambda: os.rmdir("../tmp"))
tried("own", lambda: open("own", "w"))
tried("library", lambda: open(os.__file__))
"""


@pytest.fixture(scope="module")
def box() -> Iterator[kooi.Sandbox]:
    need("confined")
    with kooi.Sandbox(level="confined") as opened:
        yield opened


def tried(box: kooi.Sandbox, code: str) -> dict[str, str]:
    result = box.run(TRY + code)
    assert result.ok, result
    return dict(line.split() for line in result.stdout.splitlines())


def test_files_outside_the_list_cannot_be_opened(box: kooi.Sandbox) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="kooi-open-", dir="/tmp") as file:
        file.write("x")
        file.flush()
        os.chmod(file.name, 0o666)
        found = tried(box, OUTSIDE % {"path": file.name})
        assert Path(file.name).read_text() == "x"
    works = {name for name, outcome in found.items() if outcome == "worked"}
    assert works == {"own", "library"}, found
    assert {outcome for name, outcome in found.items() if name not in works} == {"EACCES"}, found


def test_there_is_no_socket_but_a_pair(box: kooi.Sandbox) -> None:
    found = tried(box, """
for name in ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"):
    tried(name, lambda: socket.socket(getattr(socket, name), socket.SOCK_STREAM))
tried("pair", socket.socketpair)
tried("shmget", call("shmget", 0, 4096, 0o1600))
tried("msgget", call("msgget", 0, 0o1600))
tried("semget", call("semget", 0, 1, 0o1600))
tried("mq_open", call("mq_open", b"/kooi", 0o102, 0o600, 0))
""")  # fmt: skip
    assert found.pop("pair") == "worked"
    assert "worked" not in found.values(), found


def test_no_process_outside_is_reached(box: kooi.Sandbox) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        found = tried(box, f"""
for name, pid in (("stranger", {stranger.pid}), ("agent", os.getppid())):
    tried(name + "-kill", lambda: os.kill(pid, signal.SIGKILL))
    tried(name + "-stop", lambda: os.kill(pid, signal.SIGSTOP))
    tried(name + "-trace", call("ptrace", 16, pid, 0, 0))
    tried(name + "-limit", call("prlimit", pid, 7, ctypes.byref((ctypes.c_ulong * 2)(9, 9)), 0))
    tried(name + "-nice", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    tried(name + "-cpus", lambda: os.sched_setaffinity(pid, [0]))
tried("everybody", lambda: os.kill(-1, 0))
child = os.fork()
if child == 0:
    signal.pause()
tried("own", lambda: os.kill(child, signal.SIGKILL))
os.waitpid(child, 0)
""")  # fmt: skip
        assert stranger.poll() is None
        stranger.kill()
    assert found.pop("own") == "worked"
    # It may be sent, and reaches none.
    found.pop("everybody")
    assert "worked" not in found.values(), found


def test_a_daemon_that_deafened_itself_dies_with_its_box_and_nobody_else() -> None:
    need("confined")
    name = f"kc{os.getpid()}"
    code = f"""
import ctypes, os, signal
for _ in range(30):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)
            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
            os.closerange(0, 256)
            while True:
                signal.sigwait([signal.SIGUSR1])
        os._exit(0)
import time
time.sleep(0.3)
"""

    def living() -> int:
        return sum(comm(pid) == name for pid in os.listdir("/proc") if pid.isdigit())

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        with kooi.Sandbox(level="confined") as box:
            box.run(code)
            assert living() == 30
        assert living() == 0
        assert stranger.poll() is None
        stranger.kill()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_warden_that_somebody_kills_takes_its_box_along() -> None:
    need("confined")
    name = f"kw{os.getpid()}"
    with kooi.Sandbox(level="confined") as box:
        box.run(f"import ctypes, os, time\nctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\nos.fork()")
        found = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and comm(pid) == name]
        assert found
        os.kill(parent(parent(found[0])), signal.SIGKILL)
        deadline = time.monotonic() + 5
        while any(comm(pid) == name for pid in found) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(comm(pid) == name for pid in found)


def comm(pid: object) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_watched_limits_end_the_box_with_their_status() -> None:
    need("confined")
    code = "import os\nfor n in range(100000):\n  os.close(os.open(str(n), os.O_CREAT))"
    result = kooi.run(code, level="confined", limits={"files": 300})
    assert (result.status, result.decided_by) == ("disk_limit", "host")
    code = "n = 0\nwhile True:\n  with open(str(n), 'wb') as f: f.write(bytes(1 << 20))\n  n += 1"
    result = kooi.run(code, level="confined", limits={"disk_bytes": 8 << 20})
    assert (result.status, result.decided_by) == ("disk_limit", "host")


def test_a_call_is_over_when_its_folder_is_gone() -> None:
    need("confined")
    code = "import os\nfor n in range(3000): open(str(n), 'w').close()\nprint(os.getcwd())"
    home = Path(kooi.run(code, level="confined").stdout.strip())
    assert home.name == "home" and not home.parent.exists()


def test_an_image_is_refused() -> None:
    need("confined")
    with pytest.raises(kooi.KooiError) as refusal:
        kooi.run("1", level="confined", image="python")
    assert refusal.value.key == "image"


def test_the_report_lists_what_is_open() -> None:
    need("confined")
    started = time.monotonic()
    result = kooi.run("print(1)", level="confined")
    assert result.waivers == ("host_metadata", "processes_hidden") and time.monotonic() - started < 20
    with pytest.raises(kooi.KooiError):
        kooi.run("print(1)", level="confined", policy={"strict": True})


def test_a_dataset_is_what_was_named_and_no_link_leads_on() -> None:
    need("confined")
    with tempfile.TemporaryDirectory(prefix="kooi-data-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        real, other = Path(folder) / "real", Path(folder) / "other"
        for each in (real, other):
            each.mkdir(mode=0o755)
            (each / "file").write_text(each.name)
        (real / "way").symlink_to(other)
        policy = {"datasets": {"it": str(real)}}
        with kooi.Sandbox(level="confined", policy=policy) as box:
            found = tried(box, """
data = os.environ["KOOI_DATA"] + "/it/"
tried("file", lambda: open(data + "file"))
tried("list", lambda: os.listdir(data))
tried("write", lambda: open(data + "file", "a"))
tried("way", lambda: open(data + "way/file"))
tried("another", lambda: os.symlink("/etc", os.environ["KOOI_DATA"] + "/more"))
""")  # fmt: skip
    assert found == {"file": "worked", "list": "worked", "write": "EACCES", "way": "EACCES", "another": "EACCES"}
