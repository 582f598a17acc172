"""The model that is asked: the named one, else the one that can be reached, else the script; and clear refusals."""

from __future__ import annotations

import sys

import pytest

from kooi.agent import ModelError
from kooi.agent.choose import DEFAULTS, choose_model
from kooi.contract.errors import InvalidRequest
from kooi.settings import AgentKeys

NONE = AgentKeys()
BOTH = AgentKeys(anthropic_api_key="a", openai_api_key="o")
LOCAL = AgentKeys(openai_base_url="http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    ("named", "keys", "name"),
    [
        (None, NONE, "scripted"),
        ("scripted", BOTH, "scripted"),
        (None, BOTH, f"anthropic:{DEFAULTS['anthropic']}"),
        (None, AgentKeys(openai_api_key="o"), f"openai:{DEFAULTS['openai']}"),
        ("anthropic:x", BOTH, "anthropic:x"),
        ("openai", BOTH, f"openai:{DEFAULTS['openai']}"),
        ("openai:llama3:8b", LOCAL, "openai:llama3:8b"),
        ("anthropic:m", AgentKeys(anthropic_base_url="http://127.0.0.1:9"), "anthropic:m"),
    ],
)
def test_chosen(named: str | None, keys: AgentKeys, name: str) -> None:
    assert choose_model(named, keys).name == name


@pytest.mark.parametrize(
    ("named", "keys", "words"),
    [
        ("anthropic", NONE, "ANTHROPIC_API_KEY"),
        ("openai:x", AgentKeys(anthropic_api_key="a"), "OPENAI_BASE_URL"),
        (None, LOCAL, "--model openai:NAME"),
        ("gpt", BOTH, "anthropic:NAME"),
        ("scripted:x", BOTH, "anthropic:NAME"),
    ],
)
def test_refused(named: str | None, keys: AgentKeys, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        choose_model(named, keys)
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", ["anthropic", "openai"])
def test_a_missing_sdk_names_the_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(ModelError, match=r"kooi\[agent\]"):
        choose_model(f"{kind}:x", BOTH)
