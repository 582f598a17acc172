from __future__ import annotations

import dataclasses
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kooi.contract.result import ErrorInfo, Result, RichItem, RunEvent
from kooi.contract.text import escape_terminal

from .strategies import results
from .test_wire import RESULT


def test_repr_is_short_and_readable() -> None:
    ok = dataclasses.replace(RESULT, status="ok", exit_code=0, stdout_bytes=b"1\n", stdout_total_bytes=2, error=None)
    assert repr(ok) == r"<Result ok exit_code=0 level=jail stdout='1\n' of 2 bytes>"
    big = dataclasses.replace(
        RESULT, status="signal", exit_code=None, signal=9, stdout_bytes=b"x" * 10**6, stderr_bytes=b"no\x1b]0;evil\x07",
        stderr_total_bytes=13, stdout_total_bytes=10**7, error=ErrorInfo("E\u202e" * 1000, "", ""),
    )  # fmt: skip
    shown = repr(big)
    assert shown.startswith("<Result signal signal=9 level=jail error='E\\u202e")
    assert "of 10000000 bytes" in shown and r"stderr='no\x1b]0;evil\x07' of 13 bytes" in shown
    assert len(shown) < 600


@given(results)
def test_repr_never_steers_a_terminal(result: Result) -> None:
    plain = dataclasses.replace(result, level="jail")
    assert repr(plain).isprintable()


def test_rich_items() -> None:
    item = RichItem(
        {"text/plain": "x\x1b[0m", "image/png": "iVBO\nRw==\n", "text/html": "<b>", "image/svg+xml": "<svg>"}
    )
    assert item.png == b"\x89PNG" and item.html == "<b>" and item.svg == "<svg>" and item.text == "x\x1b[0m"
    assert item.jpeg is None and item.markdown is None
    assert RichItem({"image/png": "no base64!"}).png is None and RichItem({"image/jpeg": "é"}).jpeg is None
    assert RichItem({"text/markdown": "*x*"}).markdown == "*x*"
    assert repr(item).isprintable() and len(repr(RichItem({"x" * 999: "y", "text/plain": "z" * 999}))) < 200


def test_run_event_text() -> None:
    assert RunEvent("stdout", b"a\xff").text == "a\ufffd"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n\u00e9 \u6f22 \U0001f600 \u00a0", "plain\ttext\n\u00e9 \u6f22 \U0001f600 \u00a0"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b]8;;http://evil\x1b\\link", "\\x1b]8;;http://evil\\x1b\\link"),
        ("\x9b31m\x85\x90", "\\x9b31m\\x85\\x90"),
        ("safe\rEVIL\r\n", "safe\\rEVIL\\r\n"),
        ("\x00\x08\x0b\x0c\x7f", "\\x00\\x08\\x0b\\x0c\\x7f"),
        ("a\u202eb\u2066c\u200f\u061c", "a\\u202eb\\u2066c\\u200f\\u061c"),
        ("\u200b\ufeff\u2028\u2029\u00ad", "\\u200b\\ufeff\\u2028\\u2029\\xad"),
        ("\U000e0041\U000e007f", "\\U000e0041\\U000e007f"),
        ("\ud800\udfff", "\\ud800\\udfff"),
        ("", ""),
    ],
)
def test_escapes(text: str, shown: str) -> None:
    assert escape_terminal(text) == shown


@given(st.text() | st.text(st.characters(categories=("Cc", "Cf", "Cs", "Zl", "Zp", "Ll"))))
def test_nothing_that_steers_or_hides_is_left(text: str) -> None:
    shown = escape_terminal(text)
    for character in shown:
        assert character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
    assert shown.count("\n") == text.count("\n") and shown.count("\t") == text.count("\t")
    assert escape_terminal(shown) == shown
    shown.encode()


def test_every_control_character_is_escaped() -> None:
    for code in [*range(0x20), *range(0x7F, 0xA0)]:
        assert (escape_terminal(chr(code)) == chr(code)) == (chr(code) in "\n\t")
