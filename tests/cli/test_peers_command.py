"""`cablestore peers` and `status`: the output for operators of a running `serve`, and disconnecting and banning peers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import HERE, KEY, Served, cablestore, environment
from terminals import Terminal
from waiting import wait_until

from cablestore.cli.output import Output

Serving = Callable[..., Served]
AGAIN = ("--list-every", "1s")


def asked(one: Served, *arguments: object) -> list[dict[str, Any]]:
    """Run a command with --json on a served store, and return its output."""
    found = cablestore(*arguments, "--json", store=one.store)
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


def connected(tmp_path: Path, serving: Serving, **more: str) -> tuple[Served, Served]:
    """Start a node and one that stays connected to it."""
    one = serving(tmp_path / "a", "--create", "--listen", HERE, **more)
    two = serving(tmp_path / "b", "--create", "--connect", one.address, **more)
    wait_until(lambda: one.logged("connected"))
    wait_until(lambda: asked(one, "peers"))
    return one, two


def test_both_peers_list_each_other(tmp_path: Path, serving: Serving) -> None:
    one, two = connected(tmp_path, serving, CABLESTORE_SERVE_CABAL_KEY=KEY)
    wait_until(lambda: [peer["is_in_step"] for peer in asked(one, "peers")] == [True])
    [there], [here] = asked(one, "peers"), asked(two, "peers")
    assert here["peer"] == one.address
    assert (here["is_outgoing"], there["is_outgoing"]) == (True, False)
    assert {len(here["key"]), len(there["key"])} == {64}
    assert here["since_ms"] > 1_700_000_000_000
    assert here["sent_size_bytes"] > 0
    assert min(peer["received_requests"] for peer in (here, there)) > 0
    assert min(peer["reconciliations"] for peer in (here, there)) > 0
    assert min(peer["reconciled_at_ms"] - peer["since_ms"] for peer in (here, there)) >= 0
    table = cablestore("peers", store=one.store).stdout.splitlines()
    assert table[0].split() == ["peer", "key", "since", "in", "step", "in", "out", "queued", "answers"]
    assert table[1].split()[:2] == [there["peer"], there["key"][:16]]
    [status] = asked(one, "status")
    assert (status["state"], status["peers"], status["peers_in_step"], status["reason"]) == ("ok", 1, 1, "")
    assert status["disk_free_bytes"] > 0
    assert status["backup_at_ms"] is None
    shown = cablestore("status", store=one.store).stdout
    assert "1 connected, 1 in step" in shown
    assert "last backup" in shown


def test_the_status_shows_the_last_check(tmp_path: Path) -> None:
    store = tmp_path / "a"
    assert cablestore("init", store=store).returncode == 0
    status = json.loads(cablestore("status", "--json", store=store).stdout)
    assert [status[f"check_{name}"] for name in ("at_ms", "problems", "signatures")] == [None] * 3
    assert cablestore("check", "--read-only", store=store).returncode == 0
    assert not (store / "last-check.json").exists()
    assert cablestore("check", "--signatures", store=store).returncode == 0
    status = json.loads(cablestore("status", "--json", store=store).stdout)
    assert (status["check_problems"], status["check_signatures"]) == (0, True)
    assert "ago: no problems, signatures verified" in cablestore("status", store=store).stdout
    (store / "last-check.json").write_text(
        '{"format": 1, "at_ms": 1700000000000, "posts": 9, "problems": 2100, "signatures": false}'
    )
    assert "ago: 2,100 problems, signatures not verified" in cablestore("status", store=store).stdout


def test_the_status_shows_the_last_backup_even_without_serve(tmp_path: Path) -> None:
    store = tmp_path / "a"
    assert cablestore("init", store=store).returncode == 0
    assert cablestore("backup", tmp_path / "backup", store=store).returncode == 0
    status = json.loads(cablestore("status", "--json", store=store).stdout)
    assert (status["state"], status["backup_folder"]) == ("not served", str(tmp_path / "backup"))
    assert status["backup_at_ms"] > 1_700_000_000_000
    assert f"ago, in {tmp_path / 'backup'}" in cablestore("status", store=store).stdout
    found = cablestore("status", "--live", store=store)
    assert (found.returncode, "needs a running `serve`" in found.stderr) == (2, True)
    (store / "last-backup.json").write_text("{")
    assert json.loads(cablestore("status", "--json", store=store).stdout)["backup_at_ms"] is None
    found = cablestore("peers", store=store)
    assert (found.returncode, "no running `serve`" in found.stderr) == (2, True)


@pytest.mark.parametrize("command", ["peers", "status"])
def test_the_live_output_shows_changes(tmp_path: Path, serving: Serving, command: str) -> None:
    one, two = connected(tmp_path, serving)
    arguments = [sys.executable, "-m", "cablestore", command, "--live", "--json", "-s", str(one.store)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment()) as live:
        assert live.stdout is not None
        first = json.loads(live.stdout.readline())
        assert "queued_size_bytes" in first
        if command == "status":
            two.stop()
            while json.loads(live.stdout.readline())["peers"]:
                pass
        one.stop()
        live.stdout.read()
        assert live.wait() == 3  # its process is gone


def test_the_table_on_a_terminal_is_drawn_again_until_ctrl_c(tmp_path: Path, serving: Serving) -> None:
    one, two = connected(tmp_path, serving)
    live = Terminal([sys.executable, "-m", "cablestore", "peers", "--live", "-s", str(one.store)])
    try:
        live.shows(r"answers\s+127\.0\.0\.1:\d+ ")
        two.stop()
        live.shows(r"answers\s*peer ")  # drawn again without a peer
        live.process.send_signal(signal.SIGINT)  # the session of the process has no terminal that sends it
        assert live.wait() == 130
    finally:
        live.kill()


def test_a_disconnected_peer_can_connect_again(tmp_path: Path, serving: Serving) -> None:
    one, two = connected(tmp_path, serving)
    [before] = asked(one, "peers")
    assert asked(one, "peers", "kick", before["peer"]) == [{"disconnected": [before["peer"]]}]
    wait_until(lambda: [peer["peer"] for peer in asked(one, "peers")] not in ([], [before["peer"]]))
    wait_until(lambda: one.logged("disconnected", reason="disconnected by `cablestore peers kick`"))
    found = cablestore("peers", "kick", one.address, store=two.store)
    assert found.returncode == 0
    assert found.stderr == f"`serve` connects again to {one.address}, because of --connect. Use `ban` to prevent this\n"
    wait_until(lambda: len(one.logged("connected")) >= 3)


def test_a_ban_by_key_lasts_until_it_is_removed(tmp_path: Path, serving: Serving) -> None:
    one, two = connected(tmp_path, serving, CABLESTORE_SERVE_CABAL_KEY=KEY)
    [peer] = asked(one, "peers")
    key = peer["key"]
    assert asked(one, "peers", "ban", key[:6].upper()) == [{"banned": key}]
    wait_until(lambda: not asked(one, "peers"))
    assert asked(two, "connect", "--now")  # otherwise the pauses between attempts grow
    wait_until(lambda: len([line for line in one.logged("disconnected") if "is banned" in line["reason"]]) >= 2)
    assert len(one.logged("connected")) == 1
    [ban] = asked(one, "peers", "bans")
    assert ban["banned"] == key
    assert one.stop() == 0

    one = serving(one.store, "--listen", one.address, "--metrics", HERE, CABLESTORE_SERVE_CABAL_KEY=KEY)
    assert one.address
    assert asked(two, "connect", "--now")
    wait_until(lambda: one.metric("cablestore_refused_connections_total", limit="banned") > 0)
    assert not one.logged("connected")
    assert asked(one, "peers", "unban", key) == [{"unbanned": key}]
    assert asked(two, "connect", "--now")
    wait_until(lambda: asked(one, "peers"))
    assert asked(one, "peers", "bans") == []
    found = cablestore("peers", "unban", key, store=one.store)
    assert (found.returncode, found.stderr) == (
        2,
        f"cablestore: {key} is not banned. `cablestore peers bans` lists the bans\n",
    )
    assert two.stop() == one.stop() == 0


def test_a_ban_also_prevents_outgoing_connections(tmp_path: Path, serving: Serving) -> None:
    """The peer of --connect is not dialled while its host is banned."""
    one, two = connected(tmp_path, serving)
    host = one.address.rpartition(":")[0]
    assert asked(two, "peers", "ban", one.address) == [{"banned": host}]  # without a key, its host is banned
    wait_until(lambda: [dial["reason"] for dial in asked(two, "connect") if "is banned" in dial["reason"]])
    arrived = len(one.logged("connected"))
    assert asked(two, "connect", "--now")
    wait_until(
        lambda: [line for line in two.logged("no connection") if f"cannot connect to {one.address}" in line["reason"]]
    )
    assert len(one.logged("connected")) == arrived
    assert asked(two, "peers", "unban", host) == [{"unbanned": host}]
    assert asked(two, "connect", "--now")
    wait_until(lambda: asked(two, "peers"))


@pytest.fixture(scope="module")
def without_peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield a node without peers and bans, for all requests that must have no effect."""
    one = Served(tmp_path_factory.mktemp("without-peers") / "a", "--create", "--listen", HERE)
    assert one.address
    yield one
    assert one.stop() == 0
    assert one.process.stdout is not None
    one.process.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["kick", "192.0.2.9"], "no connected peer found with the address, host or key '192.0.2.9'"),
        (["ban", "bob"], "To ban a peer that is not connected, use its IP address or all 64 digits of its key"),
        (["ban", "abcdef"], "use its IP address or all 64 digits of its key"),
        (["ban", "192.0.2.9:1"], "use its IP address or all 64 digits of its key"),
        (["ban"], "missing argument PEER of `peers ban`"),
        (["list", "192.0.2.9"], "`peers list` does not accept PEER"),
        (["ban", "192.0.2.9", "--live"], "--live shows the list"),
        (["expel", "192.0.2.9"], "'expel' is not one of"),
    ],
)
def test_invalid_requests_result_in_status_2_without_effect(
    without_peers: Served, arguments: list[str], reason: str
) -> None:
    found = cablestore("peers", *arguments, store=without_peers.store)
    assert found.returncode == 2
    assert reason in found.stderr
    assert asked(without_peers, "peers", "bans") == []
    assert not (without_peers.store / "bans.json").exists()


def test_notes_are_wrapped_only_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = "word " * 100
    out = Output(as_json=False)
    out.note(text)
    out.say(text)
    found = capsys.readouterr()
    assert found.err.count("\n") == found.out.count("\n") == 1
