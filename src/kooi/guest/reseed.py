"""Make a forked interpreter's random state its own.

Every box is a fork of one warm interpreter, and in its own pid namespace it has the same pid as its siblings, so
neither hooks that compare pids nor hooks that only `os.fork` runs can be relied on. Only what is loaded is touched.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping


def reseed() -> None:
    """Reseed every generator of this process whose state a sibling may share. Takes 20 to 60 us."""
    modules: Mapping[str, Any] = sys.modules
    if "random" in modules:
        modules["random"].seed()
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None
    if "uuid" in modules:
        modules["uuid"]._last_timestamp = None
    if "ssl" in modules:
        modules["ssl"].RAND_add(os.urandom(32), 32.0)
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
