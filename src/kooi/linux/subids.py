"""The subordinate ids of this process's user: what /etc/subuid and /etc/subgid give to it (subuid(5))."""

from __future__ import annotations

import os
import pwd
from typing import List, Tuple


def ranges(path: str) -> List[Tuple[int, int]]:
    """Return (first, count) of every range that a subuid or subgid file gives to this user."""
    mine = {str(os.geteuid())}
    try:
        mine.add(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:
        pass
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        parts = line.split(":")
        if len(parts) == 3 and parts[0] in mine and parts[1].isdigit() and parts[2].isdigit():
            found.append((int(parts[1]), int(parts[2])))
    return found


def first(path: str) -> Tuple[int, int]:
    """Return (first, count) of the range that is used; (0, 0) for none."""
    return (ranges(path) or [(0, 0)])[0]
