"""What the verbs make of what they find, with the machine replaced by known answers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from kooi.contract.backend import Availability
from kooi.contract.errors import InvalidPolicy
from kooi.doors.cli import attack, choose, explain, levels
from kooi.doors.cli import main as door
from kooi.proof.attacks import html, report
from kooi.proof.attacks.model import Finding, Outcome
from kooi.proof.attacks.runner import Absent, SuiteReport


def finding(program: str, outcome: Outcome, expected: tuple[Outcome, ...], residue: tuple[str, ...] = ()) -> Finding:
    reason = f"because of <b>{program}</b> \x1b[2J"
    return Finding(
        program, f"title of {program}", "jail", outcome, expected, reason, residue, 0.5, "processes", "kernel"
    )


GOOD = SuiteReport(
    "classic", ("jail",), (finding("loop", "prevented", ("prevented",)), finding("fork", "escaped", ("escaped",))),
    (Absent("microvm", "no qemu", "apt install qemu"),), {"loop": "ran on", "fork": None}, 3.0,
)  # fmt: skip
BAD = SuiteReport("classic", ("jail",), (finding("loop", "vacuous", ("prevented",)),), (), {"loop": "ran on"}, 1.0)
LEFT = SuiteReport(
    "classic", ("jail",), (finding("loop", "prevented", ("prevented",), ("mount /x",)),), (), {"loop": "ran on"}, 1.0
)
NONE = SuiteReport("classic", (), (), (Absent("jail", "no", None),), {}, 1.0)


@pytest.mark.parametrize(
    ("found", "words", "code"),
    [(GOOD, [], 0), (GOOD, ["--check"], 0), (BAD, [], 0), (BAD, ["--check"], 2), (LEFT, ["--check"], 2), (NONE, [], 2),
     (GOOD, ["--level", "jail,microvm"], 2)],
)  # fmt: skip
def test_attack_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: SuiteReport, words: list[str], code: int
) -> None:
    async def run_suite(*_: object) -> SuiteReport:
        return found

    monkeypatch.setattr(attack.runner, "run_suite", run_suite)
    assert door.main(["attack", *words]) == code
    assert door.main(["attack", "--json", *words]) == code
    text = capsys.readouterr().out
    assert json.loads(text[text.index("\n{\n") if "\n{\n" in text else 0 :])["suite"] == "classic"


def test_the_report_as_json_says_everything() -> None:
    document = json.loads(json.dumps(report.to_json(GOOD)))
    assert document["as_expected"] is True
    assert document["counts"] == {"jail": {"prevented": 1, "contained": 0, "escaped": 1, "vacuous": 0}}
    assert document["absent"][0]["fix"] == "apt install qemu"
    assert report.to_json(LEFT)["as_expected"] is False


def test_the_page_stands_alone_and_escapes_what_it_shows(tmp_path: Path) -> None:
    page = html.page(GOOD)
    assert "<b>loop</b> \\x1b[2J" not in page and "&lt;b&gt;loop&lt;/b&gt; \\x1b[2J" in page
    assert "\x1b" not in page
    assert not any(word in page for word in ("http://", "https://", "<script", "src=", "<link", "@import", "url("))
    assert page.count("<tr>") == page.count("</tr>") == 3
    assert "surprise" in html.page(BAD).partition("</style>")[2]


def test_remarks_name_what_is_left_and_what_is_absent() -> None:
    lines = [line for line, _ in report.remarks(LEFT)]
    assert any("mount /x" in line for line in lines) and "something was left behind" in lines
    lines = [line for line, _ in report.remarks(GOOD)]
    assert any("microvm" in line and "apt install qemu" in line for line in lines)
    assert "nothing was left behind" in lines


def args(*limits: str, level: str | None = None, policy: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(level=level, policy=policy, limit=list(limits))


def test_limits_are_read_with_units() -> None:
    spec = choose.spec_of(args("memory_bytes=64MiB", "disk_bytes=1.5GiB", "wall_seconds=2.5", "processes=none"))
    found = spec.limits
    assert (found.memory_bytes, found.disk_bytes, found.wall_seconds, found.processes) == (64 << 20, 3 << 29, 2.5, None)
    for wrong in ("wall_seconds=5MiB", "memory_bytes=much", "processes=1.5", "unknown=1", "memory_bytes"):
        with pytest.raises(InvalidPolicy):
            choose.spec_of(args(wrong))


def test_a_policy_file_gives_level_and_limits(tmp_path: Path) -> None:
    file = tmp_path / "kooi.toml"
    file.write_text('level = "process"\n[limits]\nprocesses = 7\n')
    file.chmod(0o600)
    spec = choose.spec_of(args("open_files=99", policy=str(file)))
    assert (spec.level, spec.limits.processes, spec.limits.open_files) == ("process", 7, 99)
    assert choose.spec_of(args(policy=str(file), level="jail")).level == "jail"


HERE = {"process": Availability(True), "jail": Availability(True), "microvm": Availability(False, "no qemu", "get it")}


def choice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], purpose: str,
           found: Mapping[str, Availability] = HERE) -> tuple[int, dict[str, object]]:  # fmt: skip
    async def probe() -> Mapping[str, Availability]:
        return found

    monkeypatch.setattr(levels, "_probe", probe)
    code = door.main(["levels", "--for", purpose, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_chooser_takes_the_best_that_is_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = choice(monkeypatch, capsys, "secrets")
    assert (code, said["level"]) == (0, "jail")
    assert "kernel" in str(said["caution"]) and "no qemu" in str(said["better_but_absent"])
    code, said = choice(monkeypatch, capsys, "secrets", {**HERE, "microvm": Availability(True)})
    assert (code, said["level"], said["caution"], said["better_but_absent"]) == (0, "microvm", None, {})
    assert choice(monkeypatch, capsys, "trusted")[1]["level"] == "process"


def test_the_chooser_never_takes_a_weaker_level_silently(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = choice(monkeypatch, capsys, "containers")
    assert (code, said["level"]) == (2, None)
    code, said = choice(monkeypatch, capsys, "secrets", {"process": Availability(True)})
    assert (code, said["level"]) == (2, None)


@pytest.mark.parametrize("purpose", levels.PURPOSES)
def test_every_purpose_names_known_levels(purpose: str) -> None:
    assert set(levels.PURPOSES[purpose].levels) <= set(levels.PROMISES)


def test_a_plan_is_shown_in_order_and_short_things_on_one_line() -> None:
    plan = {
        "steps": [("mount", {"path": "/"}), "close", ("many", {"paths": ["/long/path"] * 12})],
        "empty": [],
        "n": None,
    }
    assert explain._lines(explain._plain(plan))[:5] == [
        "  steps:", "     1. mount path=/", "     2. close", "     3. many", "        paths:",
    ]  # fmt: skip
    assert explain._lines(explain._plain(plan))[-2:] == ["  empty: (none)", "  n: None"]
