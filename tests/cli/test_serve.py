"""`cablestore serve` and `cablestore sync`, with real processes, sockets and signals."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from people import ANN, BOB, raws
from serving import HERE, KEY, OTHER_KEY, Served, cablestore, environment, fetch, own_host
from waiting import LIMIT_S, wait_until

from cablestore import LEGACY, CableStore
from cablestore.peers import Address
from cablestore.protocol.message import TimeRangeRequest, encode_message
from cablestore.protocol.recognition import REQUESTS


def history(path: Path, posts: int = 50) -> str:
    """Create a store with two channels. Returns its digest."""
    with CableStore.open(path) as store:
        store.ingest(raws(ANN.named("Ann"), ANN.join("default"), BOB.join("other")))
        store.ingest(raws(*(BOB.text("default", f"text {number}") for number in range(posts))), verify=False)
        store.ingest(raws(ANN.text("other", "elsewhere"), BOB.topic("other", "a topic")))
        return store.dump_digest()


def digest(path: Path) -> str:
    with CableStore.open(path, create=False) as store:
        assert store.check().is_clean
        return store.dump_digest()


def texts(path: Path, channel: str = "default") -> list[str]:
    return [json.loads(line)["text"] for line in cablestore("log", channel, "--json", store=path).stdout.splitlines()]


# --- syncing --------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("key", [None, KEY])
def test_a_sync_makes_stores_equal_and_metrics_report_it(
    tmp_path: Path, serving: Callable[..., Served], key: str | None
) -> None:
    whole = history(tmp_path / "a")
    keys = {"CABLESTORE_SERVE_CABAL_KEY": key, "CABLESTORE_SYNC_CABAL_KEY": key} if key else {}
    one = serving(tmp_path / "a", "--listen", HERE, "--metrics", HERE, "--no-follow", "--no-reconcile", **keys)
    found = cablestore("sync", one.address, "--create", "--json", store=tmp_path / "b", **keys)
    assert (found.returncode, found.stderr) == (0, "")
    [report] = [json.loads(line) for line in found.stdout.splitlines()]
    assert (report["posts"], report["channels"], report["refused"], report["missing"]) == (55, 2, 0, 0)
    assert digest(tmp_path / "b") == whole
    wait_until(lambda: one.metric("cablestore_peers") == 0)
    assert one.metric("cablestore_received_bytes_total") == report["sent_size_bytes"]
    assert one.metric("cablestore_sent_bytes_total") == report["received_size_bytes"]
    assert one.metric("cablestore_connections_total", by="them") == 1
    assert one.metric("cablestore_requests_total", type="channel_list_request") == 1 + REQUESTS  # a greeting and one
    assert one.metric("cablestore_requests_total", type="channel_time_range_request") >= 2
    assert one.metric("cablestore_answer_seconds_count", type="post_request") >= 1
    assert one.metric("cablestore_store_posts") == 55
    again = cablestore("sync", one.address, store=tmp_path / "b", **keys)
    assert again.stdout.startswith("fetched 0 new posts in 2 channels, ")
    assert one.stop() == 0
    [started] = one.logged("listening")
    assert started["encrypted"] is (key is not None)
    assert [line["event"] for line in one.logged()][-1] == "stopped"


@pytest.mark.thorough
def test_only_requested_channels_are_synced(tmp_path: Path, serving: Callable[..., Served]) -> None:
    history(tmp_path / "a")
    one = serving(tmp_path / "a", "--listen", HERE)
    found = cablestore("sync", one.address, "--create", "--channels", "other", store=tmp_path / "b")
    assert found.returncode == 0, found.stderr
    assert (texts(tmp_path / "b", "other"), texts(tmp_path / "b")) == (["elsewhere"], [])
    found = cablestore("sync", one.address, "--create", "--window", "1h", store=tmp_path / "c")
    assert found.returncode == 0, found.stderr
    assert texts(tmp_path / "c") == []


@pytest.mark.parametrize("command", ["sync", "reconcile"])
def test_an_unreachable_peer_results_in_status_2_and_no_store(command: str, tmp_path: Path) -> None:
    with socket.socket() as taken:  # the port is bound but does not listen
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        found = cablestore(command, f"127.0.0.1:{port}", "--create", store=tmp_path / "new")
    assert found.returncode == 2
    assert f"cannot connect to 127.0.0.1:{port}" in found.stderr
    assert found.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_ctrl_c_keeps_the_posts_fetched_by_a_sync(tmp_path: Path, serving: Callable[..., Served]) -> None:
    whole = history(tmp_path / "a", 3000)
    slowly = ("--rows-in-advance", "3500", "--rows-per-s", "500")  # each answer of 500 posts takes seconds
    one = serving(tmp_path / "a", "--listen", HERE, "--no-follow", *slowly)
    command = [sys.executable, "-m", "cablestore", "sync", one.address, "--create", "-s", str(tmp_path / "b")]

    def has_stored() -> bool:
        with suppress(FileNotFoundError):  # LevelDB removes a log while it begins the next one
            return any(log.stat().st_size > 10_000 for log in (tmp_path / "b").glob("generation-*/*.log"))
        return False

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as syncing:
        wait_until(has_stored)
        syncing.send_signal(signal.SIGINT)
        assert syncing.stderr is not None
        errors = syncing.stderr.read()
        assert syncing.wait(LIMIT_S) == 130
    assert errors.strip().endswith("interrupted: stored data is kept")
    with CableStore.open(tmp_path / "b") as store:
        assert store.check().is_clean
        assert 0 < sum(store.stats().posts.values()) < 3005
    assert one.stop() == 0
    one = serving(tmp_path / "a", "--listen", HERE, "--no-follow")
    assert cablestore("sync", one.address, store=tmp_path / "b").returncode == 0
    assert digest(tmp_path / "b") == whole


@pytest.mark.thorough
def test_sync_rejects_a_store_that_serve_has_open(tmp_path: Path, serving: Callable[..., Served]) -> None:
    history(tmp_path / "a")
    one = serving(tmp_path / "a", "--listen", HERE)
    found = cablestore("sync", one.address, store=tmp_path / "a")
    assert found.returncode == 2
    assert f"open in process {one.process.pid}" in found.stderr


# --- serving --------------------------------------------------------------------------------------


def test_commands_work_on_a_served_store_and_posts_reach_a_connected_one(
    tmp_path: Path, serving: Callable[..., Served]
) -> None:
    one = serving(tmp_path / "a", "--create", "--listen", HERE)
    posted = cablestore("post", "default", "before", store=one.store) if one.address else None
    assert posted is not None
    assert posted.returncode == 0, posted.stderr
    two = serving(tmp_path / "b", "--create", "--connect", one.address, "--metrics", HERE, "--list-every", "1s")
    wait_until(lambda: two.metric("cablestore_store_posts", type="text") == 1)
    command = [sys.executable, "-m", "cablestore", "log", "default", "--follow", "--json", "-s", str(two.store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["text"] == "before"
        cablestore("post", "default", "and live", store=one.store)
        assert json.loads(follower.stdout.readline())["text"] == "and live"
        cablestore("post", "default", "from the other side", store=two.store)
        wait_until(lambda: "from the other side" in texts(one.store))
        assert two.stop() == 0
        assert follower.wait(LIMIT_S) == 3  # its server is gone
    assert one.stop() == 0
    assert digest(one.store) == digest(two.store)
    assert json.loads(cablestore("stats", "--json", store=one.store).stdout)["posts"]["text"] == 3


@pytest.mark.thorough
def test_sigterm_during_a_sync_leaves_a_usable_store(tmp_path: Path, serving: Callable[..., Served]) -> None:
    whole = history(tmp_path / "a", 6_000)
    one = serving(tmp_path / "a", "--listen", HERE, "--no-follow")
    two = serving(tmp_path / "b", "--create", "--connect", one.address, "--metrics", HERE)
    wait_until(lambda: two.metric("cablestore_posts_in_total", verdict="accepted") > 100)
    assert two.stop() == 0
    with CableStore.open(two.store) as store:
        assert store.check().is_clean
        assert 100 < sum(store.stats().posts.values()) <= 6_005
    two = serving(two.store, "--connect", one.address, "--metrics", HERE)
    wait_until(lambda: two.metric("cablestore_store_posts") == 6_005)
    assert two.stop() == 0
    assert digest(two.store) == whole


def test_serve_restarts_after_a_kill(tmp_path: Path, serving: Callable[..., Served]) -> None:
    whole = history(tmp_path / "a")
    one = serving(tmp_path / "a", "--listen", own_host())
    address = one.address
    assert one.stop(signal.SIGKILL) == -signal.SIGKILL
    two = serving(tmp_path / "a", "--listen", address)
    assert two.address == address
    assert cablestore("sync", address, "--create", store=tmp_path / "b").returncode == 0
    assert digest(tmp_path / "b") == whole
    assert cablestore("channels", store=tmp_path / "a").returncode == 0


def test_ctrl_c_ends_serve_with_status_130(tmp_path: Path, serving: Callable[..., Served]) -> None:
    one = serving(tmp_path / "a", "--create", "--listen", HERE)
    assert one.address
    assert one.stop(signal.SIGINT) == 130
    assert [line["event"] for line in one.logged()][-2:] == ["stopping", "stopped"]
    assert not (tmp_path / "a" / "control.sock").exists()


@pytest.mark.thorough
def test_a_second_signal_ends_serve_immediately(tmp_path: Path, serving: Callable[..., Served]) -> None:
    """After the first signal, `serve` waits for a peer that does not read."""
    history(tmp_path / "a", 6_000)
    one = serving(tmp_path / "a", "--listen", HERE, "--metrics", HERE)
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(Address.parse(one.address))
        for number in range(60):
            request = TimeRangeRequest(number.to_bytes(4, "big"), "default", 0, 2**50, 0)
            peer.sendall(encode_message(request, LEGACY))
        wait_until(lambda: one.metric("cablestore_queued_bytes") > 0)
        one.process.terminate()
        wait_until(lambda: one.logged("stopping"))
        assert one.process.poll() is None
        assert one.stop() == -signal.SIGTERM
    assert digest(tmp_path / "a")


@pytest.mark.thorough
def test_another_cabal_key_is_reported_by_both_peers_without_a_sync(
    tmp_path: Path, serving: Callable[..., Served]
) -> None:
    history(tmp_path / "a")
    (tmp_path / "key").write_text(KEY + "\n")
    one = serving(tmp_path / "a", "--listen", HERE, "--cabal-key", f"@{tmp_path / 'key'}")
    two = serving(tmp_path / "b", "--create", "--connect", one.address, CABLESTORE_SERVE_CABAL_KEY=OTHER_KEY)
    theirs = wait_until(lambda: one.logged("disconnected"))
    ours = wait_until(lambda: two.logged("disconnected"))
    assert "cabal key" in theirs[0]["reason"] + ours[0]["reason"]
    assert all(line["reason"] for line in theirs + ours)
    found = cablestore("sync", one.address, "--create", store=tmp_path / "c", CABLESTORE_SYNC_CABAL_KEY=OTHER_KEY)
    assert found.returncode == 2
    assert "cannot connect to" in found.stderr
    plain = cablestore("sync", one.address, "--create", store=tmp_path / "c")
    assert plain.returncode == 2
    two.stop()
    one.stop()
    assert not (tmp_path / "c").exists()
    with CableStore.open(two.store) as store:
        assert store.stats().posts == {}
    log = json.dumps(one.logged() + two.logged())
    assert KEY not in log
    assert OTHER_KEY not in log


@pytest.mark.thorough
def test_a_store_in_a_folder_without_sockets_is_served(tmp_path: Path, serving: Callable[..., Served]) -> None:
    history(tmp_path / "a")
    (tmp_path / "a" / "control.sock").mkdir()
    one = serving(tmp_path / "a", "--listen", HERE)
    assert one.address
    assert one.logged("other commands cannot connect to the store", level="warning")
    assert cablestore("sync", one.address, "--create", store=tmp_path / "b").returncode == 0


@pytest.mark.thorough
def test_a_port_in_use_results_in_status_2(tmp_path: Path, serving: Callable[..., Served]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for option in ("--listen", "--metrics"):
            found = cablestore("serve", "--create", "--listen", HERE, option, address, store=tmp_path / "a")
            assert found.returncode == 2, found.stderr
            assert found.stderr.splitlines()[-1].startswith(f"cablestore: cannot listen on {address}: ")
    assert digest(tmp_path / "a")


def handles(pid: int, number: signal.Signals) -> bool:
    """Return True if a process has a handler for a signal."""
    caught = Path(f"/proc/{pid}/status").read_text().split("SigCgt:")[1].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.thorough
def test_quiet_prints_no_output_and_the_text_format_is_readable(tmp_path: Path, serving: Callable[..., Served]) -> None:
    quiet = serving(tmp_path / "a", "--create", "--listen", HERE, "-q")
    wait_until((tmp_path / "a" / "control.sock").exists)
    wait_until(lambda: handles(quiet.process.pid, signal.SIGTERM))
    assert quiet.stop() == 0, quiet._log.read_text()
    assert quiet.process.stdout is not None
    assert quiet.process.stdout.read() == ""
    assert [line["event"] for line in quiet.logged()] == ["created a new store with a new key, because none was found"]
    talking = serving(tmp_path / "a", "--listen", HERE, "--log-format", "text")
    assert talking.address
    assert talking.stop() == 0
    assert re.search(
        r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[info +\] listening +address=127", talking._log.read_text(), re.MULTILINE
    )


def test_a_damaged_store_is_reported_by_sync(tmp_path: Path, serving: Callable[..., Served]) -> None:
    """The error is one line, with the status of damage."""
    posts = [ANN.text("default", f"{n}" + "x" * 3_000) for n in range(100)]
    for name, held in (("a", posts[:1]), ("b", posts)):  # so that the second one receives requests for its posts
        with CableStore.open(tmp_path / name) as store:
            store.ingest(raws(*held), verify=False)
            store.compact()
    for table in (tmp_path / "b" / "generation-000001").glob("*.ldb"):
        with table.open("r+b") as file:  # in one of the posts, so that the store can be opened
            at = table.read_bytes().find(b"50" + b"x" * 1_000)
            file.seek(max(at, 0))
            file.write(b"\0" * 64 if at >= 0 else b"")
    one = serving(tmp_path / "a", "--listen", HERE)
    failed = cablestore("sync", one.address, store=tmp_path / "b")
    assert failed.returncode == 3
    assert failed.stderr.startswith("cablestore: the database is damaged")
    assert len(failed.stderr.splitlines()) == 1


@pytest.mark.thorough
def test_a_full_disk_is_reported_by_sync_serve_and_commands(tmp_path: Path, serving: Callable[..., Served]) -> None:
    """File sizes of these processes are limited to 600 kB, as on a full disk."""

    def limited(*arguments: str) -> subprocess.Popen[str]:
        command = ["bash", "-c", 'ulimit -f 600; exec "$@"', "_", sys.executable, "-m", "cablestore", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())

    with CableStore.open(tmp_path / "a") as store:
        store.ingest(raws(*(ANN.text("default", "x" * 4000) for _ in range(500))), verify=False)
    one = serving(tmp_path / "a", "--listen", HERE, "--no-follow")
    with limited("sync", one.address, "--create", "-s", str(tmp_path / "b")) as syncing:
        _, errors = syncing.communicate(timeout=LIMIT_S)
        assert syncing.returncode == 3
        assert "File too large. Check the free space" in errors
        assert "Traceback" not in errors
    arguments = ["--create", "-s", str(tmp_path / "c"), "--connect", one.address, "--metrics", HERE, "--json"]
    with limited("serve", *arguments) as two:
        assert two.stdout is not None
        url = f"http://{json.loads(two.stdout.readline())['metrics']}/readyz"
        wait_until(lambda: "writing failed" in fetch(url)[1])
        assert fetch(url)[0] == 503
        two.terminate()
        _, errors = two.communicate(timeout=LIMIT_S)
        assert two.returncode == 0
    failed = [line for line in map(json.loads, errors.splitlines()) if line["event"] == "cannot store received posts"]
    assert "writing failed" in failed[0]["reason"]
    assert cablestore("sync", one.address, store=tmp_path / "c").returncode == 0
    assert digest(tmp_path / "c") == digest_of_served(one)


def digest_of_served(served: Served) -> str:
    assert served.stop() == 0
    return digest(served.store)
