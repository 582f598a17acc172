from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kooi import settings
from kooi.contract.errors import InvalidPolicy
from kooi.contract.limits import MIB, Limits
from kooi.contract.policy import Dataset, Policy
from kooi.contract.spec import Spec
from kooi.settings import AgentKeys, Settings, agent_keys, host_env, load_settings, load_spec, private_dir

CONFIG = """
level = "process"
preload = ["numpy"]
[limits]
wall_seconds = 5
ttl_seconds = "none"
[policy]
network = ["Example.com:443"]
[policy.datasets]
sales = "/srv/sales.csv"
[policy.env]
LANG = "C.UTF-8"
[settings]
state_dir = "/srv/kooi"
pool_size = 3
uid_base = 2000000000
uid_count = 1000
"""
SPEC = Spec(
    level="process",
    preload=("numpy",),
    limits=Limits(wall_seconds=5.0),
    policy=Policy(
        datasets=(Dataset("sales", "/srv/sales.csv"),), network=("example.com:443",), env={"LANG": "C.UTF-8"}
    ),
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write(tmp_path / "kooi.toml", CONFIG)


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> int:
    """Be an ordinary user, whoever runs the tests."""
    uid = os.geteuid() or 1000
    monkeypatch.setattr("kooi.settings.os.geteuid", lambda: uid)
    return uid


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kooi.settings.os.geteuid", lambda: 0)


@pytest.fixture(autouse=True)
def no_system_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "_SYSTEM_CONFIG", tmp_path / "etc" / "kooi.toml")


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def refused(path: Path, *parts: str) -> InvalidPolicy:
    """Both readers refuse it alike."""
    for read, key in ((load_settings, "config"), (load_spec, "policy")):
        with pytest.raises(InvalidPolicy) as caught:
            read(path)
        assert caught.value.key == key
        assert all(part in str(caught.value) for part in (str(path), *parts)), str(caught.value)
    return caught.value


# --- where settings come from


def test_defaults_of_root(root: None, tmp_path: Path) -> None:
    found = load_settings(
        environ={"HOME": str(tmp_path), "XDG_STATE_HOME": "/x", "XDG_RUNTIME_DIR": "/y"}, subid_files=()
    )
    assert found == Settings(Path("/var/lib/kooi"), Path("/run/kooi"))
    assert (found.uid_base, found.uid_count, found.pool_size, found.blanks_ready) == (1879048192, 1048576, 0, 4)


def test_defaults_of_an_ordinary_user(ordinary: int, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    state = tmp_path / ".local" / "state" / "kooi"
    data = tmp_path / ".local" / "share" / "kooi"
    assert load_settings(environ=home) == Settings(state, state / "run", data)
    assert load_settings(environ={**home, "XDG_DATA_HOME": "/srv/data"}).data_dir == Path("/srv/data/kooi")
    found = load_settings(environ={**home, "XDG_STATE_HOME": "/srv/state"})
    assert (found.state_dir, found.run_dir) == (Path("/srv/state/kooi"), Path("/srv/state/kooi/run"))
    assert load_settings(environ={**home, "XDG_STATE_HOME": "relative"}).state_dir == state


def test_runtime_folder_is_used_only_if_it_is_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    owner = os.stat(tmp_path).st_uid or 1000
    if os.getuid() == 0:
        os.chown(tmp_path, owner, -1)
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    other = tmp_path / ".local" / "state" / "kooi" / "run"
    monkeypatch.setattr("kooi.settings.os.geteuid", lambda: owner)
    assert load_settings(environ=env).run_dir == tmp_path / "kooi"
    assert load_settings(environ={**env, "XDG_RUNTIME_DIR": str(tmp_path / "gone")}).run_dir == other
    assert load_settings(environ={**env, "XDG_RUNTIME_DIR": "relative"}).run_dir == other
    monkeypatch.setattr("kooi.settings.os.geteuid", lambda: owner + 1)
    assert load_settings(environ=env).run_dir == other


def test_search_order(ordinary: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(**env: str) -> tuple[int, Path | None]:
        found = load_settings(environ={"HOME": str(tmp_path / "home"), **env})
        return found.pool_size, found.config_file

    work = write(tmp_path / "work" / "kooi.toml", "[settings]\npool_size = 66")
    monkeypatch.chdir(work.parent)
    assert sizes() == (0, None)  # the working directory is never looked at
    system = write(tmp_path / "etc" / "kooi.toml", "[settings]\npool_size = 1")
    assert sizes() == (1, system)
    user = write(tmp_path / "home" / ".config" / "kooi" / "kooi.toml", "[settings]\npool_size = 2")
    assert sizes() == (2, user)
    xdg = write(tmp_path / "xdg" / "kooi" / "kooi.toml", "[settings]\npool_size = 3")
    assert sizes(XDG_CONFIG_HOME=str(tmp_path / "xdg")) == (3, xdg)
    named = write(tmp_path / "named.toml", "[settings]\npool_size = 4")
    env = {"KOOI_CONFIG": str(named), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    assert sizes(**env) == (4, named)
    assert load_settings(work, environ=env).pool_size == 66
    assert sizes(KOOI_CONFIG="") == (2, user)


def test_a_config_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidPolicy, match="no such file"):
        load_settings(environ={"KOOI_CONFIG": str(tmp_path / "gone.toml")})
    with pytest.raises(InvalidPolicy, match="absolute") as caught:
        load_settings(environ={"KOOI_CONFIG": "kooi.toml"})
    assert caught.value.key == "KOOI_CONFIG"
    refused(tmp_path / "gone.toml", "no such file")
    refused(tmp_path / "a" / "b", "no such file")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    refused(tmp_path / "dangling", "no such file")
    with pytest.raises(InvalidPolicy):
        load_spec("a\0b")
    with pytest.raises(InvalidPolicy):
        load_spec("")


def test_a_broken_link_where_the_config_belongs_is_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "kooi" / "kooi.toml"
    path.parent.mkdir()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidPolicy, match="no such file"):
        load_settings(environ={"XDG_CONFIG_HOME": str(tmp_path)})


# --- what is in it


def test_a_whole_file(config: Path) -> None:
    found = load_settings(config, environ={"KOOI_LEVELS_MUST_WORK": "process, jail"}, subid_files=())
    assert found.spec == SPEC == load_spec(config) == load_spec(str(config))
    assert (found.state_dir, found.pool_size, found.uid_base, found.uid_count) == (
        Path("/srv/kooi"),
        3,
        2 * 10**9,
        1000,
    )
    assert found.config_file == config and found.levels_must_work == ("process", "jail")


@pytest.mark.parametrize(
    ("text", "expected"), [("", False), ("1", True), ("all", True), ("process jail", True), ("process", False)]
)
def test_which_levels_must_work(tmp_path: Path, text: str, expected: bool) -> None:
    path = write(tmp_path / "kooi.toml", "")
    found = load_settings(path, environ={"KOOI_LEVELS_MUST_WORK": text}, subid_files=())
    assert found.must_work("jail") is expected


def test_a_file_with_settings_only_has_no_spec(tmp_path: Path) -> None:
    path = write(tmp_path / "kooi.toml", "[settings]\nblanks_ready = 1\nrun_dir = '/run/other'")
    found = load_settings(path, environ={}, subid_files=())
    assert found.spec is None and found.blanks_ready == 1 and found.run_dir == Path("/run/other")
    assert load_spec(path) == Spec()
    assert load_spec(write(tmp_path / "empty.toml", "")) == Spec()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("levl = 'jail'", "levl"),
        ("[setings]\n", "setings"),
        ("settings = 3", "settings"),
        ("[settings]\npool_sise = 1", "settings.pool_sise"),
        ("[settings]\npool_size = -1", "settings.pool_size"),
        ("[settings]\npool_size = true", "settings.pool_size"),
        ("[settings]\npool_size = 1.0", "settings.pool_size"),
        ("[settings]\npool_memory_bytes = 0", "settings.pool_memory_bytes"),
        ("[settings]\nblanks_ready = '4'", "settings.blanks_ready"),
        ("[settings]\nuid_base = 0", "settings.uid_base"),
        ("[settings]\nuid_base = 4294967295", "settings.uid_base"),
        ("[settings]\nuid_base = 2147483647\nuid_count = 2", "settings.uid_count"),
        ("[settings]\nuid_count = 0", "settings.uid_count"),
        ("[settings]\nstate_dir = 'relative'", "settings.state_dir"),
        ("[settings]\nrun_dir = 3", "settings.run_dir"),
        ("[limits]\nwall_seconds = nan", "limits.wall_seconds"),
        ("[limits]\nwall_seconds = inf", "limits.wall_seconds"),
        ("[limits]\nwall_seconds = 1979-05-27", "limits.wall_seconds"),
        ("[limits]\nmemory_bytes = 5e8", "limits.memory_bytes"),
        ("[policy]\nnetwork = 'a.com'", "policy.network"),
        ("[policy]\nnetwrok = []", "policy.netwrok"),
        ("[[policy.datasets]]\nname = 'a'", "policy.datasets[0]"),
        ("policy = []", "policy"),
        ("level = 3", "level"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path: Path, text: str, key: str) -> None:
    path = write(tmp_path / "kooi.toml", text)
    for read in (load_settings, load_spec):
        with pytest.raises(InvalidPolicy) as caught:
            read(path)
        assert caught.value.key == key and str(caught.value).startswith(f"{path}: {key}")


def test_datasets_as_a_list_of_tables(tmp_path: Path) -> None:
    path = write(tmp_path / "kooi.toml", "[[policy.datasets]]\nname = 'a'\nsource = '/a'")
    assert load_spec(path).policy.datasets == (Dataset("a", "/a"),)


def test_spec_from_a_table() -> None:
    assert load_spec({"limits": {"files": 3}}) == Spec(limits=Limits(files=3))
    with pytest.raises(InvalidPolicy) as caught:
        load_spec({"limit": {}})
    assert caught.value.key == "limit" and "`limits`" in str(caught.value)


def test_a_level_may_be_chosen_but_not_weakened() -> None:
    assert load_spec({}, level="process").level == "process"
    assert load_spec({"level": "jail"}).level == "jail"
    assert load_spec({"level": "jail"}, level="jail").level == "jail"
    assert load_spec({"level": "jail"}, level="microvm").level == "microvm"
    for level in ("process", "confined", "e2b", "other"):
        with pytest.raises(InvalidPolicy) as caught:
            load_spec({"level": "jail"}, level=level)
        assert caught.value.key == "level" and "jail" in str(caught.value)
    with pytest.raises(InvalidPolicy):
        load_spec({}, level="No Level")
    with pytest.raises(InvalidPolicy):
        load_spec({"level": 3}, level="jail")


# --- what is not trusted


@pytest.mark.parametrize("mode", [0o646, 0o666, 0o777, 0o602])
def test_world_writable_is_refused(config: Path, mode: int) -> None:
    config.chmod(mode)
    assert refused(config, "others can write").fix == f"chmod go-w {config}"


def test_group_writable_is_refused_unless_the_group_is_the_users_own(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.chmod(0o664)
    found = config.stat()
    monkeypatch.setattr("kooi.settings.os.getegid", lambda: found.st_gid + 1)
    refused(config, "others can write")
    if found.st_uid == found.st_gid == os.geteuid():
        monkeypatch.setattr("kooi.settings.os.getegid", lambda: found.st_gid)
        assert load_spec(config) == SPEC


def test_a_file_of_somebody_else_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(config, 12345, -1)
    else:
        monkeypatch.setattr("kooi.settings.os.geteuid", lambda: config.stat().st_uid + 1)
    assert "chown" in str(refused(config, "belongs to uid", "not the operator").fix)


def test_a_file_that_anyone_can_replace_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "open" / "sub" / "kooi.toml", CONFIG)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(InvalidPolicy, match="anyone can replace"):
        load_spec(path)
    (tmp_path / "link.toml").symlink_to(path)
    with pytest.raises(InvalidPolicy, match="anyone can replace"):
        load_spec(tmp_path / "link.toml")
    (tmp_path / "open").chmod(0o1777)
    assert load_spec(path) == load_spec(tmp_path / "link.toml") == SPEC


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "not a file")
    os.mkfifo(tmp_path / "fifo")
    refused(tmp_path / "fifo", "not a file")
    refused(Path("/dev/zero"), "not a file")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    refused(tmp_path / "a", "not readable")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_unreadable_is_said(config: Path) -> None:
    config.chmod(0o200)
    refused(config, "not readable")


@pytest.mark.parametrize(
    "data",
    [b"level = ", b"level = 'jail'\nlevel = 'process'", b"\xff", b"a = " + b"9" * 5000, b"{}", b"a=" + b"[" * 50_000],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_not_toml_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "kooi.toml"
    path.write_bytes(data)
    path.chmod(0o644)
    refused(path, "not ")


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "kooi.toml", "#" * (MIB + 1))
    refused(path, "larger than")


# --- ids, keys, folders


@pytest.mark.parametrize(
    ("line", "overlaps"),
    [
        ("bob:100000:65536", False),
        ("bob:1879048191:1", False),
        ("bob:1879048191:2", True),
        ("1000:1880096767:10", True),
        ("bob:1880096768:65536", False),
        ("bob:0:4294967295", True),
        ("bob:1879048200:0", False),
        ("", False),
        ("# bob:1879048192:65536:x", False),
        ("bob:x:65536", False),
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_ids_that_are_given_away_are_not_taken(
    root: None, tmp_path: Path, line: str, overlaps: bool, which: int
) -> None:
    files = (tmp_path / "subuid", tmp_path / "subgid")
    write(files[which], f"alice:165536:65536\n{line}\n")
    if not overlaps:
        load_settings(environ={"HOME": str(tmp_path)}, subid_files=files)
        return
    with pytest.raises(InvalidPolicy) as caught:
        load_settings(environ={"HOME": str(tmp_path)}, subid_files=files)
    owner, first, _ = line.split(":")
    assert caught.value.key == "settings.uid_base"
    assert all(part in str(caught.value) for part in (owner, first, str(files[which]), "1879048192"))


def test_an_ordinary_user_takes_no_ids(ordinary: int, tmp_path: Path) -> None:
    file = write(tmp_path / "subuid", "bob:0:4294967295\n")
    load_settings(environ={"HOME": str(tmp_path)}, subid_files=(file,))


def test_agent_keys() -> None:
    env = {"ANTHROPIC_API_KEY": "sk-secret", "OPENAI_API_KEY": "", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    keys = agent_keys(env)
    assert keys == AgentKeys(anthropic_api_key="sk-secret", openai_base_url="http://127.0.0.1:1/v1")
    assert keys.openai_api_key is None and "secret" not in repr(keys)


def test_the_environment_is_read_at_the_call(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "one")
    monkeypatch.setenv("KOOI_CONFIG", str(config))
    monkeypatch.delenv("NOT_THERE", raising=False)
    assert agent_keys().openai_api_key == "one"
    assert load_settings(subid_files=()).pool_size == 3
    assert host_env("OPENAI_API_KEY", "NOT_THERE") == {"OPENAI_API_KEY": "one"}


def test_private_dir(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        path = private_dir(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    assert private_dir(path) == path and stat.S_IMODE(path.stat().st_mode) == 0o700
    path.chmod(0o750)
    with pytest.raises(InvalidPolicy, match="open to other users"):
        private_dir(path)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "file").write_text("")
    for wrong in ("link", "file", "file/below"):
        with pytest.raises(InvalidPolicy, match=r"not a folder|cannot be made"):
            private_dir(tmp_path / wrong)


def test_a_private_dir_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = private_dir(tmp_path / "a")
    monkeypatch.setattr("kooi.settings.os.geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(InvalidPolicy, match="belongs to uid"):
        private_dir(path)


def test_settings_are_checked_from_python_too() -> None:
    with pytest.raises(InvalidPolicy) as caught:
        Settings(Path("relative"), Path("/run"))
    assert caught.value.key == "settings.state_dir"
    with pytest.raises(AttributeError):
        Settings(Path("/a"), Path("/b")).pool_size = 3  # type: ignore[misc]
