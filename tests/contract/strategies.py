"""Hypothesis strategies for every value of the vocabulary."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kooi.contract.backend import BoxEvent, Posture, ProcessPosture
from kooi.contract.limits import RANGES, Limits
from kooi.contract.policy import CLAUSES, LAYERS, Dataset, Policy
from kooi.contract.result import (
    GRADES,
    STATUSES,
    Clause,
    Enforcement,
    ErrorInfo,
    Result,
    RichItem,
    RunEvent,
    Usage,
)
from kooi.contract.spec import Spec

LEVELS = ("process", "confined", "jail", "container", "gvisor", "wasm", "microvm", "e2b", "plugin")
HOSTS = ("a.com", "b.com", "x.a.com", "y.x.a.com", "xa.com", "10.0.0.1", "[2001:db8::1]")

# Surrogates alone are no Unicode, and refused everywhere.
characters = st.characters(codec="utf-8")
text = st.text(characters, max_size=20)
_plain = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


def limit(name: str) -> st.SearchStrategy[Any]:
    allowed = RANGES[name]
    if allowed.whole:
        numbers: st.SearchStrategy[Any] = st.integers(int(allowed.low), allowed.high)
    else:
        numbers = st.one_of(st.floats(allowed.low, allowed.high), st.integers(1, allowed.high))
    return st.one_of(st.none(), numbers)


limits = st.builds(Limits, **{name: limit(name) for name in RANGES})
rules = st.builds(
    lambda below, host, port: ("*." if below and host[0].isalpha() else "") + host + port,
    st.booleans(),
    st.sampled_from(HOSTS),
    st.sampled_from(["", ":443", ":80"]),
)
datasets = st.builds(
    Dataset,
    name=st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,10}", fullmatch=True),
    source=st.builds(lambda part: f"/data/{part}x", _plain),
)
envs = st.dictionaries(_plain.map(lambda name: name.replace("=", "_")), text.map(lambda v: v.replace("\0", "")))
_required = st.lists(st.sampled_from(LAYERS), max_size=2)
_waived = st.lists(st.sampled_from([name for name in CLAUSES if name not in LAYERS]), max_size=4)
policies = st.builds(
    Policy,
    datasets=st.lists(datasets, max_size=4, unique_by=lambda one: one.name),
    network=st.lists(rules, max_size=4),
    env=envs,
    waive=_waived,
    require=_required,
    strict=st.booleans(),
)
modules = st.sampled_from(["numpy", "pandas", "os.path", "_x1"])
preloads = st.one_of(st.none(), st.lists(modules, max_size=3))
images = st.one_of(st.none(), _plain)
specs = st.builds(
    Spec,
    level=st.sampled_from(LEVELS),
    image=images,
    preload=preloads,
    policy=policies,
    limits=limits,
    fresh=st.booleans(),
)

counts = st.integers(0, 2**63)
_seconds = st.one_of(st.none(), st.floats(0, 1e9))
_some_count = st.one_of(st.none(), counts)
strengths = st.sampled_from(["none", "kernel-shared", "emulated", "kernel-own", "machine", "remote"])
clauses = st.builds(Clause, name=text, mechanism=text, grade=st.sampled_from(GRADES), overshoot=st.none() | text)
enforcements = st.builds(
    Enforcement,
    level=text,
    strength=strengths,
    clauses=st.lists(clauses, max_size=3).map(tuple),
    waivers=st.lists(text, max_size=3).map(tuple),
)
usages = st.builds(
    Usage,
    wall_seconds=_seconds,
    cpu_seconds=_seconds,
    memory_peak_bytes=_some_count,
    processes_peak=_some_count,
    processes_now=_some_count,
    shared=st.booleans(),
)
items = st.builds(RichItem, data=st.dictionaries(text, text, max_size=3))
errors = st.builds(ErrorInfo, name=text, value=text, traceback=text)
results = st.builds(
    Result,
    status=st.sampled_from(STATUSES),
    exit_code=st.none() | st.integers(-255, 255),
    signal=st.none() | st.integers(1, 64),
    stdout_bytes=st.binary(max_size=200),
    stderr_bytes=st.binary(max_size=200),
    stdout_total_bytes=counts,
    stderr_total_bytes=counts,
    results=st.lists(items, max_size=3).map(tuple),
    error=st.none() | errors,
    events=st.lists(text, max_size=3).map(tuple),
    usage=usages,
    level=text,
    strength=strengths,
    policy_digest=text,
    enforcement=enforcements,
    decided_by=st.sampled_from(["host", "agent", "code"]),
    files_changed=st.none() | st.lists(text, max_size=3).map(tuple),
)
run_events = st.builds(
    RunEvent,
    kind=st.sampled_from(["stdout", "stderr", "result", "error", "notice"]),
    data=st.binary(max_size=100),
    item=st.none() | items,
    error=st.none() | errors,
)
box_events = st.builds(
    BoxEvent,
    kind=st.sampled_from(["exited", "oom", "pids_limit", "failed"]),
    count=counts,
    detail=text,
    usage=st.none() | usages,
)
_ids = st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple)
process_postures = st.builds(
    ProcessPosture,
    role=st.sampled_from(["agent", "code"]),
    uids=_ids,
    gids=_ids,
    groups=_ids,
    capabilities=st.dictionaries(text, st.integers(0, 2**64 - 1), max_size=5),
    no_new_privs=st.booleans(),
    seccomp=st.integers(0, 2),
    namespaces=st.dictionaries(text, st.sampled_from(["own", "inherited"]), max_size=3),
    fds=st.lists(text, max_size=3).map(tuple),
    dumpable=st.booleans(),
    threads_uniform=st.booleans(),
)
postures = st.builds(
    Posture,
    processes=st.lists(process_postures, max_size=3).map(tuple),
    mounts=st.lists(text, max_size=3).map(tuple),
    landlock_abi=st.integers(0, 9),
)
