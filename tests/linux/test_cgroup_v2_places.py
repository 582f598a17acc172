"""Where a tree may hang under pure v2: at the top, in a delegated group, nowhere. Real kernel; needs root on pure v2.

On other hosts it runs inside a guest: `tests/guest_vm/run.py -- tests/linux/test_cgroup_v2_places.py`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kooi.contract.errors import LevelUnavailable
from kooi.linux.cgroup import Tree, layout, planned

TOP = "/sys/fs/cgroup"
USER = 1000
CLONE_NEWCGROUP = 0x02000000
ON_V2 = os.path.exists(f"{TOP}/cgroup.controllers") and os.geteuid() == 0

try:
    import pytest

    pytestmark = pytest.mark.skipif(not ON_V2, reason="needs root on pure cgroup v2")
except ImportError:  # in the guest
    pass


def put(path: str, value: str) -> None:
    with open(path, "w") as file:
        file.write(value)


def text(path: str) -> str:
    with open(path) as file:
        return file.read()


@contextmanager
def place(name: str, owner: int = 0) -> Iterator[str]:
    """A group `name` at the top, delegated to `owner` as systemd does it; removed afterwards."""
    path = f"{TOP}/{name}"
    put(f"{TOP}/cgroup.subtree_control", "+memory +pids")
    os.mkdir(path)
    if owner:
        os.chown(path, owner, owner)
        for file in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
            os.chown(f"{path}/{file}", owner, owner)
    try:
        yield path
    finally:
        put(f"{path}/cgroup.kill", "1")
        time.sleep(0.2)
        for folder, _, _ in sorted(os.walk(path), reverse=True):
            os.rmdir(folder)


def inside(path: str, uid: int, work: Callable[[], None], namespace: bool = False) -> None:
    """Run `work` in a child that is in the group `path` as user `uid`; a failure there is one here."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            put(f"{path}/cgroup.procs", str(os.getpid()))
            if namespace:
                libc = ctypes.CDLL(None, use_errno=True)
                assert libc.unshare(CLONE_NEWCGROUP | 0x00020000) == 0
                assert libc.mount(None, b"/", None, 0x44000, None) == 0
                assert libc.umount2(TOP.encode(), 2) == 0
                assert libc.mount(b"none", TOP.encode(), b"cgroup2", 0, None) == 0
            if uid:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0, "see the output of the child"


def try_a_box(tree: Tree) -> None:
    """Make a group, run a process in it, and see limits and the end work."""
    group = tree.group("box")
    group.set_limits(64 << 20, 8)
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    group.attach(pid)
    assert group.usage().pids_now == 1
    assert text(group.paths["unified"] + "/memory.max") == f"{64 << 20}\n"
    group.kill()
    assert group.wait_empty(5)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    group.remove()


def test_root_in_a_session_uses_a_slice_at_the_top() -> None:
    def work() -> None:
        helper = os.fork()
        if helper == 0:
            time.sleep(30)
            os._exit(0)
        found = layout()
        assert found.kind == "v2" and found.available, found
        assert found.parents == {"unified": f"{TOP}/kooi.slice"} and not found.move_self
        one, two = Tree.create(found, "kooi-one"), Tree.create(found, "kooi-two")
        assert one.paths == planned(found, "kooi-one") == {"unified": f"{TOP}/kooi.slice/kooi-one"}
        try_a_box(one)
        one.remove()
        assert os.path.isdir(f"{TOP}/kooi.slice"), "the other tree is still there"
        try_a_box(two)
        two.remove()
        assert not os.path.exists(f"{TOP}/kooi.slice")
        os.kill(helper, signal.SIGKILL)
        os.waitpid(helper, 0)

    with place("session") as path:
        inside(path, 0, work)


def test_a_user_alone_in_a_delegated_group_steps_down_and_up_again() -> None:
    with place("delegated", USER) as path:

        def work() -> None:
            found = layout()
            assert found.available and found.move_self, found
            assert found.parents == {"unified": path}
            assert planned(found, "kooi-mine") == {"unified": f"{path}/kooi-mine", "self": f"{path}/kooi-mine-self"}
            tree = Tree.create(found, "kooi-mine")
            assert text("/proc/self/cgroup") == "0::/delegated/kooi-mine-self\n"
            try_a_box(tree)
            again = layout()
            assert again.available and not again.move_self and again.parents == {"unified": path}, again
            second = Tree.create(again, "kooi-second")
            try_a_box(second)
            second.remove()
            tree.remove()
            assert text("/proc/self/cgroup") == "0::/delegated\n"
            assert not [entry for entry in os.scandir(path) if entry.is_dir()]
            assert not text(f"{path}/cgroup.subtree_control").split()

        inside(path, USER, work)


def test_a_user_with_company_in_a_delegated_group_is_told() -> None:
    with place("shared", USER) as path:

        def work() -> None:
            helper = os.fork()
            if helper == 0:
                time.sleep(30)
                os._exit(0)
            found = layout()
            assert not found.available and not found.delegable, found
            assert "1 other processes" in str(found.reason) and "systemd-run --user --scope" in str(found.fix)
            with suppress(LevelUnavailable):
                Tree.create(found, "kooi-none")
                raise AssertionError("made a tree where none can be")
            assert not [entry for entry in os.scandir(path) if entry.is_dir()]
            os.kill(helper, signal.SIGKILL)
            os.waitpid(helper, 0)

        inside(path, USER, work)


def test_a_user_without_a_delegated_group_is_told() -> None:
    def work() -> None:
        found = layout(delegate=True)
        assert not found.available, found
        assert "not writable" in str(found.reason) and "systemd-run --user --scope" in str(found.fix)

    with place("foreign") as path:
        inside(path, USER, work)


def test_root_of_a_container_with_other_processes_at_its_top_is_told() -> None:
    def work() -> None:
        found = layout()
        assert not found.available, found
        assert "other processes are in /sys/fs/cgroup" in str(found.reason), found
        assert "/sys/fs/cgroup/init" in str(found.fix)

    with place("container") as path:
        helper = os.fork()
        if helper == 0:
            time.sleep(30)
            os._exit(0)
        put(f"{path}/cgroup.procs", str(helper))
        inside(path, 0, work, namespace=True)
        os.kill(helper, signal.SIGKILL)
        os.waitpid(helper, 0)


def test_root_alone_in_a_container_steps_down() -> None:
    def work() -> None:
        found = layout()
        assert found.available and found.move_self, found
        tree = Tree.create(found, "kooi-in")
        try_a_box(tree)
        tree.remove()
        assert text("/proc/self/cgroup") == "0::/\n"

    with place("container") as path:
        inside(path, 0, work, namespace=True)


def test_a_tree_that_cannot_be_made_leaves_nothing() -> None:
    found = layout()
    os.makedirs(f"{TOP}/kooi.slice/kooi-taken")
    try:
        Tree.create(found, "kooi-taken")
        raise AssertionError("made a tree over another")
    except Exception as error:
        assert "exists" in str(error), error
    assert os.path.isdir(f"{TOP}/kooi.slice/kooi-taken")
    os.rmdir(f"{TOP}/kooi.slice/kooi-taken")
    os.rmdir(f"{TOP}/kooi.slice")
