"""Configuration of `cablestore serve`: options, environment and file, their precedence, and rejected values."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import blocks
from folders import ROOT
from serving import HERE, KEY, OTHER_KEY, Served, cablestore

from cablestore import CableStore, limits
from cablestore.cli import serve as service
from cablestore.cli.serve_options import config_keys
from cablestore.cli.serve_plan import ServePlan
from cablestore.moderation import Seed, UserRole
from cablestore.peers import Address, Invitation, NodeSettings
from cablestore.protocol.secure_channel import PROLOGUE

Command = Callable[..., tuple[int, str, str]]


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cablestore.toml"
    path.write_text(text)
    return path


def test_the_example_settings_of_the_service_are_accepted(
    tmp_path: Path, run: Command, plans: list[ServePlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with the settings that are comments there."""
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


def test_options_win_over_the_environment_over_the_file(
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


def test_without_options_settings_are_those_of_a_node(tmp_path: Path, run: Command, plans: list[ServePlan]) -> None:
    assert run("serve", "--create", "-s", tmp_path / "store", "--connect", "peer.example:1")[0] == 0
    [plan] = plans
    assert plan == ServePlan(NodeSettings(), (), (Address("peer.example", 1),), None)
    assert plan.settings.prologue == PROLOGUE
    assert plan.settings.max_handshakes == limits.MAX_HANDSHAKES


def test_the_file_of_the_documents_sets_every_key_to_what_it_is_anyway(
    tmp_path: Path, run: Command, plans: list[ServePlan]
) -> None:
    text, _ = blocks("docs/reference/settings.md", "toml")
    assert set(tomllib.loads(text)["serve"]) == set(config_keys(service.serve))
    (tmp_path / "key").write_text(KEY)
    text = text.replace("/etc/cablestore/cabal-key", str(tmp_path / "key"))
    seed = bytes([UserRole.ADMIN, *bytes(32)])
    (tmp_path / "seed").write_bytes(seed)
    (tmp_path / "invitation").write_text(str(Invitation(bytes.fromhex(KEY), (Address("another.example", 1),), seed)))
    text = text.replace("/etc/cablestore/invitation", str(tmp_path / "invitation"))
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
        (["--listen", HERE, "--cabal-key", "@/nowhere/at/all"], "cannot be read from /nowhere/at/all"),
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
        (["--config", "/nowhere/at/all"], "/nowhere/at/all cannot be read"),
    ],
)
def test_bad_values_have_status_2_and_open_nothing(
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
        ("listen = [", "cannot be read"),
        ('listen = ["a:1"]', "expected only a table [serve], found listen"),
        ("serve = 1", "expected only a table [serve]"),
        ("[server]", "expected only a table [serve], found server"),
        (
            '[serve]\nlistn = ["a:1"]\nmax_peers = 3',
            ": listn, max_peers. Known settings: backup-every, ",
        ),
        ('[serve]\nlisten = "a:1"', "listen must be an array of strings"),
        ("[serve]\nlisten = [1]", "listen must be an array of strings"),
        ('[serve]\nlisten = ["a:b"]', "listen: 'a:b' is not an address"),
        ('[serve]\nmax-peers = "3"', "max-peers must be a whole number"),
        ("[serve]\nmax-peers = true", "max-peers must be a whole number"),
        ("[serve]\nmax-peers = 0", "max-peers: 0 is not in the range"),
        ('[serve]\nfollow = "no"', "follow must be true or false"),
        ("[serve]\nidle-timeout = 600", "idle-timeout must be a string in quotes"),
        ("[serve]\ncabal-key = 12", "cabal-key must be a string in quotes"),
        ('[serve]\ncabal-key = "secret"', "cabal-key: invalid cabal key: expected 64 hex digits"),
        ('[serve]\nlog-level = "loud"', "log-level: 'loud' is not one of"),
        ('[serve]\nconfig = "x"', ": config. Known settings:"),
        ('[serve]\nchannels = ["a", ""]', "channels: invalid channel name: expected 1 to 64 code points, got 0"),
        ('[serve]\nchannels = ["a\\u0000b"]', "channels must not contain NUL characters"),
        ('[serve]\nstore = "a\\u0000b"', "store must not contain NUL characters"),
        ('[serve]\nlisten = ["a\\u0000b:1"]', "listen must not contain NUL characters"),
        (f"serve = {'[' * 100_000}", "cannot be read"),
    ],
)
def test_bad_files_have_status_2_and_open_nothing(
    tmp_path: Path, run: Command, text: str, reason: str, plans: list[ServePlan]
) -> None:
    status, out, err = run(
        "serve", "--create", "-s", tmp_path / "store", "--listen", HERE, "--config", toml(tmp_path, text)
    )
    assert (status, out, plans) == (2, "", [])
    assert reason in " ".join(err.split())
    assert "secret" not in err
    assert not (tmp_path / "store").exists()


def test_a_misspelt_variable_is_reported(tmp_path: Path, serving: Callable[..., Served]) -> None:
    one = serving(tmp_path / "a", "--create", "--listen", HERE, CABLESTORE_SERVE_CABALKEY=KEY)
    assert one.address
    [line] = one.logged("unknown variables in the environment", level="warning")
    assert line["names"] == ["CABLESTORE_SERVE_CABALKEY"]


def test_without_a_store_the_error_explains_how_to_create_one(tmp_path: Path) -> None:
    found = cablestore("serve", "--listen", HERE, store=tmp_path / "a")
    assert found.returncode == 2
    assert "cablestore init" in found.stderr
    assert not (tmp_path / "a").exists()
