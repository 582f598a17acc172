"""Control groups against the running kernel: every limit, counter and end with real processes in throwaway groups.

Needs a host where this process can make groups (root on v1 or hybrid; root or a delegated user on v2). The same file
runs inside a pure v2 guest by `tests/guest_vm/run.py`, and without pytest.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kooi.contract.errors import InvalidRequest, KooiError, LevelUnavailable, SetupFailed
from kooi.linux import cgroup
from kooi.linux.cgroup import Group, Tree, layout

MIB = 1 << 20
ORDINARY = 65534
# In a guest of our own this process may be moved into a scope; on a developer's machine it stays where it is.
HERE = layout(delegate="KOOI_IN_GUEST_VM" in os.environ)

try:
    import pytest

    pytestmark = pytest.mark.skipif(not HERE.available, reason=f"no control groups: {HERE.reason}")
except ImportError:  # in the guest
    pass


@contextmanager
def a_tree() -> Iterator[Tree]:
    """A tree that is gone afterwards, checked."""
    tree = Tree.create(HERE, f"kooi-test-{os.getpid()}-{os.urandom(3).hex()}")
    try:
        yield tree
    finally:
        tree.remove()
        left = [path for path in tree.paths.values() if os.path.exists(path)]
        assert not left, left


def text(path: str) -> str:
    with open(path) as file:
        return file.read()


def child_in(group: Group, work: Callable[[], None]) -> int:
    """Fork a child that waits until it is in `group` and then does `work`; return its pid."""
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 70
        with suppress(BaseException):
            os.close(go)
            os.read(ready, 1)
            work()
            code = 0
        os._exit(code)
    os.close(ready)
    group.attach(pid)
    os.write(go, b"x")
    os.close(go)
    return pid


def wait(pid: int, seconds: float = 20.0) -> int:
    """Return the wait status; kill and fail after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"child {pid} did not end in {seconds} s")


def until(true: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() >= end:
            return False
        time.sleep(0.002)
    return True


def raises(kind: type[BaseException], work: Callable[[], object]) -> BaseException:
    try:
        work()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def allocate(mib: int) -> Callable[[], None]:
    def work() -> None:
        block = bytearray(mib * MIB)
        for at in range(0, len(block), 4096):
            block[at] = 1

    return work


def test_the_layout_is_what_the_kernel_says() -> None:
    mounts = text("/proc/self/mountinfo")
    assert HERE.kind in ("v1", "hybrid", "v2")
    assert (HERE.kind == "v2") == (" - cgroup " not in mounts)
    assert all(os.path.isdir(path) or path.endswith("/kooi.slice") for path in HERE.parents.values())
    assert HERE.reason is None and HERE.fix is None


def test_a_group_is_there_in_every_hierarchy_and_gone_after_remove() -> None:
    with a_tree() as tree:
        group = tree.group("a-1")
        assert set(group.paths) == set(tree.paths)
        for path in group.paths.values():
            stat = os.stat(path)
            assert (stat.st_uid, stat.st_mode & 0o022) == (os.geteuid(), 0)
            for name in os.listdir(path):
                file = os.stat(f"{path}/{name}")
                assert file.st_uid == os.geteuid(), name
                # v1 lets everybody register for events of a group whose files he can open.
                assert file.st_mode & 0o022 == 0 or name == "cgroup.event_control", name
        group.remove()
        group.remove()
        assert not any(os.path.exists(path) for path in group.paths.values())


def test_bad_names_and_limits_are_refused() -> None:
    with a_tree() as tree:
        for name in ("", "..", "a/b", "A", "a_b", "-a", "a\n", "a" * 64, "é"):
            raises(InvalidRequest, lambda name=name: tree.group(name))  # type: ignore[misc]
        group = tree.group("good")
        for bad in (0, -1, True, 1.5, "64", 2**63):
            raises(InvalidRequest, lambda bad=bad: group.set_limits(bad, 10))  # type: ignore[misc]
            raises(InvalidRequest, lambda bad=bad: group.set_limits(MIB, bad))  # type: ignore[misc]
        raises(SetupFailed, lambda: tree.group("good"))
        assert os.path.isdir(next(iter(group.paths.values())))
    raises(SetupFailed, lambda: Tree.create(HERE, "other-name"))
    unavailable = HERE._replace(available=False, reason="for a test", fix="do this")
    error = raises(LevelUnavailable, lambda: Tree.create(unavailable, "kooi-none"))
    assert "for a test" in str(error) and "do this" in str(error)


def test_an_existing_tree_is_refused_and_stays_untouched() -> None:
    with a_tree() as tree:
        group = tree.group("inhabited")
        pid = child_in(group, lambda: time.sleep(30))
        raises(SetupFailed, lambda: Tree.create(HERE, tree.name))
        assert group.populated() and os.path.isdir(next(iter(tree.paths.values())))
        group.kill()
        assert os.WTERMSIG(wait(pid)) == signal.SIGKILL


def test_memory_is_bounded_and_the_oom_kill_is_counted() -> None:
    with a_tree() as tree:
        group = tree.group("mem")
        group.set_limits(32 * MIB, 10)
        assert group.oom_kills() == 0
        assert wait(child_in(group, allocate(8))) == 0, "the positive control: 8 MiB fit"
        assert group.oom_kills() == 0
        status = wait(child_in(group, allocate(200)))
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert group.oom_kills() == 1
        peak = group.usage().memory_peak
        assert peak is None or 24 * MIB < peak <= 32 * MIB


def test_a_grandchild_killed_for_memory_is_counted_too_and_a_plain_kill_is_not() -> None:
    with a_tree() as tree:
        group = tree.group("mem2")
        group.set_limits(32 * MIB, 10)

        def parent() -> None:
            pid = os.fork()
            if pid == 0:
                allocate(200)()
                os._exit(0)
            os.waitpid(pid, 0)

        assert wait(child_in(group, parent)) == 0
        assert group.oom_kills() == 1
        pid = child_in(group, lambda: time.sleep(30))
        os.kill(pid, signal.SIGKILL)
        wait(pid)
        assert group.oom_kills() == 1


def test_limits_go_up_and_down_and_away() -> None:
    with a_tree() as tree:
        group = tree.group("updown")
        group.set_limits(16 * MIB, 10)
        group.set_limits(64 * MIB, 20)
        assert wait(child_in(group, allocate(32))) == 0
        group.set_limits(16 * MIB, 5)
        assert os.WIFSIGNALED(wait(child_in(group, allocate(32))))
        group.set_limits(None, None)
        assert wait(child_in(group, allocate(32))) == 0
        group.set_limits(16 * MIB, 5)
        assert os.WIFSIGNALED(wait(child_in(group, allocate(32))))


def test_swap_is_no_way_round_the_memory_limit() -> None:
    with a_tree() as tree:
        group = tree.group("swap")
        group.set_limits(16 * MIB, 5)
        if HERE.kind == "v2":
            if "memory.swap.max" in tree.features:
                assert text(group.paths["unified"] + "/memory.swap.max") == "0\n"
        elif "memory.memsw.limit_in_bytes" in tree.features:
            assert int(text(group.paths["memory"] + "/memory.memsw.limit_in_bytes")) == 16 * MIB


def test_socket_buffers_do_not_go_round_the_memory_limit() -> None:
    """TCP buffers held over loopback: without a bound of their own they are free of charge on v1."""
    import socket

    def held(sink: int) -> Callable[[], None]:
        def work() -> None:
            server = socket.create_server(("127.0.0.1", 0))
            keep, total = [], 0
            for _ in range(16):
                one = socket.create_connection(server.getsockname())
                two, _ = server.accept()
                keep += [one, two]
                one.setblocking(False)
                with suppress(BlockingIOError):
                    while total < 96 * MIB:
                        total += one.send(bytes(65536))
            os.write(sink, str(total).encode())

        return work

    with a_tree() as tree:
        totals = []
        for name, memory in (("free", None), ("bound", 16 * MIB)):
            group = tree.group(name)
            group.set_limits(memory, 10)
            source, sink = os.pipe()
            wait(child_in(group, held(sink)))
            os.close(sink)
            totals.append(int(os.read(source, 32) or b"0"))
            os.close(source)
        assert totals[0] > 24 * MIB, f"the positive control holds {totals[0]} bytes"
        assert totals[1] < 20 * MIB, f"{totals[1]} bytes held in a group of 16 MiB"


def test_processes_are_bounded_and_the_refusals_counted() -> None:
    with a_tree() as tree:
        group = tree.group("pids")
        group.set_limits(64 * MIB, 5)

        def forks() -> None:
            made = 0
            for _ in range(12):
                try:
                    if os.fork() == 0:
                        time.sleep(30)
                        os._exit(0)
                    made += 1
                except BlockingIOError:
                    pass
            os._exit(made)

        status = wait(child_in(group, forks))
        assert os.WEXITSTATUS(status) == 4, "itself and four children"
        assert group.pids_hits() >= 8 if HERE.kind != "v2" else group.pids_hits() >= 1
        counters = group.usage()
        assert counters.pids_now == 4
        assert counters.pids_peak in (None, 5)
        group.kill()
        assert group.wait_empty(5)
        assert until(lambda: group.usage().pids_now == 0), "they count until they are reaped"


def test_cpu_time_is_counted() -> None:
    with a_tree() as tree:
        group = tree.group("cpu")

        def burn() -> None:
            end = time.process_time() + 0.3
            while time.process_time() < end:
                pass

        assert group.usage().cpu_ns == 0
        assert wait(child_in(group, burn)) == 0
        assert 0.28e9 < group.usage().cpu_ns < 0.9e9


def test_the_memory_peak_can_start_anew() -> None:
    with a_tree() as tree:
        group = tree.group("peak")
        assert wait(child_in(group, allocate(32))) == 0
        before = group.usage().memory_peak
        exact = group.reset_peaks()
        after = group.usage().memory_peak
        assert before is None or before > 30 * MIB
        if exact:
            assert after is not None and after < 16 * MIB
        else:
            assert HERE.kind == "v2" and after is None, "the peak of before is not this one's"
            assert tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 12)
        assert wait(child_in(group, allocate(64))) == 0
        assert before is None or (group.usage().memory_peak or 0) > 60 * MIB


def test_a_reader_in_another_process_does_not_take_an_old_peak_for_a_new_one() -> None:
    with a_tree() as tree:
        group = tree.group("peak")
        assert wait(child_in(group, allocate(32))) == 0
        group.reset_peaks()
        reader = cgroup.Reader(HERE.kind, tree.paths, tree.features)
        seen = reader.group("peak")
        seen.peak_base = group.peak_base
        peak = seen.usage().memory_peak
        assert peak is None or peak < 16 * MIB
        assert wait(child_in(group, allocate(64))) == 0
        assert "memory.peak" not in tree.features or (seen.usage().memory_peak or 0) > 60 * MIB
        seen.close()
        reader.close()


def test_a_frozen_group_stands_still_and_goes_on() -> None:
    with a_tree() as tree:
        group = tree.group("ice")
        source, sink = os.pipe()
        os.set_blocking(source, False)

        def tick() -> None:
            while True:
                os.write(sink, b".")
                time.sleep(0.002)

        pid = child_in(group, tick)
        assert until(lambda: read_some(source) > 0), "it ticks"
        group.freeze()
        assert until(group.frozen)
        read_some(source)
        time.sleep(0.1)
        assert read_some(source) == 0, "frozen"
        group.thaw()
        assert until(lambda: read_some(source) > 0), "it ticks again"
        assert not group.frozen()
        group.freeze()
        assert until(group.frozen)
        group.kill()
        assert group.wait_empty(5), "a frozen group can be killed"
        assert os.WTERMSIG(wait(pid)) == signal.SIGKILL
        os.close(source)
        os.close(sink)


def read_some(fd: int) -> int:
    total = 0
    with suppress(BlockingIOError):
        while True:
            total += len(os.read(fd, 65536))
    return total


def stubborn(count: int, hold: int) -> Callable[[], None]:
    """`count` processes in own sessions with every signal blocked, all holding the pipe `hold`."""

    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for _ in range(count):
            if os.fork() == 0:
                os.setsid()
                os.write(hold, b".")
                time.sleep(60)
                os._exit(0)
        time.sleep(60)

    return work


def killed_completely(group: Group, kill: Callable[[], object]) -> None:
    """Start a hundred stubborn processes in `group`; the end of file on their pipe proves that `kill` got them all."""
    source, sink = os.pipe()
    pid = child_in(group, stubborn(100, sink))
    os.close(sink)
    started = 0
    while started < 100:
        assert select.select([source], [], [], 20)[0], f"only {started} started"
        data = os.read(source, 4096)
        assert data, "they all ended by themselves"
        started += len(data)
    assert group.usage().pids_now == 101
    kill()
    assert group.wait_empty(10)
    assert select.select([source], [], [], 10)[0] and os.read(source, 1) == b"", "somebody still holds the pipe"
    os.close(source)
    assert os.WTERMSIG(wait(pid)) == signal.SIGKILL
    assert not group.populated()


def test_kill_ends_a_hundred_processes_that_ignore_everything() -> None:
    with a_tree() as tree:
        group = tree.group("hundred")
        group.set_limits(256 * MIB, 200)
        killed_completely(group, group.kill)
        group.kill()
        group.remove()
        group.kill()


def test_kill_without_cgroup_kill_ends_them_too() -> None:
    with a_tree() as tree:
        group = tree.group("hundred")
        killed_completely(group, lambda: cgroup.kill_members(without_kill(group)))


def without_kill(group: Group) -> dict[str, str]:
    """The group's paths as on a kernel before 5.14: no `cgroup.kill` is looked for."""
    return {("v2" if key == "unified" else key): path for key, path in group.paths.items()}


def test_wait_empty_gives_up_in_time() -> None:
    with a_tree() as tree:
        group = tree.group("busy")
        pid = child_in(group, lambda: time.sleep(30))
        start = time.monotonic()
        assert not group.wait_empty(0.05)
        assert time.monotonic() - start < 2
        error = raises(KooiError, group.remove)
        assert "busy" in str(error).lower()
        group.kill()
        assert group.wait_empty(5)
        wait(pid)
        group.remove()


def test_attach_of_a_dead_process_says_so() -> None:
    with a_tree() as tree:
        group = tree.group("dead")
        done = subprocess.Popen([sys.executable, "-c", ""])
        done.wait()
        assert "No such process" in str(raises(SetupFailed, lambda: group.attach(done.pid)))


def test_tree_remove_kills_what_is_left_in_it() -> None:
    with a_tree() as tree:
        pids = [child_in(tree.group(f"g{index}"), lambda: time.sleep(60)) for index in range(5)]
        tree.remove()
        assert all(os.WTERMSIG(wait(pid)) == signal.SIGKILL for pid in pids)


def test_many_groups_leave_nothing_open() -> None:
    with a_tree() as tree:
        before = len(os.listdir("/proc/self/fd"))
        for index in range(100):
            group = tree.group(f"n{index}")
            group.set_limits(64 * MIB, 10)
            group.usage(), group.oom_kills(), group.pids_hits(), group.populated()
            group.remove()
        assert len(os.listdir("/proc/self/fd")) == before


def test_an_ordinary_user_is_told_why_not_and_what_to_do() -> None:
    if os.geteuid() != 0:
        return
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresgid(ORDINARY, ORDINARY, ORDINARY)
            os.setgroups([])
            os.setresuid(ORDINARY, ORDINARY, ORDINARY)
            found = layout()
            os.write(sink, f"{found.available}|{found.reason}|{found.fix}".encode())
        finally:
            os._exit(0)
    os.close(sink)
    said = os.read(source, 65536).decode()
    os.close(source)
    wait(pid)
    available, reason, fix = said.split("|")
    assert available == "False", said
    assert "Permission denied" in reason or "not writable" in reason, said
    assert "root" in fix or "systemd-run" in fix, said
