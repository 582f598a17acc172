"""What the operator set for this host: the only reader of the environment and of `kooi.toml`.

A `kooi.toml` may hold a spec (`level`, `image`, `preload`, `fresh`, `[policy]`, `[limits]`) and `[settings]`. It is
read only from where the operator said: a path passed in, `$KOOI_CONFIG`, the user's configuration folder, `/etc/kooi`;
never because it lies in the working directory, where code that was run before could have put it. What someone else
could have written is refused. Everything is read when a function is called, nothing at import.
"""

from __future__ import annotations

import importlib
import os
import pwd
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kooi.contract import checks
from kooi.contract.errors import InvalidPolicy, KooiError
from kooi.contract.limits import MAX_BYTES, MIB
from kooi.contract.spec import FIELDS as SPEC_KEYS
from kooi.contract.spec import Spec, level_within

MAX_CONFIG_BYTES = 1 * MIB
SETTINGS_KEYS = (
    "state_dir", "run_dir", "data_dir", "uid_base", "uid_count", "pool_size", "pool_memory_bytes", "blanks_ready",
    "container_engine", "docker_socket",
)  # fmt: skip
CONTAINER_ENGINES = ("auto", "crun", "runc", "docker", "podman")
SUBID_FILES = (Path("/etc/subuid"), Path("/etc/subgid"))
UID_BASE = 1_879_048_192  # just above what systemd gives to containers
UID_COUNT = 1_048_576

_EVERY_LEVEL = "all"
_SYSTEM_CONFIG = Path("/etc/kooi/kooi.toml")
_LOWEST_UID = 65_536  # below are people, services and nobody
_SUBID = re.compile(r"([^:]+):([0-9]{1,10}):([0-9]{1,10})")
_HIGHEST_UID = 2**31 - 1  # beyond it some software reads a negative number


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's settings. `config_file` is where they came from, None if there was no file.

    `state_dir` outlives a reboot, `run_dir` does not, `data_dir` (None: `state_dir`) holds the images; make them with
    `private_dir`. `uid_base` and `uid_count` are the
    ids that boxes get as root. `pool_size`: ready boxes kept, 0 is no pool, within `pool_memory_bytes`. `blanks_ready`:
    blanks a zygote keeps. `container_engine`: what starts containers, "auto" for the first that works; `docker_socket`:
    where Docker's engine listens. `spec`: that of the configuration file, None if it has none.
    `levels_must_work`: levels whose
    absence is an error and no reason to skip a test; "all" means every one, see `must_work`.
    """

    state_dir: Path
    run_dir: Path
    data_dir: Path | None = None
    config_file: Path | None = None
    uid_base: int = UID_BASE
    uid_count: int = UID_COUNT
    pool_size: int = 0
    pool_memory_bytes: int = 512 * MIB
    blanks_ready: int = 4
    container_engine: str = "auto"
    docker_socket: Path = Path("/var/run/docker.sock")
    spec: Spec | None = None
    levels_must_work: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.data_dir is None:
            object.__setattr__(self, "data_dir", self.state_dir)
        for name in ("state_dir", "run_dir", "data_dir"):
            object.__setattr__(self, name, _absolute(f"settings.{name}", getattr(self, name)))
        checks.whole("settings.uid_base", self.uid_base, _LOWEST_UID, _HIGHEST_UID)
        checks.whole("settings.uid_count", self.uid_count, 2, _HIGHEST_UID + 1 - self.uid_base)
        checks.whole("settings.pool_size", self.pool_size, 0, 100_000)
        checks.whole("settings.pool_memory_bytes", self.pool_memory_bytes, MIB, MAX_BYTES, unit="bytes")
        checks.whole("settings.blanks_ready", self.blanks_ready, 0, 1024)
        if self.container_engine not in CONTAINER_ENGINES:
            accepted = f"one of {', '.join(CONTAINER_ENGINES)}"
            raise checks.refusal("settings.container_engine", self.container_engine, accepted)
        object.__setattr__(self, "docker_socket", _absolute("settings.docker_socket", self.docker_socket))

    def must_work(self, level: str) -> bool:
        """Say whether the absence of `level` is an error."""
        return _EVERY_LEVEL in self.levels_must_work or level in self.levels_must_work


@dataclass(frozen=True, slots=True)
class AgentKeys:
    """Where a model is reached and with what; the keys are not shown by `repr`."""

    anthropic_api_key: str | None = field(default=None, repr=False)
    openai_api_key: str | None = field(default=None, repr=False)
    anthropic_base_url: str | None = None
    openai_base_url: str | None = None


def load_settings(
    config: str | os.PathLike[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    subid_files: tuple[Path, ...] = SUBID_FILES,
) -> Settings:
    """Return the settings of this host and user; reads, makes nothing.

    `config` is a `kooi.toml`; by default `$KOOI_CONFIG`, else `$XDG_CONFIG_HOME/kooi/kooi.toml`, else
    `/etc/kooi/kooi.toml`, of which the last two need not exist. Raises `InvalidPolicy` for a file that is missing,
    unreadable, not TOML or not only the operator's, for a wrong value, and as root for a uid range that overlaps one in
    `/etc/subuid` or `/etc/subgid`.
    """
    env = os.environ if environ is None else environ
    path = _config_path(config, env)
    document = {} if path is None else _read_toml(path, "config")
    try:
        given = _settings_table(document)
        given["state_dir"] = _absolute("settings.state_dir", given.get("state_dir", _state_dir(env)))
        given.setdefault("run_dir", _run_dir(env, given["state_dir"]))
        given.setdefault("data_dir", _data_dir(env))
        spec = {key: document[key] for key in SPEC_KEYS if key in document}
        settings = Settings(
            config_file=path,
            spec=Spec.from_mapping(spec) if spec else None,
            levels_must_work=_levels(env.get("KOOI_LEVELS_MUST_WORK", "")),
            **given,
        )
    except InvalidPolicy as error:
        raise error if path is None else _in_file(path, error)
    if os.geteuid() == 0:
        _refuse_overlap(settings.uid_base, settings.uid_count, subid_files)
    return settings


def load_spec(source: str | os.PathLike[str] | Mapping[str, Any], *, level: str | None = None) -> Spec:
    """Return the spec of a `kooi.toml` (a path, relative to the working directory) or of a table like it.

    `level` is used where the source names none, and may be stronger than the one it names. Raises `InvalidPolicy` as
    `load_settings` does, and for a weaker `level`. `[settings]` is checked, but only `load_settings` uses it.
    """
    if isinstance(source, Mapping):
        return _spec(source, level)
    path = Path(checks.text("policy", os.fspath(source), accepted="a path"))
    document = _read_toml(path, "policy")
    try:
        return _spec(document, level)
    except InvalidPolicy as error:
        raise _in_file(path, error)


def agent_keys(environ: Mapping[str, str] | None = None) -> AgentKeys:
    """Return the model keys and addresses of the environment; empty ones count as absent."""
    env = os.environ if environ is None else environ
    names = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL")
    return AgentKeys(**{name.lower(): env.get(name) or None for name in names})


def host_env(*names: str) -> dict[str, str]:
    """Return those of the named variables that the host's environment has: an allow list, never all of it."""
    return {name: os.environ[name] for name in names if name in os.environ}


def private_dir(path: Path) -> Path:
    """Make a folder (and its parents) that only this user may enter, mode 0700, and return it.

    Raises `InvalidPolicy` if something else is there: a link, a file, or a folder of another user or open to others.
    """
    key = "settings"
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise InvalidPolicy(f"{path}: cannot be made: {error.strerror}", key=key, fix="set another in [settings]")
    if not stat.S_ISDIR(found.st_mode):
        raise InvalidPolicy(f"{path}: not a folder", key=key, fix="move it away")
    if found.st_uid != os.geteuid():
        raise InvalidPolicy(f"{path}: belongs to uid {found.st_uid}, not to {os.geteuid()}", key=key)
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise InvalidPolicy(f"{path}: open to other users", key=key, fix=f"chmod 0700 {path}")
    return path


# --- where things are


def _config_path(config: str | os.PathLike[str] | None, env: Mapping[str, str]) -> Path | None:
    if config is not None:
        return Path(checks.text("config", os.fspath(config), accepted="a path"))
    if env.get("KOOI_CONFIG"):
        return _absolute("KOOI_CONFIG", env["KOOI_CONFIG"])
    for path in (_xdg(env, "XDG_CONFIG_HOME", ".config") / "kooi" / "kooi.toml", _SYSTEM_CONFIG):
        if os.path.lexists(path):
            return path
    return None


def _state_dir(env: Mapping[str, str]) -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/kooi")
    return _xdg(env, "XDG_STATE_HOME", ".local/state") / "kooi"


def _data_dir(env: Mapping[str, str]) -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/kooi")
    return _xdg(env, "XDG_DATA_HOME", ".local/share") / "kooi"


def _run_dir(env: Mapping[str, str], state_dir: Path) -> Path:
    if os.geteuid() == 0:
        return Path("/run/kooi")
    given = env.get("XDG_RUNTIME_DIR", "")
    if given.startswith("/"):
        try:
            # It may name another user's folder (after su) or none (in a container): then ours is used.
            if os.stat(given).st_uid == os.geteuid():
                return Path(given) / "kooi"
        except OSError:
            pass
    run_dir = state_dir / "run"
    # In a container the file system is often read-only, and the id has no home.
    return run_dir if _can_be_made(run_dir) else Path(f"/tmp/kooi-{os.geteuid()}")


def _can_be_made(path: Path) -> bool:
    """Say whether a folder is there or its nearest parent that is can be written to."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    return os.access(there, os.W_OK | os.X_OK)


def _xdg(env: Mapping[str, str], name: str, default: str) -> Path:
    if env.get(name, "").startswith("/"):  # a relative one is to be ignored, says the specification
        return Path(env[name])
    return _home(env) / default


def _home(env: Mapping[str, str]) -> Path:
    home = env.get("HOME", "")
    if home.startswith("/"):
        return Path(home)
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return Path("/nonexistent")  # an id without an account: no configuration, and `private_dir` will say why


def _absolute(key: str, value: object) -> Path:
    path = checks.text(key, os.fspath(value) if isinstance(value, os.PathLike) else value, accepted="an absolute path")
    if not path.startswith("/"):
        raise checks.refusal(key, path, "an absolute path")
    return Path(path)


def _levels(text: str) -> tuple[str, ...]:
    """Return the level names in `text`, with commas or spaces; 1 is another way to say all."""
    return tuple(_EVERY_LEVEL if word == "1" else word for word in text.replace(",", " ").split())


# --- reading a file that only the operator can have written


def _read_toml(path: Path, key: str) -> dict[str, Any]:
    data = _read_trusted(path, key)
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        document: dict[str, Any] = toml.loads(data.decode("utf-8"))
        return document
    except UnicodeDecodeError as error:
        raise InvalidPolicy(f"{path}: not UTF-8 at byte {error.start}", key=key)
    except (ValueError, RecursionError) as error:
        raise InvalidPolicy(f"{path}: not TOML: {error}", key=key)


def _read_trusted(path: Path, key: str) -> bytes:
    try:
        real = path.resolve(strict=True)
        for folder in real.parents:
            _refuse_writable_folder(folder, folder.stat(), key)
        # Opened before it is looked at, so that what was looked at is what is read; a FIFO must not block.
        fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            _refuse_untrusted_file(path, os.fstat(fd), key)
            data = os.read(fd, MAX_CONFIG_BYTES + 1)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise InvalidPolicy(f"{path}: no such file", key=key)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        raise InvalidPolicy(f"{path}: not readable: {getattr(error, 'strerror', None) or error}", key=key)
    if len(data) > MAX_CONFIG_BYTES:
        raise InvalidPolicy(f"{path}: larger than {MAX_CONFIG_BYTES} bytes", key=key)
    return data


def _refuse_writable_folder(folder: Path, found: os.stat_result, key: str) -> None:
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        fix = f"chmod o-w {folder}"
        raise InvalidPolicy(f"{folder}: anyone can replace what is in this folder", key=key, fix=fix)


def _refuse_untrusted_file(path: Path, found: os.stat_result, key: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise InvalidPolicy(f"{path}: not a file", key=key)
    user = os.geteuid()
    if found.st_uid not in (0, user):
        fix = f"chown it to uid {user}" + ("" if user == 0 else " or to root")
        raise InvalidPolicy(f"{path}: belongs to uid {found.st_uid}, who is not the operator", key=key, fix=fix)
    # Many distributions give each user a group of the same number, and a umask that lets it write.
    own_group = found.st_gid == user == os.getegid()
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not own_group):
        raise InvalidPolicy(f"{path}: others can write it", key=key, fix=f"chmod go-w {path}")


def _settings_table(document: Mapping[str, Any]) -> dict[str, Any]:
    checks.table("", document, (*SPEC_KEYS, "settings"))
    return checks.table("settings", document.get("settings", {}), SETTINGS_KEYS)


def _spec(document: Mapping[str, Any], level: str | None) -> Spec:
    # Not used here, but a mistake in it is not passed over.
    Settings(**{"state_dir": Path("/"), "run_dir": Path("/"), **_settings_table(document)})
    fields = {key: document[key] for key in SPEC_KEYS if key in document}
    if level is not None:
        named = Spec.from_mapping(fields).level if "level" in fields else level
        if not level_within(level, named):
            raise checks.refusal("level", level, f"{named}, as the policy says, or a stronger level")
        fields["level"] = level
    return Spec.from_mapping(fields)


def _in_file(path: Path, error: KooiError) -> KooiError:
    return InvalidPolicy(f"{path}: {error.message}", key=error.key, fix=error.fix)


# --- the ids that boxes get


def _refuse_overlap(base: int, count: int, files: tuple[Path, ...]) -> None:
    for file in files:
        for owner, first, length in _subids(file):
            if max(first, base) < min(first + length, base + count):
                raise InvalidPolicy(
                    f"settings.uid_base: ids {base} to {base + count - 1} overlap {first} to {first + length - 1}, "
                    f"which {file} gives to {owner}",
                    key="settings.uid_base",
                    fix="choose another uid_base or uid_count in [settings]",
                )


def _subids(file: Path) -> list[tuple[str, int, int]]:
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InvalidPolicy(f"{file}: not readable: {error.strerror}", key="settings.uid_base")
    # Lines that are not of this form are ignored by the tools that hand the ids out, too.
    found = [match for line in lines if (match := _SUBID.fullmatch(line.strip()))]
    return [(match[1], int(match[2]), int(match[3])) for match in found]
