"""Configuration of `cablestore serve`: options, environment and file, their precedence, and rejected values."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import click
import pytest
from documents import blocks
from folders import ROOT
from hypothesis import assume, given
from hypothesis import strategies as st
from serving import HERE, KEY, OTHER_KEY, Served, cablestore

from cablestore import CableStore, limits
from cablestore.cli import serve as service
from cablestore.cli.serve_plan import ServePlan
from cablestore.cli.settings_file import config_keys
from cablestore.moderation import Seed, UserRole
from cablestore.peers import Address, Invitation, NodeSettings
from cablestore.peers.policy import parse_policy
from cablestore.protocol.secure_channel import PROLOGUE

Command = Callable[..., tuple[int, str, str]]


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cablestore.toml"
    path.write_text(text)
    return path


def test_the_example_settings_of_the_service_are_accepted(
    tmp_path: Path, run: Command, plans: list[ServePlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings that are comments there are accepted too."""
    monkeypatch.setenv("CABLESTORE_SERVE_CABAL_KEY", KEY)  # the unit passes it
    (tmp_path / "seed").write_text(Seed(((bytes(32), UserRole.ADMIN),), 0).write().hex())
    example = (ROOT / "deploy" / "serve.toml").read_text()
    service = (ROOT / "deploy" / "cablestore.service").read_text()
    assert "--config /etc/cablestore/serve.toml" in service
    complete = re.sub(r"^# (?=[a-z-]+ = )", "", example, flags=re.MULTILINE)
    for text in (example, complete.replace("/etc/cablestore/seed", str(tmp_path / "seed"))):
        file = toml(tmp_path, text.replace("/var/lib/cablestore", str(tmp_path)))
        assert run("serve", "--config", file) == (0, "", "")
    first, second = plans
    assert first.listen == (Address("0.0.0.0", 13333), Address("::", 13333))
    assert first.settings.window_ms is None
    assert second.settings.window_ms == 52 * 7 * 86_400_000
    assert second.connect == (Address("peer.example", 13333),)


def test_options_override_the_environment_which_overrides_the_file(
    tmp_path: Path, run: Command, plans: list[ServePlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = toml(
        tmp_path,
        f'[serve]\nstore = "{tmp_path / "store"}"\ncreate = true\nlisten = ["1.1.1.1:1"]\nmax-peers = 11\n'
        f'idle-timeout = "11s"\nfollow = false\ncabal-key = "{KEY}"\nchannels = ["of the file"]\n',
    )
    assert run("serve", "--config", file) == (0, "", "")
    assert (tmp_path / "store" / "STORE").exists()
    for name, value in {
        "CABLESTORE_CONFIG": str(file),
        "CABLESTORE_SERVE_LISTEN": "2.2.2.2:2  [::2]:2",
        "CABLESTORE_SERVE_MAX_PEERS": "22",
        "CABLESTORE_SERVE_FOLLOW": "1",
        "CABLESTORE_SERVE_CABAL_KEY": OTHER_KEY,
    }.items():
        monkeypatch.setenv(name, value)
    assert run("serve")[0] == 0
    assert run("serve", "--listen", "3.3.3.3:3", "--max-peers", "33", "--window", "1w", "--channels", "a b")[0] == 0
    first, second, third = plans
    assert first.listen == (Address("1.1.1.1", 1),)
    assert second.listen == (Address("2.2.2.2", 2), Address("::2", 2))
    assert third.listen == (Address("3.3.3.3", 3),)
    assert [plan.settings.max_peers for plan in plans] == [11, 22, 33]
    assert [plan.settings.idle_timeout_s for plan in plans] == [11, 11, 11]
    assert [plan.settings.cabal_key for plan in plans] == [bytes.fromhex(key) for key in (KEY, OTHER_KEY, OTHER_KEY)]
    assert [plan.settings.channels for plan in plans] == [frozenset(), {"of the file"}, {"a b"}]
    assert [plan.settings.window_ms for plan in plans] == [None, None, 7 * 86_400_000]


def test_settings_without_options_are_the_defaults_of_a_node(
    tmp_path: Path, run: Command, plans: list[ServePlan]
) -> None:
    assert run("serve", "--create", "-s", tmp_path / "store", "--connect", "peer.example:1")[0] == 0
    [plan] = plans
    assert plan == ServePlan(NodeSettings(), (), (Address("peer.example", 1),), None)
    assert plan.settings.prologue == PROLOGUE
    assert plan.settings.max_handshakes == limits.MAX_HANDSHAKES


def test_the_file_of_the_documents_sets_every_key_to_its_default(
    tmp_path: Path, run: Command, plans: list[ServePlan]
) -> None:
    text, policy, _ = blocks("docs/reference/settings.md", "toml")
    assert parse_policy(policy).has_rules
    (tmp_path / "policy.toml").write_text(policy)
    text = text.replace("/etc/cablestore/policy.toml", str(tmp_path / "policy.toml"))
    text = text.replace("/usr/local/bin/judge", sys.executable)
    assert set(tomllib.loads(text)["serve"]) == set(config_keys(service.serve))
    (tmp_path / "key").write_text(KEY)
    text = text.replace("/etc/cablestore/cabal-key", str(tmp_path / "key"))
    seed = bytes([UserRole.ADMIN, *bytes(32)])
    (tmp_path / "seed").write_bytes(seed)
    (tmp_path / "invitation").write_text(str(Invitation(bytes.fromhex(KEY), (Address("another.example", 1),), seed)))
    text = text.replace("/etc/cablestore/invitation", str(tmp_path / "invitation"))
    (tmp_path / "token").write_text("a-token-of-this-test")
    text = text.replace("/etc/cablestore/token", str(tmp_path / "token"))
    text = text.replace("/etc/cablestore/seed", str(tmp_path / "seed"))
    file = toml(tmp_path, text.replace("/var/lib/cablestore/store", str(tmp_path / "store")))
    with CableStore.open(tmp_path / "store"):
        pass
    assert run("serve", "--config", file) == (0, "", "")
    with CableStore.open(tmp_path / "store") as store:
        assert store.moderation.decisions is not None
        assert store.moderation.decisions.users_with(UserRole.ADMIN) == [bytes(32)]
    [plan] = plans
    defaults = NodeSettings()
    for name in ("prologue", "relays", "max_peers", "max_handshakes", "idle_timeout_s", "list_every_s", "rows_per_s"):
        assert getattr(plan.settings, name) == getattr(defaults, name)
    assert plan.settings.max_queued_total_size_bytes == defaults.max_queued_total_size_bytes


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "missing address"),
        (["--listen", "nonsense:port"], "is not an address"),
        (["--listen", "127.0.0.1:65536"], "is not an address"),
        (["--listen", ":1"], "is not an address"),
        (["--listen", f"{'a' * 64}.example:1"], "invalid host name"),
        (["--listen", "a..b:1"], "invalid host name"),
        (["--connect", "peer.example:0"], "cannot connect to port 0"),
        (["--connect", "peer.example:-1"], "is not an address"),
        (["--listen", HERE, "--metrics", "x:y"], "is not an address"),
        (["--listen", HERE, "--cabal-key", KEY[:-1]], "invalid cabal key: expected 64 hex digits, got 63 characters"),
        (["--listen", HERE, "--cabal-key", "secret" * 20], "invalid cabal key: expected 64 hex digits"),
        (["--listen", HERE, "--cabal-key", "@/nowhere/at/all"], "cannot read the cabal key from /nowhere/at/all"),
        (["--listen", HERE, "--cabal-key", f"@{__file__}"], "cabal key"),
        (["--listen", HERE, "--channels", ""], "expected 1 to 64 code points, got 0"),
        (["--listen", HERE, "--channels", "x" * 65], "expected 1 to 64 code points, got 65"),
        (["--listen", HERE, "--channels", "\udcff"], "is not UTF-8"),
        (["--listen", HERE, "--prologue", "\udcff"], "is not UTF-8"),
        (["--listen", HERE, "--window", "long"], "invalid duration"),
        (["--listen", HERE, "--window", "0s"], "invalid duration"),
        (["--listen", HERE, "--window", "9" * 5000 + "y"], "invalid duration"),
        (["--listen", HERE, "--window", "999999999999y"], "invalid duration"),
        (["--listen", HERE, "--idle-timeout", "10"], "invalid duration"),
        (["--listen", HERE, "--max-peers", "0"], "0 is not in the range"),
        (["--listen", HERE, "--max-peers-per-address", "many"], "is not a valid integer"),
        (["--listen", HERE, "--max-handshakes", "0"], "0 is not in the range"),
        (["--listen", HERE, "--rows-per-s", "0"], "0 is not in the range"),
        (["--listen", HERE, "--rows-in-advance", "0"], "0 is not in the range"),
        (["--listen", HERE, "--list-every", ""], "invalid duration"),
        (["--listen", HERE, "--max-queued-size", "1"], "1 is not in the range"),
        (["--listen", HERE, "--log-format", "xml"], "'xml' is not one of"),
        (["--listen", HERE, "--log-level", "loud"], "'loud' is not one of"),
        (["--config", "/nowhere/at/all"], "cannot read /nowhere/at/all: "),
    ],
)
def test_bad_values_result_in_status_2_before_the_store_is_opened(
    tmp_path: Path, run: Command, arguments: list[str], reason: str, plans: list[ServePlan]
) -> None:
    status, out, err = run("serve", "--create", "-s", tmp_path / "store", *arguments)
    assert (status, out, plans) == (2, "", [])
    assert reason in err
    assert "Traceback" not in err
    assert "secret" not in err
    assert KEY[:-1] not in err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("listen = [", "cannot read"),
        ('listen = ["a:1"]', "expected only a table [serve], got listen"),
        ("serve = 1", "expected only a table [serve]"),
        ("[server]", "expected only a table [serve], got server"),
        (
            '[serve]\nlistn = ["a:1"]\nmax_peers = 3',
            ": listn, max_peers. Did you mean listen, max-peers? Known settings: backup-every, ",
        ),
        ('[serve]\nlisten = "a:1"', 'invalid listen = "a:1": expected an array of strings'),
        ("[serve]\nlisten = [1]", "invalid listen = [1]: expected an array of strings"),
        ('[serve]\nlisten = ["a:b"]', """invalid listen = ["a:b"]: 'a:b' is not an address"""),
        ('[serve]\nmax-peers = "3"', 'invalid max-peers = "3": expected a whole number, at least 1'),
        ("[serve]\nmax-peers = true", "invalid max-peers = true: expected a whole number, at least 1"),
        ("[serve]\nmax-peers = 0", "invalid max-peers = 0: expected a whole number, at least 1"),
        ('[serve]\nfollow = "no"', 'invalid follow = "no": expected true or false'),
        ("[serve]\nidle-timeout = 600", 'invalid idle-timeout = 600: expected a duration in quotes, such as "10m"'),
        ("[serve]\ncabal-key = 12", "invalid cabal-key = a secret value: expected a string in quotes"),
        (
            '[serve]\ncabal-key = "secret"',
            "invalid cabal-key = a secret value: invalid cabal key: expected 64 hex digits",
        ),
        ('[serve]\nlog-level = "loud"', """invalid log-level = "loud": 'loud' is not one of"""),
        ("[serve]\nlog-level = 3", 'invalid log-level = 3: expected "debug" or "info" or "warning" or "error"'),
        ('[serve]\nconfig = "x"', ": config. Known settings:"),
        ("[serve]\nmax_peers = 3", ": max_peers. Did you mean max-peers? Known settings: backup-every, "),
        (
            '[serve]\nchannels = ["a", ""]',
            'invalid channels = ["a", ""]: invalid channel name: expected 1 to 64 code points, got 0',
        ),
        ('[serve]\nchannels = ["a\\u0000b"]', r'invalid channels = ["a\u0000b"]: it must not contain NUL characters'),
        ('[serve]\nstore = "a\\u0000b"', r'invalid store = "a\u0000b": it must not contain NUL characters'),
        ('[serve]\nlisten = ["a\\u0000b:1"]', r'invalid listen = ["a\u0000b:1"]: it must not contain NUL characters'),
        (f"serve = {'[' * 100_000}", "cannot read"),
    ],
)
def test_bad_files_result_in_status_2_before_the_store_is_opened(
    tmp_path: Path, run: Command, text: str, reason: str, plans: list[ServePlan]
) -> None:
    status, out, err = run(
        "serve", "--create", "-s", tmp_path / "store", "--listen", HERE, "--config", toml(tmp_path, text)
    )
    assert (status, out, plans) == (2, "", [])
    assert reason in err
    assert err.startswith("cablestore: ")
    assert err.count("\n") == 1
    assert '"secret"' not in err
    assert not (tmp_path / "store").exists()


KEYS = config_keys(service.serve)
ANY_TEXT = ("backup-to", "store", "inspect-token", "invitation", "policy", "prologue")
"""Keys whose value may be any text."""
RIGHT_TYPES = {"array": list, "flag": bool, "number": int, "text": str}
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(st.characters(codec="utf-8"), max_size=80),
    st.datetimes(),
    st.lists(st.one_of(st.text(max_size=9), st.integers(), st.booleans()), max_size=3),
    st.dictionaries(st.sampled_from("ab"), st.integers(), max_size=2),
)


def type_of(key: str) -> str:
    option = KEYS[key]
    if option.multiple:
        return "array"
    return "flag" if option.is_flag else "number" if isinstance(option.type, click.IntRange) else "text"


def written(value: object) -> str:
    """Return a value in TOML."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(written, value))}]"
        case dict():
            return f"{{{', '.join(f'{key} = {written(each)}' for key, each in value.items())}}}"
        case datetime():
            return value.isoformat()
    return str(value)


@given(st.sampled_from(sorted(KEYS)), VALUES)
def test_each_key_rejects_a_value_of_another_type_in_one_line(run: Command, key: str, value: object) -> None:
    """The line has the key, the value unless it is secret, and the allowed values."""
    is_right = type(value) is RIGHT_TYPES[type_of(key)]
    assume(not is_right or (isinstance(value, list) and not all(isinstance(each, str) for each in value)))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "serve.toml"
        path.write_text(f"[serve]\n{key} = {written(value)}\n")
        status, out, err = run("serve", "--create", "-s", Path(folder) / "store", "--listen", HERE, "--config", path)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("cablestore: ")
        if "cannot read" not in err:  # a number that is too long for TOML
            assert err.startswith(f"cablestore: {path}: invalid {key} = ")
            assert ": expected " in err
        assert [each.name for each in Path(folder).iterdir()] == ["serve.toml"]


@given(st.sampled_from(sorted(key for key in KEYS if type_of(key) == "number")), st.integers(-(2**70), 2**70))
def test_each_number_out_of_range_is_reported_in_one_line(run: Command, key: str, value: int) -> None:
    least = cast(click.IntRange, KEYS[key].type).min
    assert least is not None
    assume(not least <= value <= sys.maxsize)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "serve.toml"
        path.write_text(f"[serve]\n{key} = {value}\n")
        status, out, err = run("serve", "--create", "-s", Path(folder) / "store", "--listen", HERE, "--config", path)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"cablestore: {path}: invalid {key} = {value}: expected a whole number, at least ")
        assert not (Path(folder) / "store").exists()


@given(st.text("abcdefghijklmnopqrstuvwxyz-_", min_size=1, max_size=30))
def test_each_unknown_key_is_reported_in_one_line(run: Command, key: str) -> None:
    assume(key not in KEYS)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "serve.toml"
        path.write_text(f"[serve]\n{key} = 1\n")
        status, out, err = run("serve", "--create", "-s", Path(folder) / "store", "--listen", HERE, "--config", path)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"cablestore: unknown settings in {path}: {key}. ")
        assert f"Known settings: {', '.join(sorted(KEYS))}" in err
        assert not (Path(folder) / "store").exists()


@pytest.mark.parametrize("key", sorted(key for key in KEYS if type_of(key) != "flag" and key not in ANY_TEXT))
def test_each_invalid_variable_is_reported_in_one_line(
    tmp_path: Path, run: Command, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"CABLESTORE_SERVE_{key.upper().replace('-', '_')}"
    monkeypatch.setenv(variable, "x" * 70)
    status, out, err = run("serve", "--create", "-s", tmp_path / "store")
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith(f"cablestore: {variable}: ")
    assert not (tmp_path / "store").exists()


def test_a_misspelt_variable_is_reported(tmp_path: Path, serving: Callable[..., Served]) -> None:
    one = serving(tmp_path / "a", "--create", "--listen", HERE, CABLESTORE_SERVE_CABALKEY=KEY)
    assert one.address
    [line] = one.logged("unknown variables in the environment", level="warning")
    assert line["names"] == ["CABLESTORE_SERVE_CABALKEY"]


def test_the_error_for_a_missing_store_explains_how_to_create_one(tmp_path: Path) -> None:
    found = cablestore("serve", "--listen", HERE, store=tmp_path / "a")
    assert found.returncode == 2
    assert "cablestore init" in found.stderr
    assert not (tmp_path / "a").exists()
