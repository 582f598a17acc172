"""Turn a hostile program into text that runs inside, and read back the marks it leaves.

A mark is a line `name=value#digest`. The digest is computed by the program while it runs, from a nonce that is new for
every run, so an echo of the source, a traceback or a canned answer can never look like a mark.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

# Written for Python 3.8: it runs inside. `name_me` makes the program findable from outside by its command name.
PREAMBLE = """\
import hashlib as _hashlib, json as _json, os, sys, time, errno
P = _json.loads({params!r})
def mark(name, value=""):
    text = "%s|%s|%s" % (P["nonce"], name, value)
    digest = _hashlib.sha256(text.encode()).hexdigest()[:16]
    os.write(1, ("%s=%s#%s\\n" % (name, value, digest)).encode())
def code_of(error):
    return errno.errorcode.get(getattr(error, "errno", None), type(error).__name__)
def name_me():
    try:
        with open("/proc/self/comm", "w") as f:
            f.write(P["tag"])
    except OSError:
        try:
            import ctypes
            ctypes.CDLL(None).prctl(15, P["tag"].encode(), 0, 0, 0)
        except Exception:
            pass
"""
_MARK = re.compile(rb"^([a-z_0-9]+)=([^#\n]*)#([0-9a-f]{16})\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A program made ready for one run: its text, its nonce, and the command name that it takes."""

    text: str
    nonce: str
    tag: str
    params: Mapping[str, object] = field(default_factory=dict)


def prepare(source: str, params: Mapping[str, object], tag: str | None = None) -> Prepared:
    """Return `source` with its parameters, a new nonce and a new command name in front of it."""
    nonce = secrets.token_hex(16)
    tag = tag or "k" + secrets.token_hex(5)
    full = {**params, "nonce": nonce, "tag": tag}
    return Prepared(PREAMBLE.format(params=json.dumps(full)) + source, nonce, tag, full)


def digest_of(nonce: str, name: str, value: str) -> str:
    """Return the digest that a mark must carry."""
    return hashlib.sha256(f"{nonce}|{name}|{value}".encode()).hexdigest()[:16]


def read_marks(output: bytes, nonce: str) -> dict[str, tuple[str, ...]]:
    """Return the genuine marks in `output`, by name, in order; lines with a wrong digest are dropped."""
    found: dict[str, tuple[str, ...]] = {}
    for match in _MARK.finditer(output):
        name, value = match[1].decode(), match[2].decode("utf-8", "replace")
        if match[3].decode() == digest_of(nonce, name, value):
            found[name] = (*found.get(name, ()), value)
    return found
