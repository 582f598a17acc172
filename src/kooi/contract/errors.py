"""The few exceptions kooi raises. The code's fate is a value (`Result.status`); these are our own failures.

KooiError
├── InvalidPolicy        a policy, limit or spec value is not acceptable; `key` names it
├── InvalidRequest       an argument of one call is not acceptable; `key` names it
├── PolicyUnenforceable  the level cannot hold a clause, and the clause was not waived by name
├── LevelUnavailable     the level cannot run on this host; `fix` says what would make it
├── Unsupported          the level cannot do this operation
├── SandboxClosed        the sandbox was closed before the call
├── SandboxLost          the sandbox died under the call
└── SetupFailed          a step of building the sandbox failed; nothing of it is left
"""

from __future__ import annotations


class KooiError(Exception):
    """Base of everything kooi raises. `code` is stable across versions; `fix` says how to get what was asked."""

    code = "kooi_error"

    def __init__(self, message: str, *, key: str | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message} ({self.fix})" if self.fix else self.message


class InvalidPolicy(KooiError):
    """A policy, limit or spec value is not acceptable."""

    code = "invalid_policy"


class InvalidRequest(KooiError):
    """An argument of one call is not acceptable."""

    code = "invalid_request"


class PolicyUnenforceable(KooiError):
    """The level cannot hold a clause of the spec, and nobody waived it by name."""

    code = "policy_unenforceable"


class LevelUnavailable(KooiError):
    """The level cannot run on this host."""

    code = "level_unavailable"


class Unsupported(KooiError):
    """The level cannot do this operation."""

    code = "unsupported"


class SandboxClosed(KooiError):
    """The sandbox was closed before this call."""

    code = "sandbox_closed"


class SandboxLost(KooiError):
    """The sandbox died under this call."""

    code = "sandbox_lost"


class SetupFailed(KooiError):
    """A step of building the sandbox failed; everything done so far was rolled back."""

    code = "setup_failed"
