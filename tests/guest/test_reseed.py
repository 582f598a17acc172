"""Forks never agree on anything random, not even with equal pids and without fork hooks."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kooi.guest import frames

PROGRAM = """
import ctypes, json, os, sys
sys.path.insert(0, sys.argv[1])
import random, uuid, tempfile, ssl, secrets, multiprocessing.process
try: import numpy, numpy.random
except ImportError: numpy = None
from kooi.guest.reseed import reseed
ssl.RAND_bytes(16); random.random(); tempfile._get_candidate_names()
if numpy: numpy.random.rand()
fork = ctypes.PyDLL(None).fork
unshare = ctypes.CDLL(None).unshare
mode = sys.argv[2]
for _ in range(int(sys.argv[3])):
    reader, writer = os.pipe()
    if mode == 'same pid' and unshare(0x20000000) != 0:
        print('no namespace'); break
    pid = fork()
    if pid == 0:
        try:
            if mode != 'not reseeded': reseed()
            drawn = {
                'pid': os.getpid() if mode == 'same pid' else 0,
                'random': random.random(), 'ssl': ssl.RAND_bytes(16).hex(), 'uuid4': str(uuid.uuid4()),
                'temporary': next(tempfile._get_candidate_names()), 'secret': secrets.token_hex(8),
                'authkey': bytes(multiprocessing.process.current_process().authkey).hex(),
            }
            if numpy: drawn['numpy'] = float(numpy.random.rand())
            os.write(writer, json.dumps(drawn).encode())
        finally:
            os._exit(0)
    print(os.read(reader, 4096).decode(), flush=True)
    os.close(reader); os.close(writer)
    os.waitpid(pid, 0)
"""


def draws(mode: str, count: int) -> list[dict[str, object]]:
    source = Path(frames.__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, str(source), mode, str(count)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.splitlines()
    if shown == ["no namespace"]:
        pytest.skip("no pid namespace here")
    return [json.loads(line) for line in shown]


def test_two_hundred_forks_without_hooks_never_agree() -> None:
    found = draws("reseeded", 200)
    for key in set(found[0]) - {"pid"}:
        assert len({str(each[key]) for each in found}) == 200, key


def test_a_fork_that_is_not_reseeded_does_agree() -> None:
    """The control: without the reseeding the same programs draw the same numbers."""
    found = draws("not reseeded", 5)
    for key in ("random", "authkey", *(["numpy"] if "numpy" in found[0] else [])):
        assert len({str(each[key]) for each in found}) == 1, key


@pytest.mark.skipif(os.geteuid() != 0 or not hasattr(ctypes.CDLL(None), "unshare"), reason="needs a pid namespace")
def test_forks_with_the_same_pid_never_agree() -> None:
    # Each child is process 1 of a namespace of its own. The parent's own later forks need one each.
    found = []
    for _ in range(12):
        found += draws("same pid", 1)
    assert {each["pid"] for each in found} == {1}
    for key in set(found[0]) - {"pid"}:
        assert len({str(each[key]) for each in found}) == len(found), key
