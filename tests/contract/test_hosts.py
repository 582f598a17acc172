from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kooi.contract.errors import InvalidPolicy, InvalidRequest
from kooi.contract.hosts import AllowRule, canonical_host, is_address, parse_rule

from .strategies import rules


@pytest.mark.parametrize(
    ("rule", "canonical"),
    [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("example.com:443", "example.com:443"),
        ("*.Example.com", "*.example.com"),
        ("*.example.com:8080", "*.example.com:8080"),
        ("localhost", "localhost"),
        ("my_service", "my_service"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("3com.com", "3com.com"),
        ("192.168.0.1", "192.168.0.1"),
        ("192.168.0.1:80", "192.168.0.1:80"),
        ("192.168.0.1.", "192.168.0.1"),
        ("[2001:DB8:0::1]", "[2001:db8::1]"),
        ("[::1]:443", "[::1]:443"),
    ],
)
def test_rules_have_one_canonical_form(rule: str, canonical: str) -> None:
    assert str(parse_rule(rule)) == canonical
    assert str(parse_rule(canonical)) == canonical


@pytest.mark.parametrize(
    "rule",
    [
        "", ".", "*", "*.", "**.a.com", "*.*.com", "a.*.com", "*a.com", "a..com", ".a.com", "a.com..", "-a.com",
        "a-.com", "a.com:", "a.com:0", "a.com:65536", "a.com:080", "a.com:+80", "a.com:80:80", "a.com:http", ":443",
        "http://a.com", "a.com/", "a.com/x", "user@a.com", "a.com#x", "a.com?x", "a\\b.com", "a b.com", " a.com",
        "a.com ", "a.com\n", "a.com\r\n", "evil.com\0.a.com", "evil.com%00.a.com", "bücher.example",
        "a.com\u3002", "\u2024com", "127.1", "127.0.0.01", "0x7f.0.0.1", "0x7f000001", "2130706433", "1.2.3.4.5",
        "256.1.1.1", "1.2.3.0x4", "*.1.2.3.4",
        "*.[::1]", "::1", "2001:db8::1", "[::1", "[::ffff:1.2.3.4]",
         "[fe80::1%eth0]", "[1.2.3.4]", "[::1]x", "[::1]443",
        "a" * 64 + ".com", ".".join(["a" * 60] * 5), "a.com\u0130", "\uff41.com",
    ],
)  # fmt: skip
def test_every_other_spelling_is_refused(rule: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        parse_rule(rule)
    assert caught.value.key == "policy.network" and "\n" not in str(caught.value) and "\0" not in str(caught.value)


def test_an_international_name_is_told_its_ascii_form() -> None:
    with pytest.raises(InvalidRequest, match="xn--"):
        parse_rule("bücher.example", error=InvalidRequest)


@pytest.mark.parametrize("rule", [None, 443, b"a.com", ["a.com"], True])
def test_a_rule_is_text(rule: object) -> None:
    with pytest.raises(InvalidPolicy):
        parse_rule(rule)


def test_what_a_rule_allows() -> None:
    exact, below = parse_rule("a.com"), parse_rule("*.a.com:443")
    assert exact.allows("a.com", 1) and not exact.allows("x.a.com", 1) and not exact.allows("xa.com", 1)
    assert below.allows("x.a.com", 443) and below.allows("y.x.a.com", 443)
    for host, port in [("a.com", 443), ("xa.com", 443), ("x.a.com", 80), ("x.a.com.evil.com", 443), ("a.com.b", 443)]:
        assert not below.allows(host, port)


@given(rules, rules, st.sampled_from(["a.com", "x.a.com", "y.x.a.com", "xa.com", "10.0.0.1", "2001:db8::1"]))
def test_covers_agrees_with_allows(wide: str, narrow: str, host: str) -> None:
    wider, narrower = parse_rule(wide), parse_rule(narrow)
    probes = [(one, port) for one in (host, narrower.host, f"z.{narrower.host}") for port in (80, 443, 9)]
    if wider.covers(narrower):
        assert all(wider.allows(*probe) for probe in probes if narrower.allows(*probe))
    else:  # some connection that the narrower one allows shows it
        assert any(narrower.allows(*probe) and not wider.allows(*probe) for probe in probes)


@given(st.text(max_size=30) | st.from_regex(r"[a-z0-9.*:\[\]xX_-]{1,30}", fullmatch=True))
def test_canonical_form_is_stable_and_plain(rule: str) -> None:
    try:
        parsed = parse_rule(rule)
    except InvalidPolicy:
        return
    assert parse_rule(str(parsed)) == parsed
    assert str(parsed) == str(parsed).lower() and str(parsed).isascii() and str(parsed).isprintable()
    host = canonical_host(f"[{parsed.host}]" if ":" in parsed.host else parsed.host)
    assert host == parsed.host and not (parsed.below and is_address(parsed.host))


def test_rules_are_values() -> None:
    assert AllowRule("a.com") == parse_rule("A.com") and len({parse_rule("a.com"), parse_rule("A.COM.")}) == 1
