"""How text that the code inside wrote is shown to a human: nothing in it may steer the terminal or hide."""

from __future__ import annotations

import unicodedata

# Controls (C0, DEL, C1), format characters (bidi overrides, zero width, tags), lone surrogates, line separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def escape_terminal(text: str) -> str:
    r"""Return `text` with every control and format character but `\n` and `\t` made visible, as `\x1b` or `\u202e`.

    For people only: a backslash stays as it is, so the original cannot be told from the result.
    """
    # Most output is plain, and this test is much faster than translating.
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return text.translate(_Escapes())


class _Escapes(dict[int, str]):
    """A translation table that is filled as characters come; made for one call, so that hostile text cannot grow it."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if character not in "\n\t" and unicodedata.category(character) in _HIDDEN:
            character = _visible(code)
        self[code] = character
        return character


def _visible(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02x}" if code != 0x0D else "\\r"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
