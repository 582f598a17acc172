"""Run the behavioural checks against a level, and say which hold."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kooi.contract.errors import InvalidRequest, Unsupported
from kooi.proof.access import close_all, probe_all
from kooi.proof.conformance import interpreter, limits, surroundings
from kooi.proof.conformance.base import Check, NotAtThisLevel

CHECKS: dict[str, Check] = {**interpreter.CHECKS, **surroundings.CHECKS, **limits.CHECKS}
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Checked:
    """One check: whether it holds, why not, or why it does not apply at this level."""

    name: str
    promise: str
    holds: bool | None
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked at a level. `unavailable` says why nothing could be."""

    level: str
    checked: tuple[Checked, ...]
    unavailable: str | None = None

    @property
    def ok(self) -> bool:
        """Whether something was checked and all of it holds."""
        return bool(self.checked) and all(c.holds is not False for c in self.checked)


def names() -> tuple[str, ...]:
    """Return the names of the checks."""
    return tuple(CHECKS)


async def check(level: str, only: Sequence[str] = (), step: Callable[[str], None] = lambda name: None) -> Report:
    """Check everything (or `only` the named checks) at `level`."""
    if unknown := set(only) - set(CHECKS):
        raise InvalidRequest(f"no check {', '.join(sorted(unknown))}", key="only", fix=", ".join(CHECKS))
    state = (await probe_all()).get(level)
    if state is None or not state.ok:
        return Report(level, (), "there is no such level" if state is None else f"{state.reason} ({state.fix})")
    checked = []
    try:
        for name in only or CHECKS:
            step(name)
            checked.append(await check_one(level, name))
    finally:
        await close_all()
    return Report(level, tuple(checked))


async def check_one(level: str, name: str) -> Checked:
    """Run one check at a level that works."""
    function = CHECKS[name]
    promise = (function.__doc__ or name).strip().splitlines()[0]
    started = time.monotonic()
    holds: bool | None = True
    detail = ""
    try:
        await asyncio.wait_for(function(level), PATIENCE_SECONDS)
    except (NotAtThisLevel, Unsupported) as error:
        holds, detail = None, str(error)
    except AssertionError as error:
        holds, detail = False, str(error) or _where(error)
    except asyncio.TimeoutError:
        holds, detail = False, f"no end after {PATIENCE_SECONDS:g} s"
    except Exception as error:  # a check that cannot be done is a promise that does not hold
        holds, detail = False, f"{type(error).__name__}: {error} ({_where(error)})"
    return Checked(name, promise, holds, detail, time.monotonic() - started)


def _where(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename.rpartition('/')[2]}:{last.lineno}: {last.line}"
