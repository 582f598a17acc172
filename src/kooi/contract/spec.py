"""One value that says everything about a sandbox before it exists: level, image, policy, limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from kooi.contract.limits import Limits
from kooi.contract.policy import Policy


@dataclass(frozen=True)
class Spec:
    """What to build. `image=None` is the running interpreter; `preload=None` is the image's own warm set.

    `fresh=True` executes a new interpreter for the code instead of forking the warm one.
    """

    level: str = "jail"
    image: str | None = None
    preload: tuple[str, ...] | None = None
    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    fresh: bool = False

    def digest(self) -> str:
        """Return the SHA-256 (hex) of the spec's canonical JSON; the same on every machine."""
        raise NotImplementedError

    def within(self, ceiling: Spec) -> Spec:
        """Return this spec narrowed to `ceiling`; raise `InvalidPolicy` where it cannot be narrowed."""
        raise NotImplementedError
