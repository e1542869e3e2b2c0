"""`serve` on a store with outdated views: it rebuilds them, and shows the progress on all pages."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from people import ANN, raws
from serving import HERE, Served, cablestore, environment, fetch
from stores import database_of, outdate
from waiting import LIMIT_S, wait_until

from cablestore import CableStore
from cablestore.cli.output import Output
from cablestore.cli.serve_start import ServePages, open_served
from cablestore.cli.service_manager import ServiceManager
from cablestore.errors import OpenError, OutdatedViewError
from cablestore.index.leveldb import LevelDB
from cablestore.index.reader import DATA_PREFIX
from cablestore.peers import Address

POSTS = 2_500
"""A rebuild reports its progress after each 1,000 posts."""


@pytest.fixture
def outdated(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.ingest(raws(*(ANN.text("default", f"{number}") for number in range(POSTS))))
        _ = store.identity
    outdate(path)
    return path


def test_outdated_views_are_rebuilt_and_then_served(outdated: Path, serving: Callable[..., Served]) -> None:
    one = serving(outdated, "--listen", HERE, "--metrics", HERE)
    assert one.address
    assert fetch(f"http://{one.hear('metrics')}/readyz")[0] == 200
    assert one.metric("cablestore_store_posts") == POSTS
    [begun] = one.logged("rebuilding outdated views", level="warning")
    assert "messages (found 0" in begun["reason"]
    assert one.logged("rebuilt outdated views", level="warning")
    found = cablestore("sync", one.address, "--create", store=outdated.with_name("other"))
    assert (found.returncode, f"{POSTS:,} new posts" in found.stdout) == (0, True), found
    assert one.stop() == 0
    with CableStore.open(outdated) as store:
        assert store.check().is_clean


def test_pages_commands_and_the_service_manager_show_the_progress(
    outdated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts: list[str] = []

    class Looking(ServiceManager):
        """Reads all pages at the start, and after each report of the rebuild."""

        url = ""

        def progress(self, text: str, limit_s: float) -> None:
            assert limit_s > 90, "systemd's default limit"
            texts.append(text.removeprefix("rebuilding outdated views: "))
            if not self.url:
                self.url = f"http://{json.loads(capsys.readouterr().out)['metrics']}"
                return
            alive, body = fetch(f"{self.url}/healthz")
            assert (alive, json.loads(body)["status"], json.loads(body)["reason"]) == (200, "rebuilding", text)
            assert fetch(f"{self.url}/readyz") == (503, body)
            status, page = fetch(f"{self.url}/metrics")
            assert (status, "cablestore_ready 0.0" in page, "cablestore_build_info" in page) == (200, True, True)
            found = cablestore("channels", store=outdated)
            reason = f"cablestore: the store at {outdated} is not open yet: {text}\n"
            assert (found.returncode, found.stderr) == (2, reason)

    with ServePages(Address("127.0.0.1", 0), Output(as_json=True)) as pages:
        open_served(outdated, pages, create=False, manager=Looking()).close()
    assert texts == [
        "0 % of the posts read",
        "40 % of the posts read",
        "80 % of the posts read",
        "all posts read, writing the new database",
    ]
    assert not (outdated / "control.sock").exists()


@contextmanager
def rebuilding(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield `serve`, which has begun to rebuild views. Its standard error is a pipe."""
    command = [sys.executable, "-m", "cablestore", "serve", "--listen", HERE, "-s", str(path)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind("n")  # in the working directory, because the path of a socket has a limit
        notified.settimeout(LIMIT_S)
        with subprocess.Popen(
            command, env=environment(NOTIFY_SOCKET="n"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            begun = b"STATUS=rebuilding outdated views: 0 % of the posts read\nEXTEND_TIME"
            assert notified.recv(200).startswith(begun)
            yield process


def test_sigterm_stops_the_rebuild_and_the_next_start_repeats_it(
    outdated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with rebuilding(outdated) as process:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    if '"rebuilt outdated views"' not in errors:
        with pytest.raises(OutdatedViewError):
            CableStore.open(outdated)
    with CableStore.open(outdated, upgrade=True) as store:
        assert store.check().is_clean
        assert sum(store.stats().posts.values()) == POSTS


def test_settings_are_reloaded_after_the_rebuild_if_a_signal_arrives_during_it(
    outdated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with rebuilding(outdated) as process:
        process.send_signal(signal.SIGUSR1)  # it has no peers to reconnect to yet
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        events: list[str] = []
        while not events or events[-1] != "settings reloaded":
            events.append(json.loads(process.stderr.readline())["event"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert "rebuilt outdated views" in events
    with CableStore.open(outdated) as store:
        assert sum(store.stats().posts.values()) == POSTS


def test_a_rebuild_that_would_lose_a_post_results_in_status_2(outdated: Path) -> None:
    """The unit does not restart after this status: each attempt would fail in the same way."""
    database = LevelDB(database_of(outdated))
    with database.snapshot() as state:
        key, raw = next(state.scan(DATA_PREFIX, b"!data!~"))
    database.write({key: raw[:-1]}, sync=True)
    database.close()
    found = cablestore("serve", "--listen", HERE, store=outdated)
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1].startswith("cablestore: cannot rebuild outdated views: ")
    with (
        ServePages(None, Output(as_json=False)) as pages,
        pytest.raises(OpenError, match="cannot rebuild outdated views"),
    ):
        open_served(outdated, pages, create=False)


def test_a_port_of_metrics_in_use_results_in_status_2_before_the_rebuild(outdated: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = cablestore("serve", "--listen", HERE, "--metrics", address, store=outdated)
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1].startswith(f"cablestore: cannot listen on {address}: ")
    with pytest.raises(OutdatedViewError):
        CableStore.open(outdated)


def test_a_running_serve_reports_that_it_is_ready(tmp_path: Path, serving: Callable[..., Served]) -> None:
    one = serving(tmp_path / "a", "--create", "--listen", HERE, "--metrics", HERE)
    url = f"http://{one.hear('metrics')}"
    wait_until(lambda: fetch(f"{url}/readyz")[0] == 200)
    assert fetch(f"{url}/healthz")[0] == 200
    assert one.metric("cablestore_ready") == 1
    assert one.metric("cablestore_build_info") == 1
    assert one.stop() == 0
