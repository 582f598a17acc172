"""An ordinary user's login session under systemd: the user's service manager gives the spawner a scope of its own.

Runs inside a guest: `tests/guest_vm/run.py --systemd --uid 1000 -- tests/linux/test_cgroup_systemd.py`. It moves the
process it runs in, so it does nothing anywhere else.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from kooi.linux.cgroup import Layout, Tree, layout

IN_GUEST = "KOOI_IN_GUEST_VM" in os.environ and os.geteuid() != 0 and os.path.exists("/run/systemd/system")

try:
    import pytest

    pytestmark = pytest.mark.skipif(not IN_GUEST, reason="needs a user's session in a guest with systemd")
except ImportError:  # in the guest
    pass


def own_group() -> str:
    with open("/proc/self/cgroup") as file:
        return file.read().strip().split("::", 1)[1]


def in_child(work: Callable[[], None]) -> None:
    """Run `work` in a child, which it may move; a failure there is one here."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0, "see the output of the child"


def box_works(found: Layout) -> None:
    tree = Tree.create(found, "kooi-session")
    group = tree.group("box")
    group.set_limits(32 << 20, 8)
    pid = os.fork()
    if pid == 0:
        time.sleep(0.3)
        block = bytearray(128 << 20)
        block[::4096] = b"x" * len(block[::4096])
        os._exit(0)
    group.attach(pid)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert group.oom_kills() == 1
    tree.remove()


def test_a_session_has_no_groups_of_its_own_but_can_be_given_some() -> None:
    def work() -> None:
        before = own_group()
        assert before.startswith("/user.slice/user-1000.slice/session-"), before
        found = layout()
        assert not found.available and found.delegable, found
        assert own_group() == before, "asking moves nobody"

    in_child(work)


def test_the_user_manager_gives_a_scope_and_takes_it_back() -> None:

    def work() -> None:
        found = layout(delegate=True)
        assert found.kind == "v2" and found.available and found.move_self, found
        scope = own_group()
        assert scope.startswith("/user.slice/user-1000.slice/user@1000.service/") and scope.endswith(".scope"), scope
        box_works(found)
        assert own_group() == scope, "stepped up again"
        assert not [entry for entry in os.scandir(found.parents["unified"]) if entry.is_dir()]
        os.write(sink, found.parents["unified"].encode())

    source, sink = os.pipe()
    in_child(work)
    scope = os.read(source, 4096).decode()
    end = time.monotonic() + 10
    while os.path.exists(scope) and time.monotonic() < end:
        time.sleep(0.05)
    assert not os.path.exists(scope), "the scope ends with its process"


def test_a_spawner_below_another_shares_its_scope() -> None:
    def work() -> None:
        found = layout(delegate=True)
        tree = Tree.create(found, "kooi-outer")
        in_child(lambda: box_works(layout(delegate=True)))
        box_works(layout())
        tree.remove()

    in_child(work)
