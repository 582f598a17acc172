"""The verdict as a table: the order of reasons holds for every combination of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kooi.contract.result import STATUSES, ErrorInfo
from kooi.engine.verdict import Ending, Told, told, verdict

REASONS = ("killed", "timeout", "cpu_limit", "output_limit")

tolds = st.one_of(
    st.just(Told("ok", None, None, None, 0)),
    st.builds(lambda text: Told("error", None, None, ErrorInfo("OSError", text, ""), 0), st.text(max_size=12)),
    st.builds(lambda code: Told("exit", code, None, None, 0), st.integers(0, 255)),
    st.builds(lambda number: Told("signal", None, number, None, 0), st.integers(1, 64)),
)
endings = st.builds(
    Ending,
    told=st.none() | tolds,
    condemned=st.sets(st.sampled_from(REASONS)),
    violated=st.booleans(),
    oom=st.integers(0, 2),
    pids=st.integers(0, 2),
    file_size=st.booleans(),
    command=st.booleans(),
)


def _ended_badly(ending: Ending) -> bool:
    word = ending.told
    return word is None or word.status in ("error", "signal") or bool(word.exit_code)


@given(endings)
def test_the_first_reason_that_holds_is_the_status(ending: Ending) -> None:
    order = [
        ("killed", "killed" in ending.condemned),
        ("timeout", "timeout" in ending.condemned),
        ("cpu_limit", "cpu_limit" in ending.condemned),
        ("oom", ending.oom > 0 and _ended_badly(ending)),
        ("sandbox_error", ending.violated),
        ("output_limit", "output_limit" in ending.condemned),
        ("lost", ending.told is None),
        ("pids_limit", ending.pids > 0 and _ended_badly(ending)),
    ]
    expected = next((name for name, holds in order if holds), None)
    status, decided_by = verdict(ending)
    assert status in STATUSES
    if expected is not None:
        assert (status, decided_by) == (expected, "host")
    else:
        assert status in ("ok", "error", "signal", "disk_limit")
        assert decided_by in ("agent", "code")


@given(endings)
def test_ok_is_said_only_by_the_code_or_for_exit_code_0(ending: Ending) -> None:
    if verdict(ending)[0] == "ok":
        assert ending.told is not None
        assert ending.told.status == "ok" or ending.told.exit_code == 0
        assert not ending.condemned and not ending.violated


def test_only_the_systems_own_words_mean_a_full_disk() -> None:
    def status(name: str, value: str, file_size: bool = False) -> str:
        word = Told("error", None, None, ErrorInfo(name, value, ""), 0)
        return verdict(Ending(told=word, file_size=file_size))[0]

    assert status("OSError", "[Errno 28] No space left on device: 'x'") == "disk_limit"
    assert status("OSError", "[Errno 122] Disk quota exceeded") == "disk_limit"
    assert status("OSError", "[Errno 27] File too large") == "error"
    assert status("OSError", "[Errno 27] File too large", file_size=True) == "disk_limit"
    for name, value in (
        ("ValueError", "[Errno 28] x"), ("OSError", "28"), ("OSError", ""), ("OSError", "[Errno 99999999] x"),
        ("OSError", "[Errno \u0662\u0668] x"), ("OSError", "[Errno -28] x"), ("FileNotFoundError", "[Errno 28] x"),
    ):  # fmt: skip
        assert status(name, value) == "error", (name, value)


def test_told_takes_end_as_the_protocol_gives_it() -> None:
    error = {"name": "E", "value": "v", "traceback": "t"}
    end = {"status": "error", "exit_code": None, "signal": None, "error": error, "left": None}
    assert told(end) == Told("error", None, None, ErrorInfo("E", "v", "t"), 0)
