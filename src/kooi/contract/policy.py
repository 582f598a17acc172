"""What a sandbox may touch: files, network, environment. Fixed by the operator before the start."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kooi.contract import checks
from kooi.contract.errors import InvalidPolicy, KooiError
from kooi.contract.hosts import parse_rule
from kooi.contract.limits import RANGES

# `files` is the limit on their number; which of the host's may be seen is `host_files`.
CLAUSES: tuple[str, ...] = tuple(
    dict.fromkeys(
        [*RANGES, "host_files", "host_metadata", "network", "environment", "processes_hidden", "kill", "landlock"]
    )
)
LAYERS: tuple[str, ...] = ("landlock",)
# It travels in one control frame with room for the rest of the request.
MAX_ENV_BYTES = 128 * 1024
DATASET_NAME = r"[A-Za-z0-9_.-]{1,64}"

_DATASET_NAME = re.compile(DATASET_NAME)
_LIVE_TREES = ("/proc", "/sys", "/dev")  # the kernel's own, not data; shown inside they would be a way out


@dataclass(frozen=True, slots=True)
class Dataset:
    """A host file or folder shown read-only inside at `/data/NAME`.

    `name`: 1 to 64 of A-Z a-z 0-9 _ . -, not `.` or `..`. `source`: an absolute path, not `/` nor in the kernel's own
    trees. Whether it exists is seen when a box is opened. Raises `InvalidPolicy`.
    """

    name: str
    source: str

    def __post_init__(self) -> None:
        key = "policy.datasets"
        if not isinstance(self.name, str) or not _DATASET_NAME.fullmatch(self.name) or self.name in (".", ".."):
            raise checks.refusal(key, self.name, "a name of 1 to 64 of A-Z a-z 0-9 _ . - that is not . or ..")
        key = f"{key}.{self.name}"
        source = checks.text(key, self.source, accepted="an absolute path")
        # POSIX keeps a leading double slash; Linux does not tell it from one.
        plain = "/" + posixpath.normpath(source).lstrip("/")
        if not source.startswith("/"):
            raise checks.refusal(key, source, "an absolute path")
        if plain == "/" or (_is_at_or_below(plain, _LIVE_TREES) and not plain.startswith("/dev/shm/")):
            raise checks.refusal(key, source, "a file or folder of data, not / nor anything in /proc, /sys or /dev")


def _is_at_or_below(path: str, trees: tuple[str, ...]) -> bool:
    return any(path == tree or path.startswith(f"{tree}/") for tree in trees)


def checked_env(env: object, *, key: str = "policy.env", error: type[KooiError] = InvalidPolicy) -> Mapping[str, str]:
    """Return an immutable copy of an environment; raise `error` for what no process could be given.

    Names are non-empty without `=`; nothing has a NUL or a lone surrogate; all of it is at most 128 KiB as the kernel
    counts it (`NAME=value` and a NUL each).
    """
    if not isinstance(env, Mapping):
        raise checks.refusal(key, env, "a table of names and texts", error=error)
    total = 0
    for name, value in env.items():
        checks.text(key, name, accepted="a variable name", longest=MAX_ENV_BYTES, error=error)
        if "=" in name:
            raise checks.refusal(key, name, "a variable name without =", error=error)
        if not isinstance(value, str) or "\0" in value or not checks.is_unicode(value):
            accepted = "text (in quotes), valid Unicode without NUL characters"
            raise checks.refusal(f"{key}.{name[:64]}", value, accepted, error=error)
        total += len(name.encode()) + len(value.encode()) + 2
    if total > MAX_ENV_BYTES:
        raise error(f"{key}: {total} bytes given; accepted: at most {MAX_ENV_BYTES} bytes in all", key=key)
    return MappingProxyType({str(name): str(value) for name, value in env.items()})


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy. The default allows nothing: no files, no network, no inherited environment.

    `network` holds allow rules (`kooi.contract.hosts`); empty means nothing is allowed. `waive` names clauses that may
    stay unenforced; `require` names optional layers that must be there ("landlock"); `strict` accepts only clauses that
    the kernel holds. Lists become tuples in canonical order without doubles, `env` a read-only copy. Raises
    `InvalidPolicy` with `key` naming what is not acceptable.
    """

    datasets: tuple[Dataset, ...] = ()
    network: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    waive: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    strict: bool = False

    def __post_init__(self) -> None:
        rules = checks.sequence("policy.network", self.network)
        self._set("datasets", _checked_datasets(self.datasets))
        self._set("network", tuple(sorted({str(parse_rule(rule)) for rule in rules})))
        self._set("env", checked_env(self.env))
        self._set("waive", _names("policy.waive", self.waive, CLAUSES))
        self._set("require", _names("policy.require", self.require, LAYERS))
        checks.flag("policy.strict", self.strict)
        both = [name for name in self.require if name in self.waive]
        if both:
            raise InvalidPolicy(f"policy.waive: {both[0]} is both required and waived", key="policy.waive")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        env = frozenset(self.env.items())
        return hash((self.datasets, self.network, env, self.waive, self.require, self.strict))

    def __reduce__(self) -> tuple[Any, ...]:  # a read-only mapping cannot be pickled or copied itself
        return Policy, (self.datasets, self.network, dict(self.env), self.waive, self.require, self.strict)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Policy:
        """Return the policy of a table; what it does not name keeps its default.

        `datasets` is a table of names and paths or a list of tables with `name` and `source`. Raises `InvalidPolicy`
        for an unknown key, naming the nearest known one.
        """
        given = checks.table("policy", mapping, FIELDS)
        if "datasets" in given:
            given["datasets"] = _datasets(given["datasets"])
        return cls(**given)

    def to_mapping(self) -> dict[str, Any]:
        """Return all fields as plain lists, dicts and values; `from_mapping` gives an equal policy back."""
        return {
            "datasets": [{"name": dataset.name, "source": dataset.source} for dataset in self.datasets],
            "network": list(self.network),
            "env": dict(self.env),
            "waive": list(self.waive),
            "require": list(self.require),
            "strict": self.strict,
        }

    def within(self, ceiling: Policy) -> Policy:
        """Return this policy held to `ceiling`: what `ceiling` requires is added.

        Raises `InvalidPolicy` if it allows a rule, dataset or variable, or waives a clause, that `ceiling` does not.
        """
        allowed = [parse_rule(rule) for rule in ceiling.network]
        for rule in self.network:
            if not any(wider.covers(parse_rule(rule)) for wider in allowed):
                raise _beyond("policy.network", rule, ceiling.network)
        for dataset in self.datasets:
            if dataset not in ceiling.datasets:
                here = f"{dataset.name} = {dataset.source}"
                raise _beyond("policy.datasets", here, [f"{one.name} = {one.source}" for one in ceiling.datasets])
        for name, value in self.env.items():
            if ceiling.env.get(name) != value:
                raise _beyond("policy.env", name, [f"{one} with its own value" for one in ceiling.env])
        for name in self.waive:
            if name not in ceiling.waive:
                raise _beyond("policy.waive", name, ceiling.waive)
        require, strict = self.require + ceiling.require, self.strict or ceiling.strict
        return Policy(self.datasets, self.network, self.env, self.waive, require, strict)


FIELDS: tuple[str, ...] = ("datasets", "network", "env", "waive", "require", "strict")


def _beyond(key: str, given: str, allowed: Collection[str]) -> KooiError:
    most = ", ".join(sorted(allowed)[:8]) + (", ..." if len(allowed) > 8 else "")
    return checks.refusal(key, given, f"what the ceiling allows: {most or 'nothing'}")


def _names(key: str, value: object, known: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({checks.one_of(key, name, known) for name in checks.sequence(key, value)}))


def _checked_datasets(value: object) -> tuple[Dataset, ...]:
    key = "policy.datasets"
    by_name: dict[str, Dataset] = {}
    for dataset in checks.sequence(key, value):
        if not isinstance(dataset, Dataset):
            raise checks.refusal(key, dataset, "a list of Dataset")
        if dataset.name in by_name:
            raise InvalidPolicy(f"{key}.{dataset.name}: given twice; accepted: each name once", key=key)
        by_name[dataset.name] = dataset
    return tuple(by_name[name] for name in sorted(by_name))


def _datasets(value: object) -> tuple[Dataset, ...]:
    key = "policy.datasets"
    if isinstance(value, Mapping):
        return tuple(Dataset(name, source) for name, source in value.items())
    return tuple(_dataset(f"{key}[{index}]", entry) for index, entry in enumerate(checks.sequence(key, value)))


def _dataset(key: str, entry: object) -> Dataset:
    if isinstance(entry, Dataset):
        return entry
    given = checks.table(key, entry, ("name", "source"))
    if len(given) < 2:
        raise InvalidPolicy(f"{key}: accepted: a table with both name and source", key=key)
    return Dataset(**given)
