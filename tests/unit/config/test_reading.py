"""Settings from file, environment and flags: which one counts, and all that is wrong in one message."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.config.keys import CLIENT_KEYS, DAEMON_KEYS, INLINE_SECRETS
from nexofork.config.settings import Settings, Surroundings, read_settings
from nexofork.errors import BadSettings, SettingProblem
from nexofork_daemon.settings import DaemonSettings, daemon_settings

if TYPE_CHECKING:
    from pathlib import Path

SEED = "SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ2KFE4PEJUA44CNHTC4"


def read(
    folder: Path,
    text: str | bytes | None = None,
    *,
    flags: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
    credentials: Path | None = None,
    keys: Any = DAEMON_KEYS,
) -> Settings:
    """Read settings as a daemon would."""
    file = None
    if text is not None:
        file = folder / "nexoforkd.toml"
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    around = Surroundings(environment=environment or {}, file=file, credentials=credentials)
    return read_settings(keys, flags or {}, around)


def problems(folder: Path, text: str | bytes | None = None, **more: Any) -> list[str]:
    """What is wrong, without the folder's name."""
    with pytest.raises(BadSettings) as refused:
        read(folder, text, **more)
    return [str(problem).replace(f"{folder}/", "") for problem in refused.value.problems]


def test_flag_before_environment_before_file_before_default(tmp_path: Path) -> None:
    """Each level is used where no higher one says anything, and the source is known."""
    text = "[daemon]\nslots = 2\ndrain_s = 3\nleader_wait_s = 4\n"
    environment = {"NEXOFORK_DAEMON_SLOTS": "5", "NEXOFORK_DAEMON_DRAIN_S": "6"}
    found = read(tmp_path, text, environment=environment, flags={"daemon.slots": "7", "daemon.name": None})

    assert [found[f"daemon.{name}"] for name in ("slots", "drain_s", "leader_wait_s", "lease_s")] == [7, 6.0, 4.0, 15.0]
    sources = [found.by_path[f"daemon.{name}"] for name in ("slots", "drain_s", "leader_wait_s", "lease_s")]
    assert [(one.level, one.source.rpartition("/")[2]) for one in sources] == [
        ("flag", "--slots"),
        ("environment", "NEXOFORK_DAEMON_DRAIN_S"),
        ("file", "nexoforkd.toml"),
        ("default", ""),
    ]


def test_our_own_variable_comes_before_the_common_one(tmp_path: Path) -> None:
    """Both work; an empty one says nothing."""
    common = {"NATS_URL": "nats://a", "NEXOFORK_NATS_URL": ""}
    assert read(tmp_path, environment=common)["nats.url"] == ("nats://a",)
    both = {"NATS_URL": "nats://a", "NEXOFORK_NATS_URL": "nats://b,nats://c"}
    assert read(tmp_path, environment=both)["nats.url"] == ("nats://b", "nats://c")


def test_without_anything_a_daemon_has_its_defaults(tmp_path: Path) -> None:
    """The table of keys and the daemon's own type agree."""
    made, plain = daemon_settings(read(tmp_path)), DaemonSettings()
    for name in DaemonSettings.__dataclass_fields__:
        if name != "instance":
            assert getattr(made, name) == getattr(plain, name), name


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    """File, environment and flags together, each with place, value and what to do."""
    text = '[daemon]\nslots = "16"\nlog_levle = "info"\n[sandbox]\nnetwork = 1\n[natz]\nurl = "x"\n'
    found = problems(
        tmp_path,
        text,
        environment={"NEXOFORK_DAEMON_LEASE_S": "soon"},
        flags={"sandbox.kind": "jail", "nats.pool": "a.b"},
    )

    assert found == [
        "nexoforkd.toml: daemon.slots is '16', which is text. Give a whole number of 1 or more.",
        "nexoforkd.toml: daemon.log_levle is unknown. Did you mean log_level?",
        "nexoforkd.toml: sandbox.network is 1, which is a whole number. Give true or false.",
        "nexoforkd.toml: [natz] is unknown. Did you mean [nats]?",
        "NEXOFORK_DAEMON_LEASE_S is 'soon'. Give a number of seconds of 0.5 or more.",
        "--sandbox is 'jail'. Give one of auto, bwrap, none.",
        "--pool is 'a.b', which cannot be used in a subject. Give letters, digits, - and _.",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[daemon]\nslots = true\n", "daemon.slots is true, which is true or false. Give a whole number"),
        ("[daemon]\nslots = 1.5\n", "daemon.slots is 1.5, which is a number."),
        ("[daemon]\nslots = 0\n", "daemon.slots is 0. Give a whole number of 1 or more."),
        ("[daemon]\nslots = [4]\n", "daemon.slots is [4], which is a list."),
        ("[daemon]\ndrain_s = nan\n", "daemon.drain_s is nan."),
        ("[daemon]\ndrain_s = inf\n", "daemon.drain_s is inf."),
        ("[daemon]\nname = ''\n", "daemon.name is ''. Give some text"),
        ("[daemon]\nname = 2026-11-17\n", "daemon.name is 2026-11-17, which is a date or time."),
        ("[daemon.slots]\nx = 1\n", "daemon.slots is {'x': 1}, which is a section."),
        ("daemon = 5\n", "daemon is a whole number. Write it as a section, [daemon]."),
        ("slots = 5\n", "slots is in no section. It belongs in [daemon]."),
        ("[nats]\nslots = 5\n", "nats.slots is unknown. It belongs in [daemon]."),
        ("[daemon]\nzzz = 5\n", "daemon.zzz is unknown. [daemon] knows allow_root, drain_s"),
        ("[zzz]\n", "[zzz] is unknown. The sections are daemon, nats, provider, sandbox, telemetry, tools, workspace."),
        ("[nats]\nurl = 'http://x'\n", "nats.url is 'http://x', which is not a NATS URL."),
        ("[nats]\nurl = ['nats://a', 7]\n", "nats.url is ['nats://a', 7], which is a whole number."),
        ("[nats]\nurl = 'nats://a:99999'\n", "nats.url"),
        ("[nats]\nurl = []\n", "nats.url is [], which is empty. Give URLs"),
        (
            "[daemon]\nslots = 99999999999999999999\n",
            "daemon.slots is 99999999999999999999, which is more than 100000.",
        ),
        ("[daemon]\nlease_s = 1e300\n", "daemon.lease_s is 1e+300, which is more than 86400."),
        ("[sandbox]\ndisk_mb = 99999999999\n", "sandbox.disk_mb is 99999999999, which is more than 1073741824."),
        (
            "[workspace]\none_mb = 100\nall_mb = 10\n",
            "one workspace may take 100 MB and all of them 10. Give workspace.all_mb at least workspace.one_mb.",
        ),
        ("[workspace]\nall_mb = 10\n", "workspace.all_mb does not go with the other: one workspace may take 8192 MB"),
        (
            "[sandbox]\nread = ['/no/such']\n",
            "sandbox.read is ['/no/such'], which is no absolute path of a folder here.",
        ),
        ("[tools]\nmcp_config = 'missing.json'\n", "which cannot be read (No such file or directory)"),
        ("[daemon]\nslots = many\n", "nexoforkd.toml is not TOML: Invalid value (at line 2, column 9)"),
        ("[daemon\n", "nexoforkd.toml is not TOML"),
        (b"[daemon]\nname = '\xff'\n", "nexoforkd.toml is not UTF-8 text. Save it as UTF-8."),
    ],
)
def test_one_wrong_line_of_the_file(tmp_path: Path, text: str | bytes, words: str) -> None:
    """The message names the key, what it is and what to give."""
    (found,) = problems(tmp_path, text)
    assert words in found


@pytest.mark.parametrize("path", INLINE_SECRETS)
def test_a_secret_in_the_file_is_refused_and_not_shown(tmp_path: Path, path: str) -> None:
    """With the setting that names a file in its place."""
    section, _, name = path.partition(".")
    (found,) = problems(tmp_path, f"[{section}]\n{name} = '{SEED}'\n")
    assert "would put a secret into the settings file" in found
    assert INLINE_SECRETS[path] in found
    assert SEED not in found


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"[nats]\nnkey_file = '{SEED}'\n", SEED),
        ("[provider]\napi_key_file = 'sk-ant-1234567890'\n", "sk-ant-1234567890"),
        ("[nats]\nurl = 'nats://me:pw-81fa@host'\n", "pw-81fa"),
        ("[daemon]\nslots = 'sk-ant-1234567890'\n", "sk-ant-1234567890"),
    ],
)
def test_a_secret_in_the_wrong_place_is_not_shown(tmp_path: Path, text: str, secret: str) -> None:
    """A key where a path belongs, a password in a URL."""
    (found,) = problems(tmp_path, text)
    assert secret not in found
    assert "secret" in found or "password" in found


def test_a_missing_file_that_was_named_is_said(tmp_path: Path) -> None:
    """So is a folder in its place."""
    for file, why in ((tmp_path / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(BadSettings, match=f"cannot be read \\({why}"):
            read_settings(DAEMON_KEYS, {}, Surroundings(environment={}, file=file))


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    """Wherever the daemon was started."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/seed").write_text(SEED)
    found = read(tmp_path, "[nats]\nnkey_file = 'keys/seed'\n")
    assert found["nats.nkey_file"] == tmp_path / "keys/seed"


def test_a_credential_of_systemd_stands_in(tmp_path: Path) -> None:
    """Where nothing else is said; what is said comes first."""
    (tmp_path / "anthropic_api_key").write_text("k")
    (tmp_path / "other").write_text("k")
    found = read(tmp_path, credentials=tmp_path)
    assert (found["provider.api_key_file"], found.by_path["provider.api_key_file"].level) == (
        tmp_path / "anthropic_api_key",
        "credential",
    )
    assert found["nats.nkey_file"] is None
    named = read(tmp_path, "[provider]\napi_key_file = 'other'\n", credentials=tmp_path)
    assert named["provider.api_key_file"] == tmp_path / "other"


def test_a_file_that_everybody_can_read_is_warned_of(tmp_path: Path) -> None:
    """With the command that closes it; a closed one is not."""
    seed = tmp_path / "seed"
    seed.write_text(SEED)
    seed.chmod(0o644)
    text = "[nats]\nnkey_file = 'seed'\n"
    (warning,) = read(tmp_path, text).warnings
    assert warning == f"{seed} (nats.nkey_file) can be read by every user. Run: chmod 600 {seed}."
    seed.chmod(0o600)
    assert read(tmp_path, text).warnings == ()


def test_two_identities_at_one_level_are_one_too_many(tmp_path: Path) -> None:
    """At different levels the higher one stands, so that a flag can be another role for once."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(SEED)
        (tmp_path / name).chmod(0o600)
    (found,) = problems(tmp_path, "[nats]\nnkey_file = 'a'\ncreds_file = 'b'\n")
    assert "both say who you are. Give one of them." in found
    chosen = read(tmp_path, "[nats]\nnkey_file = 'a'\n", flags={"nats.creds_file": str(tmp_path / "b")})
    assert (chosen["nats.nkey_file"], chosen["nats.creds_file"]) == (None, tmp_path / "b")


def test_a_misspelt_variable_is_warned_of(tmp_path: Path) -> None:
    """Not refused: orchestrators make such names themselves."""
    (warning,) = read(tmp_path, environment={"NEXOFORK_DAEMON_SLOT": "4"}).warnings
    assert warning == "NEXOFORK_DAEMON_SLOT is no setting of ours and is ignored. Did you mean NEXOFORK_DAEMON_SLOTS?"


def test_commands_know_less_than_daemons(tmp_path: Path) -> None:
    """A daemon's section in a user's file is unknown there."""
    (found,) = problems(tmp_path, "[daemon]\nslots = 4\n", keys=CLIENT_KEYS)
    assert "[daemon] is unknown" in found


def test_an_unreadable_credential_is_said(tmp_path: Path) -> None:
    """With the user who cannot read it: here one who is not root."""
    seed = tmp_path / "seed"
    seed.write_text(SEED)
    seed.chmod(0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        (found,) = problems(tmp_path, environment={"NEXOFORK_NATS_NKEY_FILE": str(seed)})
        assert f"cannot be read as user {os.geteuid()} (Permission denied)" in found
    finally:
        os.seteuid(was)


_SCALARS = st.one_of(st.booleans(), st.integers(), st.floats(), st.text("aä\n'\"/:.-0", max_size=12))


@given(
    text=st.dictionaries(
        st.sampled_from([key.path for key in DAEMON_KEYS]), st.one_of(_SCALARS, st.lists(_SCALARS, max_size=3))
    )
)
def test_no_value_crashes_the_reading(tmp_path_factory: pytest.TempPathFactory, text: dict[str, Any]) -> None:
    """Whatever TOML holds is taken or refused in words."""
    folder = tmp_path_factory.getbasetemp()
    file = folder / "any.toml"
    lines = [f"{path} = {_toml(value)}" for path, value in text.items()]
    file.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    assert all(problem.fix for problem in outcome(Surroundings(environment={}, file=file)))


@given(
    environment=st.dictionaries(
        st.sampled_from([key.variable for key in DAEMON_KEYS]), st.text("aä\n'\"/:.-0,@", max_size=12)
    )
)
def test_no_variable_crashes_the_reading(environment: dict[str, str]) -> None:
    """Text of any kind is taken or refused in words."""
    assert all(problem.fix for problem in outcome(Surroundings(environment=environment)))


def outcome(around: Surroundings) -> tuple[SettingProblem, ...]:
    """What is wrong, which may be nothing."""
    try:
        read_settings(DAEMON_KEYS, {}, around)
    except BadSettings as exc:
        return exc.problems
    return ()


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(char):08x}" for char in value if not 0xD800 <= ord(char) <= 0xDFFF) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)
