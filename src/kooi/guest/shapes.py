"""What the JSON of the protocol must look like, field by field. Shared by host and guest.

The host checks what the guest says; the agent checks what the host and the interpreters say. A check returns nothing
and raises `FrameError`: an unknown key, a missing one, a wrong type and a value out of range are all violations.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Mapping, Optional

from kooi.guest.frames import FrameError

PAGE = 500
MAX_MIME = 64
_MAX_INT = (1 << 63) - 1
_TYPES = ("file", "dir", "link", "other")

Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return type(value) is str


def _flag(value: Any) -> bool:
    return type(value) is bool


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_INT


def _int(value: Any) -> bool:
    return type(value) is int and -_MAX_INT <= value <= _MAX_INT


def _number(value: Any) -> bool:
    return type(value) is float or _int(value)


def _clean(value: Any) -> bool:
    """Text that can be an argument, a path or a variable of a process."""
    return type(value) is str and "\0" not in value


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _between(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _one_of(*values: str) -> Check:
    return lambda value: type(value) is str and value in values


def _texts(value: Any) -> bool:
    return type(value) is list and all(map(_clean, value))


def _environment(value: Any) -> bool:
    if type(value) is not dict:
        return False
    return all(_clean(each) for each in value.values()) and all(
        key and "=" not in key and "\0" not in key for key in value
    )


def bundle(value: Any) -> bool:
    """Return whether `value` is a MIME bundle."""
    return (
        type(value) is dict
        and len(value) <= MAX_MIME
        and all(0 < len(key) <= 256 for key in value)
        and all(map(_text, value.values()))
    )


_ERROR: Mapping[str, Check] = {"name": _text, "value": _text, "traceback": _text}
_ENTRY: Mapping[str, Check] = {
    "name": _text,
    "path": _text,
    "type": _one_of(*_TYPES),
    "size": _count,
    "mode": _between(0, 0o7777),
    "mtime": _number,
    "target": _optional(_text),
}


def fits(value: Any, fields: Mapping[str, Check]) -> bool:
    """Return whether `value` is an object with exactly `fields`, each of them right."""
    return type(value) is dict and value.keys() == fields.keys() and all(fields[key](value[key]) for key in fields)


def error(value: Any) -> bool:
    """Return whether `value` tells an uncaught exception."""
    return fits(value, _ERROR)


def entry(value: Any) -> bool:
    """Return whether `value` describes a directory entry."""
    if type(value) is dict and "exact" in value:
        if value["exact"] is not False:
            return False
        value = {key: each for key, each in value.items() if key != "exact"}
    return fits(value, _ENTRY)


def _page(value: Any) -> bool:
    return type(value) is list and len(value) <= PAGE and all(map(entry, value))


_HELLO: Mapping[str, Check] = {"protocol": _between(1, 1), "python": _text, "pid": _count}
_CONFIG: Mapping[str, Check] = {"env": _environment, "cwd": _clean}
_CONTROL: Mapping[str, Check] = {"signal": _between(1, 64)}

_ENDED: Mapping[str, Check] = {
    "status": _one_of("ok", "error", "exit", "signal"),
    "exit_code": _optional(_between(0, 255)),
    "signal": _optional(_between(1, 127)),
    "error": _optional(error),
    "left": _optional(_count),
}
_FAILED: Mapping[str, Check] = {"errno": _count, "message": _text}
_ENDS: Mapping[str, Mapping[str, Check]] = {
    "run": _ENDED,
    "exec": _ENDED,
    "file.read": {"size": _count},
    "file.write": {"size": _count},
    "file.list": {"count": _count},
    "file.stat": {"entry": entry},
    "file.mkdir": {},
    "file.remove": {},
    "ping": {},
}
_EVENTS: Mapping[str, Mapping[str, Mapping[str, Check]]] = {
    "run": {"result": {"type": _text, "data": bundle}},
    "file.list": {"entries": {"type": _text, "entries": _page}},
}


def _nothing(value: Any) -> bool:
    return type(value) is dict and not value


_EXEC: Mapping[str, Check] = {"cwd": _optional(_clean), "env": _environment, "stdin": _flag}
_OPENS: Mapping[str, Mapping[str, Check]] = {
    "run": {"context": _text, "code_bytes": _count, "stdin": _flag, "limits": _nothing},
    "file.read": {"path": _clean},
    "file.write": {"path": _clean, "append": _flag, "mode": _optional(_between(0, 0o7777))},
    "file.list": {"path": _clean, "recursive": _flag},
    "file.stat": {"path": _clean},
    "file.mkdir": {"path": _clean, "parents": _flag},
    "file.remove": {"path": _clean, "recursive": _flag},
    "ping": {},
}


def _require(value: Dict[str, Any], fields: Mapping[str, Check], what: str) -> None:
    if value.keys() != fields.keys():
        odd = sorted(value.keys() ^ fields.keys())[0]
        raise FrameError(f"{what}: {odd[:64]!r} is missing or unknown")
    for key, check in fields.items():
        if not check(value[key]):
            raise FrameError(f"{what}: {key!r} is not acceptable")


def check_hello(value: Dict[str, Any]) -> None:
    """Check the guest's HELLO."""
    _require(value, _HELLO, "HELLO")


def check_config(value: Dict[str, Any]) -> None:
    """Check the host's CONFIG."""
    _require(value, _CONFIG, "CONFIG")


def check_control(value: Dict[str, Any]) -> None:
    """Check the host's CONTROL."""
    _require(value, _CONTROL, "CONTROL")


def check_open(value: Dict[str, Any]) -> None:
    """Check the host's OPEN."""
    op = value.get("op")
    if op == "run" and len(value) == 5 and _plain_run(value):
        return
    rest = {key: each for key, each in value.items() if key != "op"}
    if op == "exec":
        if "argv" in rest:
            _require(rest, {"argv": lambda argv: _texts(argv) and len(argv) > 0, **_EXEC}, "OPEN of exec")
        else:
            _require(rest, {"shell": _clean, **_EXEC}, "OPEN of exec")
        return
    fields = _OPENS.get(op) if type(op) is str else None
    if fields is None:
        raise FrameError(f"OPEN of an unknown op {str(op)[:64]!r}")
    _require(rest, fields, f"OPEN of {op}")


def _plain_run(value: Mapping[str, Any]) -> bool:
    """Return whether this is a run as most are; a short way, for a forked agent pays for every function it touches."""
    size = value.get("code_bytes")
    return (
        type(value.get("context")) is str
        and type(size) is int
        and 0 <= size <= _MAX_INT
        and type(value.get("stdin")) is bool
        and value.get("limits") == {}
    )


_RUN = b'{"op":"run","context":"","code_bytes":%d,"stdin":%s,"limits":{}}'
_RUN_AGAIN = re.compile(
    rb'{"op":"run","context":"","code_bytes":(0|[1-9][0-9]{0,17}),"stdin":(true|false),"limits":{}}'
)

#: END of a run or command in the very bytes that most of them have: to know these is shorter than to read them
PLAIN_ENDS: Mapping[bytes, Mapping[str, Any]] = {
    b'{"status":"ok","exit_code":null,"signal":null,"error":null,"left":%s}' % said: {
        "status": "ok",
        "exit_code": None,
        "signal": None,
        "error": None,
        "left": left,
    }
    for said, left in ((b"null", None), (b"0", 0))
}


def plain_run(fields: Mapping[str, Any]) -> Optional[bytes]:
    """Return the JSON of the OPEN of a run in the default context; None for what is not as plain as that."""
    if fields.get("context") != "" or len(fields) != 4 or not _plain_run(fields):
        return None
    return _RUN % (fields["code_bytes"], b"true" if fields["stdin"] else b"false")


def read_plain_run(payload: bytes) -> Optional[Dict[str, Any]]:
    """Return what `plain_run` was given; None for any other JSON."""
    found = _RUN_AGAIN.fullmatch(payload)
    if found is None:
        return None
    return {"op": "run", "context": "", "code_bytes": int(found[1]), "stdin": found[2] == b"true", "limits": {}}


def takes_input(fields: Mapping[str, Any]) -> bool:
    """Return whether the host sends input up to an EOF on a channel opened with `fields`."""
    return fields["op"] == "file.write" or fields.get("stdin") is True


def check_end(op: str, value: Dict[str, Any]) -> None:
    """Check the guest's END of a channel opened for `op`."""
    if op in ("run", "exec"):
        _require(value, _ENDED, f"END of {op}")
        _check_ended(value, op)
    elif "errno" in value and op != "ping":
        _require(value, _FAILED, f"END of {op}")
    else:
        _require(value, _ENDS[op], f"END of {op}")


def _check_ended(value: Dict[str, Any], op: str) -> None:
    status = value["status"]
    told = (value["error"] is not None, value["exit_code"] is not None, value["signal"] is not None)
    if told != (status == "error", status == "exit", status == "signal"):
        raise FrameError(f"END of {op}: the fields do not fit status {status!r}")


def check_event(op: str, value: Dict[str, Any]) -> None:
    """Check the guest's EVENT on a channel opened for `op`."""
    kind = value.get("type")
    fields = _EVENTS.get(op, {}).get(kind) if type(kind) is str else None
    if fields is None:
        raise FrameError(f"EVENT of an unknown type on a channel of {op}")
    _require(value, fields, f"EVENT of {op}")
