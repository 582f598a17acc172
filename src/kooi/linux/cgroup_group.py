"""One box's control group: what v1, hybrid and v2 have in common.

A group is one directory per hierarchy, all of the same name, below the directories of its tree. Under v2 that is one
directory; on a hybrid host the limits are in v1 directories and `cgroup.kill` and `cgroup.freeze` in the unified one.
Value files are opened at their first reading and kept: a later reading is one pread.
"""

from __future__ import annotations

import errno
import os
import select
import time
from typing import Mapping

from kooi.contract.errors import KooiError, SetupFailed
from kooi.linux.cgroup_files import Counters, check_name, field, number, read_fd, write
from kooi.linux.cgroup_kill import kill_members, members, remove_group

MODE = 0o755
_PAUSE = 0.0005
_SHORT_BYTES = 448  # with its head it is memory that Python has at hand; the lines we want come early


class Group:
    """A control group of one box. Made by `Tree.group`; not thread-safe.

    `parents` maps each controller to an open directory of the tree, `roots` the same to its path. `peak_base` is the
    memory peak of earlier users of the group that a reader may still see (0 where the kernel forgets it); a peak not
    above it is reported as `None`. `reset_peaks` sets it; hand it on to readers in other processes.
    """

    peak_base: int = 0

    def __init__(
        self,
        name: str,
        parents: Mapping[str, int],
        roots: Mapping[str, str],
        features: frozenset[str],
        make: bool = True,
    ):
        # A group that is only read is one of others, who name theirs as they like.
        self.name = check_name(name) if make else name
        self._parents = parents
        self._features = features
        self._fds: dict[str, int] = {}
        self._values: dict[str, tuple[bytes, int]] = {}
        self.paths: dict[str, str] = {key: f"{root}/{name}" for key, root in roots.items()}
        made: list[int] = []
        try:
            for fd in parents.values() if make else ():
                os.mkdir(name, MODE, dir_fd=fd)
                made.append(fd)
        except OSError as error:
            for fd in made:
                os.rmdir(name, dir_fd=fd)
            raise SetupFailed(f"cannot make the control group {name}: {error.strerror}") from error

    # What v1 and v2 do differently.

    def set_limits(self, memory_bytes: int | None, processes: int | None) -> None:
        """Bound memory (bytes, no swap on top) and tasks; `None` means no limit. May be raised and lowered later."""
        raise NotImplementedError

    def usage(self) -> Counters:
        """Return what the group used since it was made (memory peak: since `reset_peaks`)."""
        raise NotImplementedError

    def cpu_ns(self) -> int:
        """Return the CPU time alone."""
        raise NotImplementedError

    def memory_now(self) -> int:
        """Return how many bytes are charged to the group now."""
        raise NotImplementedError

    def oom_kills(self) -> int:
        """Return how many processes of the group the kernel has killed for want of memory."""
        raise NotImplementedError

    def pids_hits(self) -> int:
        """Return how many forks the task limit has refused."""
        raise NotImplementedError

    def reset_peaks(self) -> bool:
        """Start the memory peak anew at what is used now. The task peak stays.

        Returns whether the kernel can (v1, v2 since Linux 6.12); where not, only a peak above the old one is known.
        """
        raise NotImplementedError

    # What they share.

    def attach(self, pid: int) -> None:
        """Move process `pid` in, in all hierarchies in one go.

        Can take 15 ms after a quiet moment (the kernel waits for a grace period, once for all of them): never on a
        critical path. On failure the process may be half in: kill it.
        """
        value = b"%d" % pid
        for fd in self._parents.values():
            write(self.name + "/cgroup.procs", value, fd)

    def freeze(self) -> None:
        """Stop every process in the group. Returns when the kernel has begun; see `frozen`."""
        self._set_frozen(True)

    def thaw(self) -> None:
        """Undo `freeze`."""
        self._set_frozen(False)

    def frozen(self) -> bool:
        """Return whether every process in the group stands still."""
        if "cgroup.freeze" in self._features:
            return b"\nfrozen 1\n" in b"\n" + self._read("unified", "cgroup.events")
        return self._read("freezer", "freezer.state") == b"FROZEN\n"

    def strike(self) -> bool:
        """Kill every process of the group at one stroke, without waiting; return whether the kernel can."""
        if "cgroup.kill" not in self._features:
            return False
        write(self.name + "/cgroup.kill", b"1", self._parents["unified"])
        return True

    def kill(self) -> None:
        """Send SIGKILL to everything in the group, frozen or not; see `wait_empty`. Safe twice.

        Without `cgroup.kill` the members are frozen and killed one by one until none is left (at most 5 s).
        """
        try:
            if self.strike():
                return
        except SetupFailed as error:
            if not _is_gone(error.__cause__):
                raise
            return
        if not kill_members(self.paths):
            raise KooiError(f"processes in the control group {self.name} do not die")

    def populated(self) -> bool:
        """Return whether a living process is in the group."""
        if "unified" not in self._parents:
            return bool(members(self.paths.values()))
        data = self._read("unified", "cgroup.events")
        if b"populated 0\n" in data:
            return False
        if b"populated 1\n" in data:
            return True
        raise KooiError(f"the kernel's cgroup.events does not say populated: {data[:80]!r}")

    def events_fd(self) -> int | None:
        """Return a descriptor that polls POLLPRI when `populated` or `frozen` changes; `None` on plain v1.

        It belongs to the group and is closed by `remove`.
        """
        return self._fd("unified", "cgroup.events") if "unified" in self._parents else None

    def wait_empty(self, seconds: float) -> bool:
        """Wait until nothing in the group lives, at most `seconds`; return whether that is so."""
        end = time.monotonic() + seconds
        fd = self.events_fd()
        poll = select.poll()
        if fd is not None:
            poll.register(fd, select.POLLPRI)
        while self.populated():
            left = end - time.monotonic()
            if left <= 0:
                return False
            if fd is None:
                time.sleep(_PAUSE)
            else:
                poll.poll(max(1, int(left * 1000)))
        return True

    def remove(self) -> None:
        """Remove the group in every hierarchy. A busy one is retried for 200 ms, then `KooiError`. Safe twice."""
        self.close()
        end = time.monotonic() + 0.2
        for key, fd in self._parents.items():
            try:
                os.rmdir(self.name, dir_fd=fd)
            except FileNotFoundError:
                continue
            except OSError:
                remove_group(self.paths[key], end)

    def close(self) -> None:
        """Close the kept descriptors; the group stays."""
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)

    def _set_frozen(self, on: bool) -> None:
        if "cgroup.freeze" in self._features:
            write(self.name + "/cgroup.freeze", b"1" if on else b"0", self._parents["unified"])
        else:
            write(self.name + "/freezer.state", b"FROZEN" if on else b"THAWED", self._parents["freezer"])

    def _write(self, key: str, file: str, value: int | None, none: bytes) -> None:
        write(f"{self.name}/{file}", none if value is None else b"%d" % value, self._parents[key])

    def _fd(self, key: str, file: str, flags: int = os.O_RDONLY) -> int:
        fd = self._fds.get(file)
        if fd is None:
            fd = self._fds[file] = os.open(f"{self.name}/{file}", flags | os.O_CLOEXEC, dir_fd=self._parents[key])
        return fd

    def _value(self, key: str, file: str, name: str | None = None) -> int:
        """Return the number in a file, or the one that its line `name` holds. Most files say what they said before."""
        fd = self._fds.get(file)
        data = os.pread(self._fd(key, file) if fd is None else fd, _SHORT_BYTES, 0)
        known = self._values.get(file)
        if known is not None and known[0] == data:
            return known[1]
        value = number(data, file) if name is None else field(data, name, file)
        self._values[file] = data, value
        return value

    def _read(self, key: str, file: str) -> bytes:
        fd = self._fds.get(file)
        return read_fd(self._fd(key, file) if fd is None else fd)


def _is_gone(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENODEV)
