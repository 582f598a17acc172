"""Frames: whatever the pieces, the same frames come out; what breaks a cap is refused before it is kept."""

from __future__ import annotations

import json
import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kooi.guest import frames
from kooi.guest.frames import Credit, FrameError, Parser
from kooi.guest.outbox import Outbox

KINDS = st.sampled_from([frames.DATA, frames.OUT, frames.ERR])


def parser(kinds: object = frames.FROM_GUEST, scratch: int = 4096) -> Parser:
    return Parser(kinds, memoryview(bytearray(scratch)))  # type: ignore[arg-type]


def cut(data: bytes, sizes: list[int], scratch: int = 4096) -> list[tuple[int, int, bytes]]:
    found, kept = [], parser(scratch=scratch)
    while data:
        size = sizes.pop(0) if sizes else len(data)
        piece, data = data[:size], data[size:]
        found += [(kind, channel, bytes(view)) for kind, channel, view in kept.feed(piece)]
    return found


@given(
    st.lists(st.tuples(KINDS, st.integers(1, 2**32 - 1), st.binary(min_size=1, max_size=600)), max_size=12),
    st.lists(st.integers(1, 300), max_size=40),
    st.sampled_from([16, 64, 4096]),
)
@settings(max_examples=300, deadline=None)
def test_pieces_do_not_matter(sent: list[tuple[int, int, bytes]], sizes: list[int], scratch: int) -> None:
    data = b"".join(frames.frame(*each) for each in sent)
    assert cut(data, sizes, scratch) == sent


def test_a_frame_of_a_megabyte_in_small_pieces_is_not_copied_over_and_over() -> None:
    big = os.urandom(frames.MAX_PAYLOAD)
    data = frames.frame(frames.OUT, 1, big) + frames.frame(frames.OUT, 3, b"x")
    found = cut(data, [1000] * 2000, scratch=frames.SCRATCH_BYTES)
    assert found == [(frames.OUT, 1, big), (frames.OUT, 3, b"x")]


def test_parsers_of_one_thread_share_a_buffer() -> None:
    scratch = memoryview(bytearray(64))
    first, second = Parser(frames.FROM_GUEST, scratch), Parser(frames.FROM_GUEST, scratch)
    one, two = frames.frame(frames.OUT, 1, b"first" * 20), frames.frame(frames.OUT, 1, b"second" * 20)
    got_one, got_two = b"", b""
    for index in range(max(len(one), len(two))):
        for _, _, view in first.feed(one[index : index + 1]):
            got_one = bytes(view)
        for _, _, view in second.feed(two[index : index + 1]):
            got_two = bytes(view)
    assert (got_one, got_two) == (b"first" * 20, b"second" * 20)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack(">IBI", frames.MAX_PAYLOAD + 1, frames.OUT, 1),
        struct.pack(">IBI", 0xFFFFFFFF, frames.OUT, 1),
        struct.pack(">IBI", frames.MAX_JSON + 1, frames.END, 1),
        struct.pack(">IBI", 0, frames.OUT, 1),
        struct.pack(">IBI", 1, frames.EOF, 1),
        struct.pack(">IBI", 3, frames.CREDIT, 1),
        struct.pack(">IBI", 5, frames.CREDIT, 1),
        struct.pack(">IBI", 1, 0, 1),
        struct.pack(">IBI", 1, 12, 1),
        struct.pack(">IBI", 1, 255, 1),
        struct.pack(">IBI", 2, frames.OPEN, 1),
        struct.pack(">IBI", 2, frames.CONTROL, 1),
        struct.pack(">IBI", 1, frames.OUT, 0),
        struct.pack(">IBI", 2, frames.HELLO, 1),
    ],
)
def test_a_bad_header_is_refused_before_its_payload(head: bytes) -> None:
    with pytest.raises(FrameError):
        list(parser().feed(head))


def test_frames_before_a_bad_one_are_delivered() -> None:
    found = []
    with pytest.raises(FrameError):
        for kind, _, view in parser().feed(frames.frame(frames.OUT, 1, b"x") + struct.pack(">IBI", 1, 99, 1)):
            found.append((kind, bytes(view)))
    assert found == [(frames.OUT, b"x")]


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"[]", b"1", b"null", b'"x"', b"{", b"{}x", b"\xef\xbb\xbf{}", b'{"a":1,"a":2}', b'{"a":{"b":1,"b":2}}',
        b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":1e999}', b'{"a":-1e999}', b'{"a":"\xff"}',
        b'{"a":"\\ud800"}', b'{"\\udfff":1}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\x01"}', b"{'a':1}", b'{"a":01}',
        b'{"a":' + b"9" * 21 + b"}", b'{"a":' + b"[" * 33 + b"]" * 33 + b"}", b'{"a":' + b"[" * 100_000,
        b'{"a":' * 40 + b"1" + b"}" * 40, b'{"a":"' + b"x" * frames.MAX_JSON + b'"}',
    ],
)  # fmt: skip
def test_json_that_is_not_strict_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        frames.loads(payload)


@pytest.mark.parametrize(
    "value",
    [
        {}, {"a": [1, -2, 3.5, None, True, "ü😀\x00"]}, {"a": "\\ud800"},
        {"brackets": "[{" * 500}, {str(index): [{}] for index in range(200)},
    ],
)  # fmt: skip
def test_json_that_is_strict_is_read(value: dict[str, object]) -> None:
    assert frames.loads(frames.dumps(value)) == value
    assert frames.loads(json.dumps(value).encode()) == value


def test_nesting_of_32_is_the_most() -> None:
    deep = b'{"a":' + b"[" * 31 + b"]" * 31 + b"}"
    assert frames.loads(deep)
    with pytest.raises(FrameError):
        frames.loads(b'{"a":' + b"[" * 32 + b"]" * 32 + b"}")


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"a": float("nan")}, {"a": float("inf")}])
def test_what_the_peer_would_refuse_is_not_sent(value: dict[str, object]) -> None:
    with pytest.raises(FrameError):
        frames.dumps(value)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, frames.WINDOW)), max_size=60))
def test_credit_never_exceeds_the_window_and_loses_nothing(steps: list[tuple[bool, int]]) -> None:
    """One side sends as it may, the other consumes as it likes: grants travel back, and the books agree."""
    sender, receiver, unconsumed = Credit(), Credit(), 0
    for sends, amount in steps:
        if sends:
            size = min(amount, sender.sendable)
            sender.sendable -= size
            receiver.received(size)
            unconsumed += size
        else:
            size = min(amount, unconsumed)
            unconsumed -= size
            grant = receiver.consumed(size)
            if grant:
                sender.granted(grant)
        assert sender.sendable == receiver.expected <= frames.WINDOW
        assert receiver.outstanding == unconsumed
    if unconsumed < frames.WINDOW:
        grant = receiver.consumed(unconsumed)
        if grant:
            sender.granted(grant)
        assert sender.sendable > 0, "a peer whose bytes are all consumed can always go on"


def test_credit_is_held_to() -> None:
    credit = Credit()
    credit.received(frames.WINDOW)
    with pytest.raises(FrameError):
        credit.received(1)
    for amount in (0, 1):
        with pytest.raises(FrameError):
            Credit().granted(amount)


def test_an_outbox_writes_in_order_across_a_full_pipe() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    outbox = Outbox(writer)
    expected, got, scratch = b"", b"", bytearray(100_000)
    for index in range(40):
        small, large = b"%d," % index, bytes([index]) * 50_000
        outbox.put(small)
        scratch[:50_000] = large
        outbox.copy(b"head", memoryview(scratch)[:50_000])
        scratch[:50_000] = b"\xff" * 50_000
        expected += small + b"head" + large
    while len(got) < len(expected):
        outbox.flush()
        got += os.read(reader, 1 << 20)
    assert got == expected
    outbox.put(b"")
    outbox.copy(b"", memoryview(b""))
    assert outbox.flush() and outbox.size == 0
    os.close(reader)
    with pytest.raises(OSError):
        outbox.put(b"x")
        outbox.flush()
    os.close(writer)
