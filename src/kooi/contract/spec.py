"""One value that says everything about a sandbox before it exists: level, image, policy, limits."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kooi.contract import checks
from kooi.contract.errors import InvalidPolicy, KooiError
from kooi.contract.limits import RANGES, Limits
from kooi.contract.policy import Policy

LEVEL_NAME = r"[a-z][a-z0-9_-]{0,31}"
MODULE_NAME = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
MAX_PRELOAD = 256
FIELDS: tuple[str, ...] = ("level", "image", "preload", "policy", "limits", "fresh")

_LEVEL_NAME = re.compile(LEVEL_NAME)
_MODULE_NAME = re.compile(MODULE_NAME)
# By strength, except that `confined` is below `jail`: naming it waives clauses. A level not here has no order.
_ORDER: Mapping[str, int] = {
    "process": 0, "confined": 1, "jail": 2, "container": 2, "gvisor": 3, "wasm": 3, "microvm": 4,
}  # fmt: skip
_DIGEST_VERSION = 1


def level_within(level: str, ceiling: str) -> bool:
    """Whether `level` is `ceiling` or at least as strong; levels without an order (`e2b`, plug-ins) must be equal."""
    if level == ceiling:
        return True
    return level in _ORDER and ceiling in _ORDER and _ORDER[level] >= _ORDER[ceiling]


@dataclass(frozen=True)
class Spec:
    """What to build. `image=None` is the running interpreter; `preload=None` is the image's own warm set.

    `fresh=True` executes a new interpreter for the code instead of forking the warm one. Raises `InvalidPolicy` with
    `key` naming what is not acceptable; whether the level and the image exist is seen later.
    """

    level: str = "jail"
    image: str | None = None
    preload: tuple[str, ...] | None = None
    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    fresh: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.level, str) or not _LEVEL_NAME.fullmatch(self.level):
            raise checks.refusal("level", self.level, "the name of a level: a-z 0-9 _ -, at most 32 characters")
        if self.image is not None:
            checks.text("image", self.image, accepted="the name of an image, or none for the running interpreter")
        object.__setattr__(self, "preload", _checked_preload(self.preload))
        if not isinstance(self.policy, Policy):
            raise checks.refusal("policy", self.policy, "a Policy")
        if not isinstance(self.limits, Limits):
            raise checks.refusal("limits", self.limits, "a Limits")
        checks.flag("fresh", self.fresh)

    def __reduce__(self) -> tuple[Any, ...]:  # without the cached digest, and checked again
        return Spec, tuple(getattr(self, name) for name in FIELDS)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Spec:
        """Return the spec of a table, with `policy` and `limits` as tables in it; the rest keeps its defaults.

        Raises `InvalidPolicy` for an unknown key, naming the nearest known one.
        """
        given = checks.table("", mapping, FIELDS)
        if not isinstance(given.get("policy", Policy()), Policy):
            given["policy"] = Policy.from_mapping(given["policy"])
        if not isinstance(given.get("limits", Limits()), Limits):
            given["limits"] = Limits.from_mapping(given["limits"])
        return cls(**given)

    def to_mapping(self) -> dict[str, Any]:
        """Return all fields as plain lists, dicts and values; `from_mapping` gives an equal spec back."""
        return {
            "level": self.level,
            "image": self.image,
            "preload": None if self.preload is None else list(self.preload),
            "policy": self.policy.to_mapping(),
            "limits": self.limits.to_mapping(),
            "fresh": self.fresh,
        }

    def canonical(self) -> bytes:
        """Return the canonical JSON that `digest` hashes: sorted keys, ASCII, and no number with a fraction."""
        document = {"kooi_spec": _DIGEST_VERSION, **self.to_mapping()}
        document["limits"] = {name: _exact(name, value) for name, value in self.limits.to_mapping().items()}
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the spec's canonical JSON; the same on every machine."""
        cached: str | None = self.__dict__.get("_digest")
        if cached is None:
            cached = hashlib.sha256(self.canonical()).hexdigest()
            object.__setattr__(self, "_digest", cached)
        return cached

    def within(self, ceiling: Spec) -> Spec:
        """Return this spec narrowed to `ceiling`; raise `InvalidPolicy` where it cannot be narrowed.

        Each limit becomes the smaller one and strictness, required layers and `fresh` add up. The level must be equal
        or at least as strong, the image equal, `preload` equal or a part; policy: see `Policy.within`.
        """
        if not level_within(self.level, ceiling.level):
            raise _beyond("level", self.level, f"{ceiling.level} or a stronger level")
        if self.image != ceiling.image:
            raise _beyond("image", self.image, checks.shown(ceiling.image))
        if self.preload != ceiling.preload and self.preload != ():
            if self.preload is None or ceiling.preload is None or not set(self.preload) <= set(ceiling.preload):
                allowed = "its image's own set" if ceiling.preload is None else ", ".join(ceiling.preload)
                given = None if self.preload is None else ", ".join(self.preload)
                raise _beyond("preload", given, f"any of: {allowed or 'nothing'}")
        policy, limits = self.policy.within(ceiling.policy), self.limits.within(ceiling.limits)
        return Spec(self.level, self.image, self.preload, policy, limits, self.fresh or ceiling.fresh)


def _beyond(key: str, given: object, allowed: str) -> KooiError:
    return checks.refusal(key, given, f"what the ceiling allows: {allowed}")


def _exact(name: str, value: float | int | None) -> int | str | None:
    """Return a limit as JSON that every language writes alike: a fraction of two whole numbers, as text."""
    if value is None or RANGES[name].whole:
        return None if value is None else int(value)
    numerator, denominator = float(value).as_integer_ratio()
    return f"{numerator}/{denominator}"


def _checked_preload(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = checks.sequence("preload", value)
    for name in names:
        if not isinstance(name, str) or len(name) > 255 or not _MODULE_NAME.fullmatch(name):
            raise checks.refusal("preload", name, "names of modules, as in an import statement")
    if len(names) > MAX_PRELOAD:
        raise InvalidPolicy(f"preload: {len(names)} names given; accepted: at most {MAX_PRELOAD}", key="preload")
    return tuple(dict.fromkeys(str(name) for name in names))
