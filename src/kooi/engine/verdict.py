"""How a run ended: a pure function from what the host saw and what the guest said to a status.

The host's own facts come first. In order: killed, timeout, cpu_limit, oom, a watched limit for which the host killed
the box, a violated protocol, output_limit, lost, pids_limit; then the guest's word: disk_limit, signal, exit, and the
interpreter's `ok` or `error`. A limit that the code met and survived changes nothing here; it becomes an event of the
result.
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kooi.contract.result import DecidedBy, ErrorInfo, Status

_ERRNO = re.compile(r"\[Errno ([0-9]{1,4})\]")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Told(NamedTuple):
    """The guest's END; its shape was checked where it arrived."""

    status: str
    exit_code: int | None
    signal: int | None
    error: ErrorInfo | None
    left: int


@dataclass(slots=True)
class Ending:
    """Everything known about how one run ended.

    `condemned` holds the reasons for which the host killed it; `oom` and `pids` say how often those limits were met
    since it began; `struck` names the watched limit for which the whole box was killed; `file_size` says that the disk
    limit is held by a limit on the size of one file; `command` that it was a command, of which even `error` (it could
    not be started) is the agent's word.
    """

    told: Told | None = None
    condemned: set[str] = field(default_factory=set)
    violated: bool = False
    oom: int = 0
    pids: int = 0
    struck: Status | None = None
    file_size: bool = False
    command: bool = False


def told(end: Mapping[str, Any]) -> Told:
    """Return the guest's END of a run or command."""
    error = end["error"]
    info = None if error is None else ErrorInfo(error["name"], error["value"], error["traceback"])
    return Told(end["status"], end["exit_code"], end["signal"], info, end["left"] or 0)


def verdict(ending: Ending) -> tuple[Status, DecidedBy]:
    """Return the status and who decided it."""
    condemned, word = ending.condemned, ending.told
    badly = word is None or word.status in ("error", "signal") or word.exit_code not in (None, 0)
    if "killed" in condemned:
        return "killed", "host"
    if "timeout" in condemned:
        return "timeout", "host"
    if "cpu_limit" in condemned:
        return "cpu_limit", "host"
    if ending.oom > 0 and badly:
        return "oom", "host"
    if ending.struck is not None and badly:
        return ending.struck, "host"
    if ending.violated:
        return "sandbox_error", "host"
    if "output_limit" in condemned:
        return "output_limit", "host"
    if word is None:
        return "lost", "host"
    if ending.pids > 0 and badly:
        return "pids_limit", "host"
    return _by_word(word, ending)


def _by_word(word: Told, ending: Ending) -> tuple[Status, DecidedBy]:
    if word.status == "signal":
        return ("disk_limit" if ending.file_size and word.signal == signal.SIGXFSZ else "signal"), "agent"
    if word.status == "exit":
        return ("ok" if word.exit_code == 0 else "error"), "agent"
    if word.status == "ok":
        return "ok", "code"
    if ending.command:
        return "error", "agent"
    return ("disk_limit" if _disk_full(word.error, ending.file_size) else "error"), "code"


def _disk_full(error: ErrorInfo | None, file_size: bool) -> bool:
    """Whether an uncaught exception is the operating system's word that the disk limit is met."""
    if error is None or error.name != "OSError":
        return False
    match = _ERRNO.match(error.value)
    number = int(match[1]) if match else 0
    return number in _FULL or (file_size and number == errno.EFBIG)
