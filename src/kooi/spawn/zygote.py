"""Process 1 of a cell: a warm, single-threaded interpreter that only forks blanks. It never runs a tenant's code.

Theory of operation. The zygote imports the image's warm set, freezes the garbage collector's view of it and waits for
the spawner. For each `blank` message (carrying one end of a control socket) it forks into new, empty namespaces, maps
the blank's two ids, and reports the blank by pidfd. The blank waits until the spawner has put it into its control
group, takes the steps that do not depend on any spec, hatches, seals and warms its first interpreter (a fork or, if it
is told so, one that it executes), and waits again. The next message (a plan, and the stream to the host as a
descriptor) makes it a box: it carries out the plan, seals itself and becomes the guest's agent.

A blank never returns into the zygote's stack, closes every descriptor but its own first, and holds nothing of any
tenant: a plan carries no code, no environment and no secret; these come over the stream. Children are reaped by the
kernel (SIGCHLD ignored); who must know of an end holds a pidfd.

Runs inside the cell: standard library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from typing import Any, Dict, Iterator, Mapping, NoReturn, Optional, Sequence, Tuple

from kooi.guest import fresh, start
from kooi.linux import caps, mounts, namespaces, process, seccomp
from kooi.spawn import confine, messages

_FLAGS = {
    "user": namespaces.NEWUSER,
    "pid": namespaces.NEWPID,
    "net": namespaces.NEWNET,
    "ipc": namespaces.NEWIPC,
    "uts": namespaces.NEWUTS,
    "mount": namespaces.NEWNS,
}
_WORDS_BYTES = 2000
_PLAN = b'{"steps":[["rlimits",{"open_files":256,"processes":66}],["capabilities",{"keep":["kill"]}]],"fresh":false}'


def main(control_fd: int) -> NoReturn:
    """Serve the spawner on `control_fd` until it goes away."""
    control = socket.socket(fileno=control_fd)
    config = json.loads(control.recv(messages.MAX_MESSAGE))
    try:
        _enclose(config)
        process.die_with_parent()
        _warm(config)
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            raise RuntimeError("the warm set started %d threads; a zygote must have one" % threads)
    except BaseException as error:
        messages.send(control, {"failed": "%s: %s" % (type(error).__name__, error)})
        os._exit(71)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    messages.send(control, {"ready": True})
    zygote = _Zygote(control, config)
    while True:
        zygote.serve_one()


def _enclose(config: Mapping[str, Any]) -> None:
    """Where no cell is around it, take an id that owns nothing, if one is given, and confine this process itself."""
    if not config["enclose"]:
        return
    uid = config["uid"]
    if uid is not None:
        try:
            caps.drop_bounding()
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        except OSError as error:
            raise RuntimeError("root lacks the capabilities to take another id (%s); run as an ordinary user" % error)
        process.set_dumpable(True)
    caps.set_caps()
    confinement = confine.Confinement()
    confinement.folder = config["homes"]
    confinement.carry_out(config["enclose"])


def _warm(config: Mapping[str, Any]) -> None:
    """Import the warm set as the code will see it, take the first-use costs, and freeze what is there."""
    sys.path[:] = config["sys_path"]
    failed = []
    for name in config["warm"]:
        try:
            importlib.import_module(name)
        except ImportError as error:
            failed.append("%s (%s)" % (name, error))
    if failed:
        raise ImportError("preload: " + ", ".join(failed))
    seccomp.program(*config["restrictions"])
    if config["code"]:
        seccomp.agent_program(*config["restrictions"])
    _rehearse()
    gc.collect()
    gc.freeze()


def _rehearse() -> None:
    """Do once what every run does first, so that forks find the caches filled."""
    try:
        exec(compile("x = 1\nprint(x, file=__import__('io').StringIO())\n1/0", "<rehearsal>", "exec"), {})
    except ZeroDivisionError:
        traceback.format_exc()


class _Zygote:
    def __init__(self, control: socket.socket, config: Mapping[str, Any]) -> None:
        self._control = control
        self._flags = 0
        for name in config["namespaces"]:
            self._flags |= _FLAGS[name]
        self._ids: str = config["ids"]
        self._code_id: int = config["code_id"]
        self._prepare: Sequence[Any] = config["prepare"]
        self._seal: Sequence[Any] = config["seal"]
        self._code: Sequence[Any] = config["code"]
        self._setup = _setup(config["guest"])
        start.prepare(self._setup)

    def serve_one(self) -> None:
        """Handle one message: fork one blank. The spawner's end closing is the end of the cell."""
        data, fds = messages.receive_packet(self._control)
        if not data:
            os._exit(0)
        message = json.loads(data)
        try:
            self._fork_blank(message, fds)
        except OSError as error:
            messages.send(self._control, {"blank": message["blank"], "failed": str(error)})
        finally:
            messages.close_all(fds)

    def _fork_blank(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        pid, pidfd = namespaces.fork_into(self._flags)
        if pid == 0:
            try:
                process.close_all_but((0, 1, 2, *fds))
                if self._code:
                    _open_blank(fds, message["folder"], self._prepare, self._seal, self._code, self._setup)
                else:
                    _blank(fds[0], self._ids, self._prepare, self._seal, self._setup)
            finally:
                os._exit(70)
        try:
            if self._flags & namespaces.NEWUSER:
                self._map(pid, message)
            messages.send(self._control, {"blank": message["blank"]}, fds=[pidfd])
        finally:
            os.close(pidfd)

    def _map(self, pid: int, message: Mapping[str, Any]) -> None:
        if self._ids == "none":
            uid, gid = os.getuid(), os.getgid()
            namespaces.write_maps(pid, [(uid, uid, 1)], [(gid, gid, 1)], deny_setgroups=True)
        elif self._ids == "single":
            own = [(self._code_id, 0, 1)]
            namespaces.write_maps(pid, own, own, deny_setgroups=True)
        else:
            entries = [(0, message["agent"], 1), (self._code_id, message["code"], 1)]
            namespaces.write_maps(pid, entries, entries)


def _setup(guest: Mapping[str, Any]) -> start.Setup:
    """Return what every agent of this cell is told; a box only adds whether its interpreters are new ones."""
    values: Dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in guest.items()}
    return start.Setup(
        # Code with an id of its own loses its capabilities with the agent's id.
        confine_code=caps.set_caps if guest["code_uid"] is None else None,
        # The agent's own program for new interpreters, read while our files are in sight.
        program=fresh.program(),
        # The C library's fork with its own hooks, without Python's; the interpreter stays locked across it.
        fork=ctypes.PyDLL(None).fork,
        **values,
    )


def _blank(blank_fd: int, ids: str, prepare: Sequence[Any], seal: Sequence[Any], setup: start.Setup) -> None:
    """Be a blank: wait for the control group, prepare what no spec changes, wait for a plan, become a box."""
    control, word = _first_word(blank_fd)
    if word not in (messages.GO, messages.GO_FRESH, messages.GO_NOW):
        return
    confinement = confine.Confinement()
    with _last_words(control):
        if ids != "none":
            # After the control group: the new namespace's root is the group that this process is in now.
            namespaces.unshare(namespaces.NEWCGROUP)
            if ids != "single":
                os.setgroups([])
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
            socket.sethostname("kooi")
        process.set_dumpable(False)
        confinement.carry_out(prepare)
        ahead: Optional[start.Ahead] = None
        if word != messages.GO_NOW:
            kind = setup._replace(fresh=word == messages.GO_FRESH)
            ahead = start.hatch_ahead(kind, lambda: _seal_code(confinement, seal, setup))
        _become_box(control, confinement, seal, setup, ahead)


def _open_blank(
    fds: Sequence[int],
    folder: str,
    prepare: Sequence[Any],
    seal: Sequence[Any],
    code: Sequence[Any],
    setup: start.Setup,
) -> None:
    """Be a blank without namespaces: a warden stays behind, and every process of the code confines itself by `code`."""
    control, word = _first_word(fds[0])
    if word not in (messages.GO, messages.GO_FRESH, messages.GO_NOW):
        return
    confinement = confine.Confinement()
    confinement.folder, confinement.line = folder, fds[1]
    with _last_words(control):
        process.set_dumpable(False)
        confinement.carry_out(prepare)
        home = folder + "/home"
        agent = start.prepare(setup)
        agent.nursery.configure({"HOME": home, "TMPDIR": folder + "/tmp", "KOOI_DATA": folder + "/data"}, home)

        def bind() -> None:
            caps.set_caps()
            confinement.carry_out(code)

        setup = setup._replace(home=home, alias=setup.home, confine_code=bind)
        # Always ahead: later the agent may not open what it counts its children by.
        ahead = start.hatch_ahead(setup._replace(fresh=word == messages.GO_FRESH), bind)
        _become_box(control, confinement, seal, setup, ahead)


def _first_word(blank_fd: int) -> Tuple[socket.socket, bytes]:
    """Leave the zygote's signals and session, and wait for what the spawner says once the control group is there."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    control = socket.socket(fileno=blank_fd)
    return control, messages.receive_packet(control)[0]


@contextlib.contextmanager
def _last_words(control: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        control.send(str(error).encode("utf-8", "backslashreplace")[:_WORDS_BYTES] or b"no reason given")


def _become_box(
    control: socket.socket,
    confinement: confine.Confinement,
    seal: Sequence[Any],
    setup: start.Setup,
    ahead: Optional[start.Ahead],
) -> None:
    """Wait for a plan, carry it out, and serve; returns where no plan comes."""
    if ahead is not None:
        confinement.companion = ahead.interpreter
        _rehearse_plan(confinement)
    data, fds = messages.receive_packet(control)
    if not data:
        return
    plan = json.loads(data)
    setup = setup._replace(fresh=plan["fresh"])
    if ahead is not None and plan["fresh"]:
        # Before all else: it gets ready while we confine ourselves, and is sealed already.
        start.renew(ahead)
    confinement.carry_out(plan["steps"])
    confinement.carry_out(seal)
    control.close()
    start.serve(fds[0], setup, ahead)


def _rehearse_plan(confinement: confine.Confinement) -> None:
    """Take the page faults of a box's own steps: read a plan, and do of each kind of step what changes nothing."""
    json.loads(_PLAN)
    confinement.carry_out([["rlimits", {}]])
    with contextlib.suppress(OSError):
        own = caps.read()
        caps.set_caps(own["permitted"], own["effective"], own["inheritable"])
    with contextlib.suppress(OSError):
        mounts.mount("kooi", "/nowhere", None, mounts.REMOUNT, "size=%d,nr_inodes=%d" % (1, 1))


def _seal_code(confinement: confine.Confinement, seal: Sequence[Any], setup: start.Setup) -> None:
    """Confine the first interpreter for good; what is still open for its agent is closed for it."""
    if setup.confine_code is not None:
        setup.confine_code()
    confinement.carry_out(seal)
