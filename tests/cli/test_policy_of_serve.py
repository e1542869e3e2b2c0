"""The policy of `serve`: invalid files, SIGHUP, `cablestore policy` and the quota in `status`."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from people import BOB
from serving import HERE, Served, cablestore, own_host
from waiting import wait_until

from cablestore import CableStore

Serving = Callable[..., Served]
QUICK = ("--list-every", "1s", "--reconcile-delay", "1s")
KEY = BOB.key.hex()


def shown(one: Served) -> dict[str, Any]:
    found = cablestore("policy", "--json", store=one.store)
    assert found.returncode == 0, found.stderr
    fields: dict[str, Any] = json.loads(found.stdout)
    return fields


WRONG = {
    "[posts]\nmax-size = 0\n": "max-size = 0: expected a whole number from 1 to 262144",
    "[authors]\nban = []\n": "unknown key authors.ban",
    None: "No such file",
}
"""Contents of a policy file, and what the error names."""


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_an_invalid_policy_is_reported_before_the_store_is_opened(
    tmp_path: Path, text: str | None, message: str
) -> None:
    file = tmp_path / "policy.toml"
    if text is not None:
        file.write_text(text)
    found = cablestore("serve", "--create", "--listen", HERE, "--policy", file, store=tmp_path / "a")
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert found.stderr.startswith(f"cablestore: invalid policy in {file}: ")
    assert message in found.stderr
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--policy-command", "/nonexistent/judge --fast", "'/nonexistent/judge' is missing or not executable"),
        ("--policy-command", "'", "No closing quotation"),
        ("--max-store-size", "20", "invalid size '20': expected a value such as 500MB, 20GB or 1TB"),
        ("--max-store-size", "0GB", "invalid size '0GB': expected a value such as 500MB, 20GB or 1TB"),
        ("--min-free-space", "lots", "invalid size 'lots'"),
        ("--policy-failure", "ignore", "accept"),
    ],
)
def test_invalid_settings_are_reported_in_one_line(tmp_path: Path, option: str, value: str, message: str) -> None:
    found = cablestore("serve", "--listen", HERE, option, value, store=tmp_path / "a")
    assert found.returncode == 2
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_commands_and_sighup_change_the_policy_of_a_running_serve(tmp_path: Path, serving: Serving) -> None:
    one = serving(tmp_path / "a", "--create", "--listen", own_host(), "--metrics", HERE, *QUICK)
    assert one.address
    assert shown(one)["denied_authors"] == []
    said = cablestore("policy", "deny", "channel", "spam", store=one.store)
    assert (said.returncode, said.stdout) == (0, "denied channel spam\n")
    said = cablestore("policy", "deny", "channel", "spam", store=one.store)
    assert said.stdout == "nothing to change for channel spam\n"
    assert cablestore("policy", "deny", "author", KEY, store=one.store).returncode == 0
    assert (shown(one)["denied_channels"], shown(one)["denied_authors"]) == (["spam"], [KEY])
    with CableStore.open(tmp_path / "b", create=True) as store:
        store.ingest([BOB.text("default", "denied").raw, BOB.text("spam", "denied").raw])
        wanted = store.post("default", "wanted")
    two = serving(tmp_path / "b", "--connect", one.address, *QUICK)
    wait_until(lambda: one.metric("cablestore_rejected_posts_total", reason="author") >= 2)
    wait_until(lambda: cablestore("show", wanted.hash.hex(), store=one.store).returncode == 0)

    file = one.store / "policy.toml"
    file.write_text("[posts]\nmax-size = x\n")
    one.process.send_signal(signal.SIGHUP)
    wait_until(lambda: one.logged("cannot reload the policy: the old policy remains active"))
    [warning] = one.logged("cannot reload the policy: the old policy remains active")
    assert str(file) in warning["reason"]
    assert shown(one)["denied_authors"] == [KEY]
    file.write_text("[posts]\nmax-size = 4096\n")
    one.process.send_signal(signal.SIGHUP)
    wait_until(lambda: one.logged("policy reloaded"))
    wait_until(lambda: one.metric("cablestore_store_posts", type="text") == 3)
    assert shown(one)["max_post_size_bytes"] == 4096
    assert "max post size bytes" in cablestore("policy", store=one.store).stdout
    assert (one.stop(), two.stop()) == (0, 0)


def test_invalid_arguments_of_the_command_have_no_effect(tmp_path: Path, serving: Serving) -> None:
    one = serving(tmp_path / "a", "--create", "--listen", HERE)
    assert one.address
    for arguments, message in (
        (("deny", "author", "bob"), "invalid author 'bob': expected a public key of 64 hex digits"),
        (("deny", "author"), "`policy deny` needs author, channel or peer, and NAME"),
        (("show", "author"), "`policy show` does not accept more arguments"),
        (("deny",), "`policy deny` needs author, channel or peer, and NAME"),
    ):
        found = cablestore("policy", *arguments, store=one.store)
        assert (found.returncode, message in found.stderr) == (2, True), found.stderr
    assert not (one.store / "policy.toml").exists()
    one.stop()
    found = cablestore("policy", store=one.store)
    assert (found.returncode, "no running `serve`" in found.stderr) == (2, True)


def test_the_quota_is_shown_and_can_be_changed(tmp_path: Path, serving: Serving) -> None:
    config = tmp_path / "serve.toml"
    lines = f'[serve]\ncreate = true\nlisten = ["{HERE}"]\nmetrics = "{HERE}"\n'
    config.write_text(f'{lines}max-store-size = "1GB"\n')
    one = serving(tmp_path / "a", "--config", config)
    assert one.address
    status = json.loads(cablestore("status", "--json", store=one.store).stdout)
    assert (status["quota"], status["max_store_size_bytes"]) == ("ok", 10**9)
    assert 0 < status["quota_room_bytes"] < 10**9
    assert one.metric("cablestore_quota_room_bytes") > 0
    assert "at most 1.0 GB" in cablestore("status", store=one.store).stdout
    config.write_text(f'{lines}min-free-space = "900TB"\n')
    one.process.send_signal(signal.SIGHUP)
    wait_until(lambda: one.metric("cablestore_quota_room_bytes") < 0)
    assert "exceeded" in cablestore("status", store=one.store).stdout
    assert one.stop() == 0
