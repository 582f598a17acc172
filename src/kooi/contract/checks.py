"""The checks that values of the vocabulary pass. Each error names the key, what was given and what is accepted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kooi.contract.errors import InvalidPolicy, KooiError

_SHOWN = 80


def shown(value: object) -> str:
    """Return `value` for an error message: short and printable, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}... ({len(value)} long)"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    return f"a {type(value).__name__}"


def refusal(
    key: str, value: object, accepted: str, *, error: type[KooiError] = InvalidPolicy, fix: str | None = None
) -> KooiError:
    """Return the exception for a value that is not acceptable."""
    return error(f"{key}: {shown(value)} given; accepted: {accepted}", key=key, fix=fix)


def is_unicode(value: str) -> bool:
    """Whether `value` has no lone surrogate, so that every encoding and every JSON reader can carry it."""
    if value.isascii():
        return True
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def text(
    key: str, value: object, *, accepted: str = "text", longest: int = 4096, error: type[KooiError] = InvalidPolicy
) -> str:
    """Return `value` if it is non-empty text of at most `longest` characters without NUL or lone surrogates."""
    if not isinstance(value, str) or not value or len(value) > longest or "\0" in value or not is_unicode(value):
        raise refusal(
            key, value, f"{accepted}, 1 to {longest} characters, valid Unicode without NUL characters", error=error
        )
    return str(value)


def flag(key: str, value: object) -> bool:
    """Return `value` if it is a bool."""
    if not isinstance(value, bool):
        raise refusal(key, value, "true or false")
    return value


def whole(key: str, value: object, low: int, high: int, *, unit: str = "") -> int:
    """Return `value` if it is a whole number from `low` to `high`; a bool is not one."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise refusal(key, value, f"a whole number{unit and ' of ' + unit} from {low} to {high}")
    return int(value)


def sequence(key: str, value: object) -> tuple[Any, ...]:
    """Return a list or tuple as a tuple; text is not one."""
    if not isinstance(value, (list, tuple)):
        raise refusal(key, value, "a list")
    return tuple(value)


def table(key: str, value: object, known: Collection[str], *, error: type[KooiError] = InvalidPolicy) -> dict[str, Any]:
    """Return a mapping as a dict if all its keys are in `known`; `key` is its own name, empty at the top."""
    if not isinstance(value, Mapping):
        raise refusal(key or "the whole", value, f"a table with the keys {', '.join(sorted(known))}", error=error)
    for name in value:
        if name not in known:
            raise _unknown_key(f"{key}." if key else "", name, known, error)
    return dict(value)


def _unknown_key(prefix: str, name: object, known: Collection[str], error: type[KooiError]) -> KooiError:
    import difflib  # only on this path: it is slow to import

    shown_name = name if isinstance(name, str) and name.isprintable() and len(name) <= _SHOWN else shown(name)
    near = difflib.get_close_matches(str(name)[:_SHOWN], sorted(known), n=1, cutoff=0.5)
    fix = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(sorted(known))}"
    return error(f"{prefix}{shown_name}: unknown key", key=f"{prefix}{shown_name}", fix=fix)


def one_of(key: str, value: object, known: Collection[str]) -> str:
    """Return `value` if it is one of the names in `known`."""
    if not isinstance(value, str) or value not in known:
        raise refusal(key, value, ", ".join(known))
    return str(value)
