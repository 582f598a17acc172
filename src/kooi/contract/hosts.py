"""Allow rules of the network policy: their one syntax, their canonical form, and what each allows.

A rule is `host`, `*.suffix` (every name below suffix at any depth, not suffix itself), an IPv4 address or an IPv6
address in brackets, each with `:port` or without (any port). A host has exactly one canonical spelling here, so what
was decided on and what is dialled cannot differ: lower case, ASCII, no trailing dot, no NUL, and nothing that some
resolver would take for a number (`127.1`, `0x7f.1`, `2130706433`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kooi.contract import checks
from kooi.contract.errors import InvalidPolicy, KooiError

SYNTAX = "host, *.suffix, an IPv4 address or [IPv6 address], each with :port or without"

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_OCTET = re.compile(r"25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9]")
_PORT = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class AllowRule:
    """A parsed rule. `host` is canonical; `below` marks `*.host`; `port=None` is any port."""

    host: str
    below: bool = False
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else f"*.{self.host}" if self.below else self.host
        return host if self.port is None else f"{host}:{self.port}"

    def allows(self, host: str, port: int) -> bool:
        """Whether a connection to `host` (canonical, see `canonical_host`) and `port` is allowed by this rule."""
        if self.port is not None and port != self.port:
            return False
        return host.endswith(f".{self.host}") if self.below else host == self.host

    def covers(self, other: AllowRule) -> bool:
        """Whether this rule allows everything that `other` allows."""
        if self.port is not None and other.port != self.port:
            return False
        if not self.below:
            return not other.below and other.host == self.host
        return other.host.endswith(f".{self.host}") or (other.below and other.host == self.host)


def canonical_host(text: str) -> str | None:
    """Return the one spelling of a host name or address, an IPv6 one without brackets; None if it is not a host."""
    if text.startswith("[") and text.endswith("]"):
        return _canonical_ipv6(text[1:-1])
    host = text.lower() if text.isascii() else ""
    if host.endswith("."):
        host = host[:-1]
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    if not _NUMBER.fullmatch(labels[-1]):
        return host
    return host if len(labels) == 4 and all(_OCTET.fullmatch(label) for label in labels) else None


def _canonical_ipv6(text: str) -> str | None:
    import ipaddress  # only on this path: it is slow to import

    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return None
    # An IPv4 address in IPv6 clothes would be a second spelling, and a zone is a path to one interface.
    return None if address.ipv4_mapped or address.scope_id else address.compressed


def parse_rule(rule: object, *, key: str = "policy.network", error: type[KooiError] = InvalidPolicy) -> AllowRule:
    """Return the parsed rule; raise `error` naming `key` if its syntax is not that of `SYNTAX`."""
    if not isinstance(rule, str):
        raise checks.refusal(key, rule, SYNTAX, error=error)
    host, colon, port = rule.rpartition(":") if not rule.endswith("]") else (rule, "", "")
    if not colon:
        host = rule
    elif not _PORT.fullmatch(port) or int(port) > 65_535:
        raise checks.refusal(key, rule, f"{SYNTAX} (a port is 1 to 65535)", error=error)
    below = host.startswith("*.")
    canonical = canonical_host(host[2:] if below else host)
    if canonical is None or (below and is_address(canonical)):
        fix = None if rule.isascii() else "write an international name in its ASCII form, xn--..."
        raise checks.refusal(key, rule, SYNTAX, error=error, fix=fix)
    return AllowRule(canonical, below, int(port) if colon else None)


def is_address(host: str) -> bool:
    """Whether a canonical host is an IP address and not a name."""
    return ":" in host or bool(_NUMBER.fullmatch(host.rpartition(".")[2]))
