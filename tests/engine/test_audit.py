"""The audit line: one per run, JSON, no code; a sink that fails costs nothing but a log line."""

from __future__ import annotations

import hashlib
import json
import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kooi.engine.audit import AuditFile
from kooi.sandbox import AsyncSandbox
from tests.engine.fakes import FakeBackend

Run = Callable[..., Any]


def test_one_line_per_run_without_the_code(fake: FakeBackend, run: Run) -> None:
    lines: list[str] = []

    async def main() -> None:
        async with AsyncSandbox("fake", audit=lines.append) as box:
            await box.run("out secret text")
            await box.run("error E v")
            await box.commands.run(["exit", "4"])

    run(main())
    first, second, third = (json.loads(line) for line in lines)
    assert not any("\n" in line or "secret text" in line for line in lines)
    assert first["code_sha256"] == hashlib.sha256(b"out secret text").hexdigest()
    assert first["code_bytes"] == len("out secret text")
    assert (first["status"], first["level"], first["stdout_bytes"]) == ("ok", "fake", len("secret text"))
    assert (second["status"], second["decided_by"]) == ("error", "code")
    assert third["code_sha256"] == hashlib.sha256(b'["exit", "4"]').hexdigest()
    assert third["exit_code"] == 4
    assert len({line["spec"] for line in (first, second, third)}) == 1


def test_a_sink_that_fails_is_logged(fake: FakeBackend, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def sink(line: str) -> None:
        raise OSError("disk full")

    async def main() -> None:
        async with AsyncSandbox("fake", audit=sink) as box:
            assert (await box.run("ok")).ok

    with caplog.at_level(logging.ERROR):
        run(main())
    assert "not written" in caplog.text and "disk full" in caplog.text


def test_a_file_is_private_and_appended_to(fake: FakeBackend, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(2):
        sink = AuditFile(path)

        async def main(sink: AuditFile = sink) -> None:
            async with AsyncSandbox("fake", audit=sink) as box:
                await box.run("ok")

        run(main())
        sink.close()
        sink.close()
    assert [json.loads(line)["status"] for line in path.read_text().splitlines()] == ["ok", "ok"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError):
        AuditFile(link)
