"""File work inside the box, done by a helper process with the code's uid.

Theory of operation: paths belong to the code, which may plant links, pipes and devices and may change the tree at any
moment. So the agent resolves none: this process does, with no more rights than the code has, without waiting for
anything (`O_NONBLOCK`), and following no link where it writes or walks. It opens a file and passes the descriptor to
the agent, which moves the bytes. Requests and answers are JSON objects behind a 4-byte length, answered in order. A
tree is walked with two descriptors however deep it is, stepping up by `..` and checking that this led back.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from kooi.guest.shapes import PAGE

_OPEN = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_DIRECTORY = _OPEN | os.O_RDONLY | os.O_DIRECTORY
_PAGE_BYTES = 96 * 1024
_MOST_BYTES = 128 * 1024
_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def serve(fd: int, home: str) -> None:
    """Answer requests on the socket `fd` until the agent goes; relative paths start at `home`. Runs in the helper."""
    control = socket.socket(fileno=fd)
    control.setblocking(True)
    try:
        os.chdir(home)
    except OSError:
        os.chdir("/")
    proc_device = _proc_device()
    while True:
        head = _receive(control, 4)
        request = json.loads(_receive(control, int.from_bytes(head, "big")))
        fd = -1
        try:
            fd, answer = _answer(control, request, proc_device)
        except OSError as error:
            answer = {"errno": error.errno or errno.EIO, "message": _message(error)}
        except (MemoryError, RecursionError, ValueError) as error:
            answer = {"errno": errno.EINVAL, "message": str(error) or type(error).__name__}
        _send(control, _encode(answer).encode("utf-8", "backslashreplace"), fd)
        if fd >= 0:
            os.close(fd)


def _proc_device() -> int:
    try:
        return os.stat("/proc").st_dev
    except OSError:
        return -1


def _message(error: OSError) -> str:
    name = error.filename
    shown = _text(name if isinstance(name, bytes) else os.fsencode(name))[0] if isinstance(name, (str, bytes)) else ""
    text = error.strerror or str(error)
    return f"{text}: {shown[:4096]}" if shown else text


def _receive(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = control.recv(size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def _send(control: socket.socket, payload: bytes, fd: int = -1) -> None:
    data = len(payload).to_bytes(4, "big") + payload
    if fd >= 0:
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, sys.byteorder))]
        data = data[control.sendmsg([data], passed) :]
    control.sendall(data)


def _answer(control: socket.socket, request: Mapping[str, Any], proc_device: int) -> Tuple[int, Dict[str, Any]]:
    op, path = request["op"], os.fsencode(request["path"])
    if op == "file.read":
        return _open_to_read(path), {}
    if op == "file.write":
        return _open_to_write(path, request["append"], request["mode"], proc_device), {}
    if op == "file.list":
        return -1, {"count": _list(path, request["recursive"], control)}
    if op == "file.stat":
        return -1, {"entry": _entry(b"", path, os.lstat(path), os.path.basename(path.rstrip(b"/")) or path)}
    if op == "file.mkdir":
        _make_directory(path, request["parents"])
    else:
        _remove(path, request["recursive"])
    return -1, {}


def _regular(fd: int) -> os.stat_result:
    """Return the status of an open regular file; close anything else and raise `OSError`."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
        raise OSError(number, "not a regular file")
    return status


def _open_to_read(path: bytes) -> int:
    fd = os.open(path, _OPEN | os.O_RDONLY)
    _regular(fd)
    return fd


def _open_to_write(path: bytes, append: bool, mode: Optional[int], proc_device: int) -> int:
    flags = _OPEN | os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if append else 0)
    fd = os.open(path, flags, 0o666)
    status = _regular(fd)
    try:
        if status.st_dev == proc_device:
            raise OSError(errno.EACCES, "files of /proc are not written from outside")
        if not append:
            os.ftruncate(fd, 0)
        if mode is not None:
            os.fchmod(fd, mode)
    except OSError:
        os.close(fd)
        raise
    return fd


def _make_directory(path: bytes, parents: bool) -> None:
    if not parents:
        os.mkdir(path)
        return
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path.rstrip(b"/"))
    for each in reversed(missing):
        try:
            os.mkdir(each)
        except FileExistsError as error:
            if not os.path.isdir(each):
                raise error if each is missing[0] else NotADirectoryError(errno.ENOTDIR, "Not a directory", each)


class _Walk:
    """Depth first through a tree. `names` is the way from its root to where `fd` is."""

    def __init__(self, path: bytes, follow: bool) -> None:
        self.fd = os.open(path, _DIRECTORY | (0 if follow else os.O_NOFOLLOW))
        self.names: List[bytes] = []
        self._above: List[Tuple[int, int]] = []

    def enter(self, name: bytes) -> None:
        below = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd)
        self._above.append(_identity(self.fd))
        self.names.append(name)
        os.close(self.fd)
        self.fd = below

    def leave(self) -> bytes:
        above = os.open(b"..", _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd)
        os.close(self.fd)
        self.fd = above
        if _identity(above) != self._above.pop():
            raise OSError(errno.ESTALE, "the directory was moved meanwhile")
        return self.names.pop()

    def entries(self) -> Iterator[Tuple[bytes, bool]]:
        """Yield name and whether it is a directory of what is here."""
        with os.scandir(self.fd) as scan:
            for each in scan:
                yield os.fsencode(each.name), each.is_dir(follow_symlinks=False)


def _identity(fd: int) -> Tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _remove(path: bytes, recursive: bool) -> None:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    if recursive:
        walk = _Walk(path, follow=False)
        try:
            _empty(walk)
        finally:
            os.close(walk.fd)
    os.rmdir(path)


def _empty(walk: _Walk) -> None:
    """Remove everything below where `walk` stands."""
    pending = [_unlink_files(walk)]
    while True:
        if pending[-1]:
            walk.enter(pending[-1].pop())
            pending.append(_unlink_files(walk))
        elif len(pending) > 1:
            pending.pop()
            os.rmdir(walk.leave(), dir_fd=walk.fd)
        else:
            return


def _unlink_files(walk: _Walk) -> List[bytes]:
    """Unlink what is no directory; return the directories."""
    found = list(walk.entries())
    for name, is_directory in found:
        if not is_directory:
            os.unlink(name, dir_fd=walk.fd)
    return [name for name, is_directory in found if is_directory]


class _Pages:
    """Sends entries in pages as they are found."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._page: List[str] = []
        self._bytes = 0
        self.count = 0

    def add(self, entry: Mapping[str, Any]) -> None:
        text = _encode(entry)
        size = len(text.encode())
        if size > _MOST_BYTES:
            raise OSError(errno.ENAMETOOLONG, "a path of the listing is too long")
        if self._bytes + size > _PAGE_BYTES or len(self._page) == PAGE:
            self.flush()
        self._page.append(text)
        self._bytes += size + 1
        self.count += 1

    def flush(self) -> None:
        if self._page:
            _send(self._control, ('{"type":"entries","entries":[' + ",".join(self._page) + "]}").encode())
            self._page, self._bytes = [], 0


def _list(path: bytes, recursive: bool, control: socket.socket) -> int:
    pages = _Pages(control)
    walk = _Walk(path, follow=True)
    root = b"" if path in (b".", b"./") else path if path.endswith(b"/") else path + b"/"
    pending = [_list_here(walk, root, pages)]
    while pending:
        if not pending[-1] or not recursive:
            pending.pop()
            if pending:
                walk.leave()
            continue
        try:
            walk.enter(pending[-1].pop())
        except PermissionError:
            continue
        pending.append(_list_here(walk, root + b"/".join(walk.names) + b"/", pages))
    os.close(walk.fd)
    pages.flush()
    return pages.count


def _list_here(walk: _Walk, prefix: bytes, pages: _Pages) -> List[bytes]:
    """Add what is here, by name; return the directories, last one first."""
    found = sorted(walk.entries())
    for name, _ in found:
        try:
            status = os.lstat(name, dir_fd=walk.fd)
            pages.add(_entry(prefix, name, status, name, walk.fd))
        except FileNotFoundError:
            continue
    return [name for name, is_directory in reversed(found) if is_directory]


def _text(raw: bytes) -> Tuple[str, bool]:
    """Return bytes as text, and whether that was exact."""
    try:
        return raw.decode("utf-8"), True
    except UnicodeDecodeError:
        return raw.decode("utf-8", "backslashreplace"), False


def _entry(prefix: bytes, path: bytes, status: os.stat_result, name: bytes, at: Optional[int] = None) -> Dict[str, Any]:
    kind = _TYPES.get(stat.S_IFMT(status.st_mode), "other")
    shown, exact = _text(name)
    target = None
    if kind == "link":
        target, exact_target = _text(os.readlink(path, dir_fd=at))
        exact = exact and exact_target
    entry = {
        "name": shown,
        "path": _text(prefix + path)[0],
        "type": kind,
        "size": status.st_size,
        "mode": stat.S_IMODE(status.st_mode),
        "mtime": status.st_mtime,
        "target": target,
    }
    return entry if exact and _text(prefix + path)[1] else {**entry, "exact": False}
