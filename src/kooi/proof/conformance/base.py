"""What the behavioural checks share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from kooi.contract.limits import Limits
from kooi.contract.policy import Policy
from kooi.contract.result import Result
from kooi.contract.spec import Spec
from kooi.sandbox import AsyncSandbox

Check = Callable[[str], Awaitable[None]]


class NotAtThisLevel(Exception):
    """The promise is not one of this level."""


def spec_of(level: str, policy: Policy | None = None, **limits: Any) -> Spec:
    """Return a spec of `level` with nothing preloaded and some limits changed."""
    return Spec(level=level, preload=(), policy=policy or Policy(), limits=Limits(**limits))


@asynccontextmanager
async def box(level: str, policy: Policy | None = None, **limits: Any) -> AsyncIterator[AsyncSandbox]:
    """Open a sandbox of `level` and close it."""
    async with AsyncSandbox(spec=spec_of(level, policy, **limits)) as opened:
        yield opened


def same(got: object, wanted: object, what: str = "") -> None:
    """Refuse a difference, in words."""
    if got != wanted:
        raise AssertionError(f"{what or 'it'} is {_short(got)}, not {_short(wanted)}")


def true(holds: object, what: str) -> None:
    """Refuse what is not so."""
    if not holds:
        raise AssertionError(what)


def ok(result: Result, stdout: str | None = None) -> Result:
    """Refuse a run that did not end well, or that wrote something else."""
    if not result.ok:
        told = f"{result.error.name}: {result.error.value}" if result.error else result.stderr[-300:]
        raise AssertionError(f"status {result.status}, decided by {result.decided_by}: {told}")
    if stdout is not None:
        same(result.stdout, stdout, "standard output")
    return result


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
