"""The blocking classes offer what the async ones do: the same names, signatures and documentation."""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from typing import Any

import pytest

from kooi import blocking, sandbox
from kooi.contract.errors import Unsupported
from kooi.engine import commands, filesystem, streaming

PAIRS = [
    (blocking.Sandbox, sandbox.AsyncSandbox),
    (blocking.Files, filesystem.Files),
    (blocking.Commands, commands.Commands),
    (blocking.RunStream, streaming.RunStream),
]
# async name -> blocking name
RENAMED = {
    "__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__",
    "aclose": "close",
}  # fmt: skip
SPECIAL = {*RENAMED, "__init__"}


def _offered(cls: type) -> dict[str, Any]:
    return {name: member for name, member in vars(cls).items() if not name.startswith("_") or name in SPECIAL}


def _parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda cls: cls.__name__)
def test_nothing_is_missing_and_nothing_differs(ours: type, theirs: type) -> None:
    wanted = {RENAMED.get(name, name): member for name, member in _offered(theirs).items()}
    public = {name for name in vars(ours) if not name.startswith("_")} | {
        name for name in RENAMED.values() if name in vars(ours)
    }
    assert public == set(wanted) - {"__init__"}
    for name, member in wanted.items():
        if name == "__init__" and ours is not blocking.Sandbox:
            continue
        mine = vars(ours)[name]
        if isinstance(member, property):
            mine, member = mine.fget, member.fget
        elif not name.startswith("__"):
            assert inspect.getdoc(mine) == inspect.getdoc(member), name
        assert _parameters(mine) == _parameters(member), name
        if not name.startswith("__"):
            hints, theirs_ = typing.get_type_hints(mine), typing.get_type_hints(member)
            for one in (hints, theirs_):
                one["return"] = getattr(one["return"], "__name__", one["return"])
            assert hints == theirs_, name


def test_run_is_run() -> None:
    assert _parameters(blocking.run) == _parameters(sandbox.run)
    assert blocking.run.__doc__ == sandbox.run.__doc__
    assert typing.get_type_hints(blocking.run) == typing.get_type_hints(sandbox.run)


def test_one_line_a_method() -> None:
    for ours, _ in PAIRS:
        for name, member in _offered(ours).items():
            if inspect.isfunction(member) and name != "__init__":
                (function,) = ast.parse(textwrap.dedent(inspect.getsource(member))).body
                assert isinstance(function, ast.FunctionDef)
                body = [
                    node for node in function.body if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call)
                ]
                assert len(body) <= 2 and not any(isinstance(node, ast.If) for node in ast.walk(function)), name


@pytest.mark.parametrize("cls", [blocking.Sandbox, sandbox.AsyncSandbox])
def test_a_sandbox_that_outlives_its_caller_is_refused_before_anything_is_started(cls: Any) -> None:
    with pytest.raises(Unsupported, match="lives in the process that opened it") as refused:
        cls(level="no such level", detach=True)
    assert refused.value.key == "detach" and "keep that process" in str(refused.value)
