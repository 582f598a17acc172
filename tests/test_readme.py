"""What the README and the documents say is true: the examples run, links lead somewhere, every key is described."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kooi.contract import policy
from kooi.contract.limits import RANGES, Limits
from kooi.contract.policy import CLAUSES
from kooi.contract.result import GRADES
from kooi.contract.spec import FIELDS
from kooi.doors.cli.main import VERBS, usage
from kooi.settings import SETTINGS_KEYS, Settings
from tests.levels import need

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
POLICY = (ROOT / "docs" / "policy.md").read_text()
PAGES = [ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md", "AGENTS.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_examples_run_one_after_another(tmp_path: Path) -> None:
    need("jail")
    program = "\n".join(python_blocks(README))
    assert program.count("import kooi") == 1 and "kooi.run" in program
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok 45\n")
    assert "'Oslo'" in done.stdout and "sales.csv" in done.stdout and "status: ok" in done.stdout
    assert "ResourceWarning" not in done.stderr


def test_every_verb_is_in_the_readme_and_in_the_help() -> None:
    said = set(re.findall(r"^\| `kooi (\w+)`", README, re.MULTILINE))
    assert said == set(VERBS)
    assert all(re.search(rf"^  {name} ", usage(), re.MULTILINE) for name in VERBS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def rows(text: str) -> dict[str, str]:
    """Return the second column of every table row by each `key` in its first."""
    found = {}
    for keys, default in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", text, re.MULTILINE):
        values = default.split(", ") if "`, `" in keys else [default]
        found.update(zip(re.findall(r"`([^`]+)`", keys), values, strict=False))
    return found


def test_every_key_of_a_policy_file_is_described() -> None:
    described = rows(POLICY)
    keys = {*FIELDS, *policy.FIELDS, *RANGES, *SETTINGS_KEYS, *GRADES} - {"policy", "limits"}
    assert keys <= set(described), keys - set(described)
    assert all(f"`{name}`" in POLICY for name in CLAUSES)


def test_the_defaults_are_the_real_ones() -> None:
    described = rows(POLICY)
    settings = Settings(state_dir=Path("/"), run_dir=Path("/"))
    values = {**Limits().to_mapping(), **{k: getattr(settings, k) for k in SETTINGS_KEYS if not k.endswith("_dir")}}
    for name, value in values.items():
        shown = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        assert described[name].split(" ")[0] == shown, name


def test_the_example_file_is_accepted(tmp_path: Path) -> None:
    from kooi.settings import load_settings

    (example,) = re.findall(r"^```toml\n(.*?)^```", POLICY, re.DOTALL | re.MULTILINE)
    file = tmp_path / "kooi.toml"
    file.write_text(example)
    file.chmod(0o600)
    settings = load_settings(file)
    assert settings.pool_size == 4 and settings.spec is not None and settings.spec.limits.cpu_seconds is None


def test_agents_md_is_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) < 80


def test_every_bar_is_described_with_its_bound() -> None:
    from kooi.proof.bench.bars import BARS

    text = (ROOT / "docs" / "benchmarks.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    for bar in BARS:
        (line,) = [line for line in lines if f"`{bar.name}`" in line.split("|")[1]]
        assert f"{bar.required:g}" in line and (bar.aim is None or f"{bar.aim:g}" in line), line
