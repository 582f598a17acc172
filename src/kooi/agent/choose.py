"""Which model to ask: the one that was named, else the one whose key or address is set, else the scripted one."""

from __future__ import annotations

from kooi.agent.loop import Model
from kooi.agent.models import AnthropicModel, OpenAIModel
from kooi.agent.scripted import ScriptedModel
from kooi.contract.errors import InvalidRequest
from kooi.settings import AgentKeys

DEFAULTS = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-5.5"}
KINDS = "anthropic:NAME, openai:NAME or scripted"
_NO_KEY = "none"  # servers at an address of one's own often ask for no key, but the SDKs insist on one


def choose_model(named: str | None, keys: AgentKeys) -> Model:
    """Return the model `named` (`anthropic`, `openai`, either with `:NAME`, or `scripted`), else one that `keys` reach.

    Raises `InvalidRequest` for an unknown kind, a missing key or a missing name, `ModelError` without the SDK.
    """
    kind, _, name = (named or _reachable(keys)).partition(":")
    if kind == "scripted" and not name:
        return ScriptedModel()
    if kind not in DEFAULTS:
        raise InvalidRequest(f"there is no model {named!r}", key="model", fix=f"write {KINDS}")
    key, url = _access(kind, keys)
    variable = kind.upper()
    if key is None and url is None:
        fix = f"set {variable}_API_KEY, or {variable}_BASE_URL for a server of your own"
        raise InvalidRequest(f"no key for the model {named!r}", key="model", fix=fix)
    if not name and url is not None:
        fix = f"write --model {kind}:NAME"
        raise InvalidRequest(f"which model of the server at {variable}_BASE_URL?", key="model", fix=fix)
    made = AnthropicModel if kind == "anthropic" else OpenAIModel
    return made(name or DEFAULTS[kind], api_key=key or _NO_KEY, base_url=url)


def _reachable(keys: AgentKeys) -> str:
    return next((kind for kind in DEFAULTS if _access(kind, keys) != (None, None)), "scripted")


def _access(kind: str, keys: AgentKeys) -> tuple[str | None, str | None]:
    if kind == "anthropic":
        return keys.anthropic_api_key, keys.anthropic_base_url
    return keys.openai_api_key, keys.openai_base_url
