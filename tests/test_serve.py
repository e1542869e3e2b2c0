"""`cablestore serve` and `cablestore sync`: real processes, real sockets, real signals."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from people import ANN, BOB, raws
from prometheus_client.parser import text_string_to_metric_families

from cablestore import LEGACY, CableStore, limits
from cablestore.cli import service
from cablestore.cli.serving import config_keys, serve
from cablestore.errors import NodeError
from cablestore.message import TimeRangeRequest, encode_message
from cablestore.node import Address, Node, NodeSettings
from cablestore.node.exporter import exporter
from cablestore.noise import PROLOGUE

KEY, OTHER_KEY = "ab" * 32, "cd" * 32
HERE = "127.0.0.1:0"
OPERATIONS = (Path(__file__).parent.parent / "docs" / "OPERATIONS.md").read_text()
Command = Callable[..., tuple[int, str, str]]


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CABLESTORE_")}
    return clean | {"PYTHONUNBUFFERED": "1"} | more


def cablestore(*arguments: object, store: Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cablestore", *map(str, arguments), "-s", str(store)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**more), check=False, timeout=120)


def eventually(is_so: Callable[[], Any], within_s: float = 30) -> Any:
    until = time.monotonic() + within_s
    while not (found := is_so()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def fetch(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Served:
    """`cablestore serve` in a process of its own."""

    def __init__(self, store: Path, *arguments: object, **more: str) -> None:
        self.store = store
        self._log = store.with_suffix(f".{time.monotonic_ns()}.log")
        command = [sys.executable, "-m", "cablestore", "serve", "-s", str(store), "--json", *map(str, arguments)]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(**more)
            )
        self.told: dict[str, str] = {}

    def hear(self, what: str) -> str:
        """Return what it tells on standard output: where it listens, where its metrics are."""
        assert self.process.stdout is not None
        while what not in self.told:
            line = self.process.stdout.readline()
            assert line, self._log.read_text()
            self.told |= json.loads(line)
        return self.told[what]

    @property
    def address(self) -> str:
        return self.hear("listening")

    def logged(self, event: str = "", **fields: Any) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self._log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        wanted = {"event": event, **fields} if event else fields
        return [line for line in found if wanted.items() <= line.items()]

    def metric(self, name: str, **labels: str) -> float:
        status, text = fetch(f"http://{self.hear('metrics')}/metrics")
        assert status == 200, text
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture
def serving() -> Iterator[Callable[..., Served]]:
    """Start `serve`; ends what still runs after the test."""
    started: list[Served] = []

    def start(store: Path, *arguments: object, **more: str) -> Served:
        started.append(Served(store, *arguments, **more))
        return started[-1]

    yield start
    for served in started:
        served.process.kill()
        served.process.wait()
        assert served.process.stdout is not None
        served.process.stdout.close()


def history(path: Path, posts: int = 50) -> str:
    """Make a store of two channels; returns its digest."""
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


@pytest.mark.parametrize("key", [None, KEY])
def test_a_sync_gives_an_equal_store_and_metrics_say_so(
    tmp_path: Path, serving: Callable[..., Served], key: str | None
) -> None:
    whole = history(tmp_path / "a")
    keys = {"CABLESTORE_SERVE_CABAL_KEY": key, "CABLESTORE_SYNC_CABAL_KEY": key} if key else {}
    one = serving(tmp_path / "a", "--listen", HERE, "--metrics", HERE, "--no-follow", **keys)
    found = cablestore("sync", one.address, "--create", "--json", store=tmp_path / "b", **keys)
    assert (found.returncode, found.stderr) == (0, "")
    [report] = [json.loads(line) for line in found.stdout.splitlines()]
    assert (report["posts"], report["channels"], report["refused"], report["missing"]) == (55, 2, 0, 0)
    assert digest(tmp_path / "b") == whole
    eventually(lambda: one.metric("cablestore_peers") == 0)
    assert one.metric("cablestore_received_bytes_total") == report["sent_size_bytes"]
    assert one.metric("cablestore_sent_bytes_total") == report["received_size_bytes"]
    assert one.metric("cablestore_connections_total", by="them") == 1
    assert one.metric("cablestore_requests_total", type="channel_list_request") == 1
    assert one.metric("cablestore_requests_total", type="channel_time_range_request") >= 2
    assert one.metric("cablestore_answer_seconds_count", type="post_request") >= 1
    assert one.metric("cablestore_store_posts") == 55
    again = cablestore("sync", one.address, store=tmp_path / "b", **keys)
    assert again.stdout.startswith("0 new posts of 2 channels in ")
    assert one.stop() == 0
    [started] = one.logged("listening")
    assert started["encrypted"] is (key is not None)
    assert [line["event"] for line in one.logged()][-1] == "stopped"


def test_only_what_is_asked_for_is_synced(tmp_path: Path, serving: Callable[..., Served]) -> None:
    history(tmp_path / "a")
    one = serving(tmp_path / "a", "--listen", HERE)
    found = cablestore("sync", one.address, "--create", "--channels", "other", store=tmp_path / "b")
    assert found.returncode == 0, found.stderr
    assert (texts(tmp_path / "b", "other"), texts(tmp_path / "b")) == (["elsewhere"], [])
    found = cablestore("sync", one.address, "--create", "--window", "1h", store=tmp_path / "c")
    assert found.returncode == 0, found.stderr
    assert texts(tmp_path / "c") == []


def test_a_peer_that_is_not_there_has_status_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = cablestore("sync", f"127.0.0.1:{port}", "--create", store=tmp_path / "a")
    assert found.returncode == 2
    assert f"cannot connect to 127.0.0.1:{port}" in found.stderr
    assert "Traceback" not in found.stderr


def test_ctrl_c_keeps_what_a_sync_brought(tmp_path: Path, serving: Callable[..., Served]) -> None:
    whole = history(tmp_path / "a", 20_000)
    one = serving(tmp_path / "a", "--listen", HERE, "--metrics", HERE, "--no-follow")
    command = [sys.executable, "-m", "cablestore", "sync", one.address, "--create", "-s", str(tmp_path / "b")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as syncing:
        eventually(lambda: one.metric("cablestore_open_sent_bytes") > 1_500_000)
        syncing.send_signal(signal.SIGINT)
        assert syncing.stderr is not None
        errors = syncing.stderr.read()
        assert syncing.wait(30) == 130
    assert errors.strip() == "interrupted; what was stored stays stored"
    with CableStore.open(tmp_path / "b") as store:
        assert store.check().is_clean
        assert 0 < sum(store.stats().posts.values()) < 20_005
    assert cablestore("sync", one.address, store=tmp_path / "b").returncode == 0
    assert digest(tmp_path / "b") == whole


def test_a_store_that_is_served_is_not_synced_beside(tmp_path: Path, serving: Callable[..., Served]) -> None:
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
    eventually(lambda: two.metric("cablestore_store_posts", type="text") == 1)
    command = [sys.executable, "-m", "cablestore", "log", "default", "--follow", "--json", "-s", str(two.store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["text"] == "before"
        cablestore("post", "default", "and live", store=one.store)
        assert json.loads(follower.stdout.readline())["text"] == "and live"
        cablestore("post", "default", "from the other side", store=two.store)
        eventually(lambda: "from the other side" in texts(one.store))
        assert two.stop() == 0
        assert follower.wait(30) == 3  # its server is gone
    assert one.stop() == 0
    assert digest(one.store) == digest(two.store)
    assert json.loads(cablestore("stats", "--json", store=one.store).stdout)["posts"]["text"] == 3


def test_sigterm_while_it_syncs_leaves_a_store_that_goes_on(tmp_path: Path, serving: Callable[..., Served]) -> None:
    whole = history(tmp_path / "a", 20_000)
    one = serving(tmp_path / "a", "--listen", HERE, "--no-follow")
    two = serving(tmp_path / "b", "--create", "--connect", one.address, "--metrics", HERE)
    eventually(lambda: two.metric("cablestore_posts_in_total", verdict="accepted") > 100)
    assert two.stop() == 0
    with CableStore.open(two.store) as store:
        assert store.check().is_clean
        assert 100 < sum(store.stats().posts.values()) < 20_005
    two = serving(two.store, "--connect", one.address, "--metrics", HERE)
    eventually(lambda: two.metric("cablestore_store_posts") == 20_005)
    assert two.stop() == 0
    assert digest(two.store) == whole


def test_after_kill_9_a_new_one_serves(tmp_path: Path, serving: Callable[..., Served]) -> None:
    whole = history(tmp_path / "a")
    one = serving(tmp_path / "a", "--listen", HERE)
    address = one.address
    assert one.stop(signal.SIGKILL) == -signal.SIGKILL
    two = serving(tmp_path / "a", "--listen", address)
    assert two.address == address
    assert cablestore("sync", address, "--create", store=tmp_path / "b").returncode == 0
    assert digest(tmp_path / "b") == whole
    assert cablestore("channels", store=tmp_path / "a").returncode == 0


def test_ctrl_c_ends_it_with_130(tmp_path: Path, serving: Callable[..., Served]) -> None:
    one = serving(tmp_path / "a", "--create", "--listen", HERE)
    assert one.address
    assert one.stop(signal.SIGINT) == 130
    assert [line["event"] for line in one.logged()][-2:] == ["stopping", "stopped"]
    assert not (tmp_path / "a" / "control.sock").exists()


def test_a_second_signal_ends_it_at_once(tmp_path: Path, serving: Callable[..., Served]) -> None:
    """The first one waits for a peer that does not read."""
    history(tmp_path / "a", 20_000)
    one = serving(tmp_path / "a", "--listen", HERE, "--metrics", HERE)
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(Address.parse(one.address))
        for number in range(60):
            request = TimeRangeRequest(number.to_bytes(4, "big"), "default", 0, 2**50, 0)
            peer.sendall(encode_message(request, LEGACY))
        eventually(lambda: one.metric("cablestore_queued_bytes") > 0)
        one.process.terminate()
        eventually(lambda: one.logged("stopping"))
        assert one.process.poll() is None
        assert one.stop() == -signal.SIGTERM
    assert digest(tmp_path / "a")


def test_another_cabal_key_is_told_on_both_sides_and_nothing_is_synced(
    tmp_path: Path, serving: Callable[..., Served]
) -> None:
    history(tmp_path / "a")
    (tmp_path / "key").write_text(KEY + "\n")
    one = serving(tmp_path / "a", "--listen", HERE, "--cabal-key", f"@{tmp_path / 'key'}")
    two = serving(tmp_path / "b", "--create", "--connect", one.address, CABLESTORE_SERVE_CABAL_KEY=OTHER_KEY)
    theirs = eventually(lambda: one.logged("disconnected"))
    ours = eventually(lambda: two.logged("disconnected"))
    assert "cabal key" in theirs[0]["reason"] + ours[0]["reason"]
    assert all(line["reason"] for line in theirs + ours)
    found = cablestore("sync", one.address, "--create", store=tmp_path / "c", CABLESTORE_SYNC_CABAL_KEY=OTHER_KEY)
    assert found.returncode == 2
    assert "no connection with" in found.stderr
    plain = cablestore("sync", one.address, "--create", store=tmp_path / "c")
    assert plain.returncode == 2
    two.stop()
    one.stop()
    for path in (two.store, tmp_path / "c"):
        with CableStore.open(path) as store:
            assert store.stats().posts == {}
    log = json.dumps(one.logged() + two.logged())
    assert KEY not in log
    assert OTHER_KEY not in log


def test_a_folder_that_takes_no_socket_is_served_all_the_same(tmp_path: Path, serving: Callable[..., Served]) -> None:
    history(tmp_path / "a")
    (tmp_path / "a" / "control.sock").mkdir()
    one = serving(tmp_path / "a", "--listen", HERE)
    assert one.address
    assert one.logged("other commands cannot use the store meanwhile", level="warning")
    assert cablestore("sync", one.address, "--create", store=tmp_path / "b").returncode == 0


def test_a_port_that_is_taken_has_status_2(tmp_path: Path, serving: Callable[..., Served]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for option in ("--listen", "--metrics"):
            found = cablestore("serve", "--create", "--listen", HERE, option, address, store=tmp_path / "a")
            assert found.returncode == 2, found.stderr
            assert found.stderr.splitlines()[-1].startswith(f"cablestore: cannot listen on {address}: ")
    assert digest(tmp_path / "a")


def test_quiet_says_nothing_and_text_is_for_people(tmp_path: Path, serving: Callable[..., Served]) -> None:
    quiet = serving(tmp_path / "a", "--create", "--listen", HERE, "-q")
    eventually((tmp_path / "a" / "control.sock").exists)
    time.sleep(1)
    assert quiet.stop() == 0
    assert quiet.process.stdout is not None
    assert (quiet.process.stdout.read(), quiet.logged()) == ("", [])
    talking = serving(tmp_path / "a", "--listen", HERE, "--log-format", "text")
    assert talking.address
    assert talking.stop() == 0
    assert re.search(
        r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[info +\] listening +address=127", talking._log.read_text(), re.MULTILINE
    )


def test_a_disk_that_is_full_is_told_everywhere(tmp_path: Path, serving: Callable[..., Served]) -> None:
    """Files of more than 600 kB are refused to these processes, as a full disk would."""

    def limited(*arguments: str) -> subprocess.Popen[str]:
        command = ["bash", "-c", 'ulimit -f 600; exec "$@"', "_", sys.executable, "-m", "cablestore", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())

    with CableStore.open(tmp_path / "a") as store:
        store.ingest(raws(*(ANN.text("default", "x" * 4000) for _ in range(500))), verify=False)
    one = serving(tmp_path / "a", "--listen", HERE, "--no-follow")
    with limited("sync", one.address, "--create", "-s", str(tmp_path / "b")) as syncing:
        _, errors = syncing.communicate(timeout=60)
        assert syncing.returncode == 3
        assert "the disk refused" in errors
        assert "Traceback" not in errors
    arguments = ["--create", "-s", str(tmp_path / "c"), "--connect", one.address, "--metrics", HERE, "--json"]
    with limited("serve", *arguments) as two:
        assert two.stdout is not None
        url = f"http://{json.loads(two.stdout.readline())['metrics']}/healthz"
        assert "the disk refused" in eventually(lambda: (found := fetch(url))[0] == 503 and found[1])
        two.terminate()
        _, errors = two.communicate(timeout=30)
        assert two.returncode == 0
    failed = [line for line in map(json.loads, errors.splitlines()) if line["event"] == "posts could not be stored"]
    assert "the disk refused" in failed[0]["reason"]
    assert cablestore("sync", one.address, store=tmp_path / "c").returncode == 0
    assert digest(tmp_path / "c") == digest_of_served(one)


def digest_of_served(served: Served) -> str:
    assert served.stop() == 0
    return digest(served.store)


# --- configuration --------------------------------------------------------------------------------


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[service.Plan]:
    """What `serve` would do, instead of doing it."""
    found: list[service.Plan] = []

    def run(*arguments: Any) -> int:
        found.append(arguments[-1])
        return 0

    monkeypatch.setattr(service, "run", run)
    monkeypatch.setattr(service, "log_to_standard_error", lambda **_: None)
    for name in [name for name in os.environ if name.startswith("CABLESTORE_")]:
        monkeypatch.delenv(name)
    return found


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cablestore.toml"
    path.write_text(text)
    return path


def test_options_win_over_the_environment_over_the_file(
    tmp_path: Path, run: Command, plans: list[service.Plan], monkeypatch: pytest.MonkeyPatch
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


def test_without_options_settings_are_those_of_a_node(tmp_path: Path, run: Command, plans: list[service.Plan]) -> None:
    assert run("serve", "--create", "-s", tmp_path / "store", "--connect", "peer.example:1")[0] == 0
    [plan] = plans
    assert plan == service.Plan(NodeSettings(), (), (Address("peer.example", 1),), None)
    assert plan.settings.prologue == PROLOGUE
    assert plan.settings.max_handshakes == limits.MAX_HANDSHAKES


def test_the_file_of_the_documents_sets_every_key_to_what_it_is_anyway(
    tmp_path: Path, run: Command, plans: list[service.Plan]
) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", OPERATIONS, flags=re.DOTALL)
    assert set(tomllib.loads(text)["serve"]) == set(config_keys(serve))
    (tmp_path / "key").write_text(KEY)
    text = text.replace("/etc/cablestore/cabal-key", str(tmp_path / "key"))
    file = toml(tmp_path, text.replace("/var/lib/cablestore/store", str(tmp_path / "store")))
    with CableStore.open(tmp_path / "store"):
        pass
    assert run("serve", "--config", file) == (0, "", "")
    [plan] = plans
    defaults = NodeSettings()
    for name in ("prologue", "relays", "max_peers", "max_handshakes", "idle_timeout_s", "list_every_s", "rows_per_s"):
        assert getattr(plan.settings, name) == getattr(defaults, name)
    assert plan.settings.max_queued_total_size_bytes == defaults.max_queued_total_size_bytes


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "say where"),
        (["--listen", "nonsense:port"], "is no address"),
        (["--listen", "127.0.0.1:65536"], "is no address"),
        (["--listen", ":1"], "is no address"),
        (["--listen", f"{'a' * 64}.example:1"], "no host can have this name"),
        (["--listen", "a..b:1"], "no host can have this name"),
        (["--connect", "peer.example:0"], "nobody listens on port 0"),
        (["--connect", "peer.example:-1"], "is no address"),
        (["--listen", HERE, "--metrics", "x:y"], "is no address"),
        (["--listen", HERE, "--cabal-key", KEY[:-1]], "a cabal key has 64 hex digits, what was given has 63"),
        (["--listen", HERE, "--cabal-key", "secret" * 20], "a cabal key has 64 hex digits"),
        (["--listen", HERE, "--cabal-key", "@/nowhere/at/all"], "cannot be read from /nowhere/at/all"),
        (["--listen", HERE, "--cabal-key", f"@{__file__}"], "cabal key"),
        (["--listen", HERE, "--channels", ""], "has 0 code points"),
        (["--listen", HERE, "--channels", "x" * 65], "has 65 code points, allowed are 1 to 64"),
        (["--listen", HERE, "--channels", "\udcff"], "is not UTF-8"),
        (["--listen", HERE, "--prologue", "\udcff"], "is not UTF-8"),
        (["--listen", HERE, "--window", "long"], "is no length of time"),
        (["--listen", HERE, "--window", "0s"], "is no length of time"),
        (["--listen", HERE, "--window", "9" * 5000 + "y"], "is no length of time"),
        (["--listen", HERE, "--window", "999999999999y"], "is no length of time"),
        (["--listen", HERE, "--idle-timeout", "10"], "is no length of time"),
        (["--listen", HERE, "--max-peers", "0"], "0 is not in the range"),
        (["--listen", HERE, "--max-peers-per-address", "many"], "is not a valid integer"),
        (["--listen", HERE, "--max-handshakes", "0"], "0 is not in the range"),
        (["--listen", HERE, "--rows-per-s", "0"], "0 is not in the range"),
        (["--listen", HERE, "--rows-in-advance", "0"], "0 is not in the range"),
        (["--listen", HERE, "--list-every", ""], "is no length of time"),
        (["--listen", HERE, "--max-queued-size", "1"], "1 is not in the range"),
        (["--listen", HERE, "--log-format", "xml"], "'xml' is not one of"),
        (["--listen", HERE, "--log-level", "loud"], "'loud' is not one of"),
        (["--config", "/nowhere/at/all"], "/nowhere/at/all cannot be read"),
    ],
)
def test_bad_values_have_status_2_and_open_nothing(
    tmp_path: Path, run: Command, arguments: list[str], reason: str, plans: list[service.Plan]
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
        ('listen = ["a:1"]', "one table, [serve], and not listen"),
        ("serve = 1", "one table, [serve]"),
        ("[server]", "one table, [serve], and not server"),
        (
            '[serve]\nlistn = ["a:1"]\nmax_peers = 3',
            "sets listn, max_peers, which is not known. Known are: cabal-key, ",
        ),
        ('[serve]\nlisten = "a:1"', "listen has to be an array of texts"),
        ("[serve]\nlisten = [1]", "listen has to be an array of texts"),
        ('[serve]\nlisten = ["a:b"]', "listen: 'a:b' is no address"),
        ('[serve]\nmax-peers = "3"', "max-peers has to be a whole number"),
        ("[serve]\nmax-peers = true", "max-peers has to be a whole number"),
        ("[serve]\nmax-peers = 0", "max-peers: 0 is not in the range"),
        ('[serve]\nfollow = "no"', "follow has to be true or false"),
        ("[serve]\nidle-timeout = 600", "idle-timeout has to be a text"),
        ("[serve]\ncabal-key = 12", "cabal-key has to be a text"),
        ('[serve]\ncabal-key = "secret"', "cabal-key: a cabal key has 64 hex digits"),
        ('[serve]\nlog-level = "loud"', "log-level: 'loud' is not one of"),
        ('[serve]\nconfig = "x"', "sets config, which is not known"),
        ('[serve]\nchannels = ["a", ""]', "channels: a channel's name has 0 code points"),
    ],
)
def test_bad_files_have_status_2_and_open_nothing(
    tmp_path: Path, run: Command, text: str, reason: str, plans: list[service.Plan]
) -> None:
    status, out, err = run(
        "serve", "--create", "-s", tmp_path / "store", "--listen", HERE, "--config", toml(tmp_path, text)
    )
    assert (status, out, plans) == (2, "", [])
    assert reason in " ".join(err.split())
    assert "secret" not in err
    assert not (tmp_path / "store").exists()


def test_a_variable_that_is_misspelt_is_told(tmp_path: Path, serving: Callable[..., Served]) -> None:
    one = serving(tmp_path / "a", "--create", "--listen", HERE, CABLESTORE_SERVE_CABALKEY=KEY)
    assert one.address
    [line] = one.logged("unknown variables in the environment", level="warning")
    assert line["names"] == ["CABLESTORE_SERVE_CABALKEY"]


def test_without_a_store_it_says_how_to_make_one(tmp_path: Path) -> None:
    found = cablestore("serve", "--listen", HERE, store=tmp_path / "a")
    assert found.returncode == 2
    assert "cablestore init" in found.stderr
    assert not (tmp_path / "a").exists()


# --- metrics and health ---------------------------------------------------------------------------


@contextmanager
def blocked_for(seconds: float) -> Iterator[None]:
    """Let the loop stand still behind the block."""
    yield
    time.sleep(seconds)


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()

    def result() -> Any:
        thread.join()
        return found[0]

    return result


def exported(store: CableStore, work: Callable[[Node, str], Any]) -> Any:
    """Run `work` in a thread beside a node with an exporter."""

    async def main() -> Any:
        async with Node(store) as node:
            with exporter(node, Address("127.0.0.1", 0)) as address:
                return await asyncio.to_thread(work, node, f"http://{address}")

    return asyncio.run(main())


def test_the_table_of_the_documents_is_the_registry(chat: CableStore) -> None:
    def work(_: Node, url: str) -> None:
        status, text = fetch(f"{url}/metrics")
        assert status == 200
        families = {family.name: family for family in text_string_to_metric_families(text)}
        totals = {f"{name}_total" if of.type == "counter" else name for name, of in families.items()}
        ours = {name for name in totals if name.startswith("cablestore_") and not name.endswith("_created")}
        told = dict(re.findall(r"^\| `(cablestore_\w+)`(?: \| | by `)(\w*)", OPERATIONS, flags=re.MULTILINE))
        assert set(told) == ours
        for name, label in told.items():
            samples = families[name.removesuffix("_total")].samples
            labels = {key for sample in samples for key in sample.labels} - {"le"}
            assert labels == ({label} if f"`{name}` by" in OPERATIONS else set()), name
        assert "process_resident_memory_bytes" in families

    exported(chat, work)


def test_only_two_pages_and_two_methods(chat: CableStore) -> None:
    def work(_: Node, url: str) -> None:
        assert fetch(f"{url}/metrics", "HEAD") == (200, "")
        assert fetch(f"{url}/healthz", "HEAD") == (200, "")
        assert fetch(f"{url}/metrics?name[]=process_open_fds")[0] == 200
        for page in ("/", "/favicon.ico", "/metrics/", "/healthz/x", "/../metrics", "/%6detrics/.."):
            assert fetch(url + page)[0] == 404, page
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert fetch(f"{url}/metrics", method)[0] == 405
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as silent:  # keeps nobody waiting
            assert fetch(f"{url}/healthz")[0] == 200
            silent.sendall(b"\x00\xff nonsense\r\n\r\n")
            assert b"400" in silent.recv(4096)

    exported(chat, work)


def test_health_tells_what_waits(chat: CableStore) -> None:
    def work(node: Node, url: str) -> None:
        status, text = fetch(f"{url}/healthz")
        health = json.loads(text)
        assert (status, health["status"], health["peers"], health["reads_waiting"]) == (200, "ok", 0, 0)
        assert health["loop_lag_s"] < 5
        node.metrics.failed_writes, node.writes.failure = 1, "the disk refused"
        status, text = fetch(f"{url}/healthz")
        assert (status, json.loads(text)["status"]) == (503, "failing")
        assert "the disk refused" in json.loads(text)["reason"]

    exported(chat, work)


def test_a_store_that_cannot_be_read_is_not_healthy() -> None:
    def work(node: Node, url: str) -> None:
        node.store.close()
        status, text = fetch(f"{url}/healthz")
        assert status == 503
        assert "the store cannot be read" in json.loads(text)["reason"]
        assert fetch(f"{url}/metrics")[0] == 503

    with CableStore.in_memory() as store:
        exported(store, work)


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "\udcff", "a\0b"])
def test_hosts_that_cannot_be_are_an_error_of_ours(host: str) -> None:
    async def main(store: CableStore) -> None:
        async with Node(store) as node:
            for work in (node.listen, node.connect):
                with pytest.raises(NodeError, match=r"cannot (listen on|connect to)"):
                    await work(Address(host, 1))
            with pytest.raises(NodeError, match="cannot listen on"), exporter(node, Address(host, 1)):
                pass

    with CableStore.in_memory() as store:
        asyncio.run(main(store))


def test_a_loop_that_is_stuck_is_not_healthy(chat: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cablestore.node.exporter.STUCK_S", 0.2)

    async def main() -> tuple[int, str]:
        async with Node(chat) as node:
            with exporter(node, Address("127.0.0.1", 0)) as address:
                await asyncio.sleep(0.1)

                def late() -> tuple[int, str]:
                    time.sleep(1.5)
                    return fetch(f"http://{address}/healthz")

                result = in_thread(late)
                with blocked_for(2.0):
                    pass
                return tuple(await asyncio.to_thread(result))

    status, text = asyncio.run(main())
    assert status == 503
    assert "the event loop has been stuck for" in json.loads(text)["reason"]


def test_an_exporter_ends_with_its_block(chat: CableStore) -> None:
    async def main() -> None:
        async with Node(chat) as node:
            for _ in range(2):  # the node can have another one after it
                with exporter(node, Address("127.0.0.1", 0)) as address:
                    assert (await asyncio.to_thread(fetch, f"http://{address}/healthz"))[0] == 200
                with pytest.raises(urllib.error.URLError):
                    await asyncio.to_thread(fetch, f"http://{address}/healthz")

    asyncio.run(main())
    assert not [thread for thread in threading.enumerate() if thread.name == "cablestore-exporter"]
