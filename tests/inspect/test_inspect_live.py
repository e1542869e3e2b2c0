"""Live changes on the page of a store: posts that are written here, elsewhere and beside `serve`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from inspecting import TOKEN, events_of, hostile_store, inspected, request
from people import ANN, BOB, raws
from remote_stores import remote_of
from serving import HERE, Served, cablestore, environment
from waiting import LIMIT_S, wait_until

from cablestore import CableStore
from cablestore.remote.node import NodeState, WatchedNode


def test_a_page_receives_new_posts_and_those_since_it_was_loaded() -> None:
    with CableStore.in_memory(identity=ANN.identity) as store, remote_of(store) as remote, inspected(remote) as site:
        store.ingest(raws(one := BOB.text("c", "one")))
        with events_of(site, after=0) as events:
            name, found = next(events)
            assert (name, [each["hash"] for each in found]) == ("posts", [one.hash.hex()])
            store.ingest(raws(two := BOB.text("d", "two")))
            [event] = next(events)[1]
            assert (event["hash"], event["channel"], event["kind"]) == (two.hash.hex(), "d", "accepted")
            store.ingest(raws(BOB.delete(two)))
            kinds = [each["kind"] for each in next(events)[1]]
            while len(kinds) < 2:
                kinds += [each["kind"] for each in next(events)[1]]
            assert sorted(kinds) == ["accepted", "deleted"]


def test_a_page_receives_changes_of_the_node() -> None:
    node = WatchedNode(NodeState(None))
    with CableStore.in_memory() as store, inspected(store, node) as site, events_of(site) as events:
        # The server watches the node after it has sent the first line.
        node_heard = threaded_changes(node)
        assert next(events)[0] == "node"
        node_heard()


def threaded_changes(node: WatchedNode) -> Callable[[], None]:
    """Change a node repeatedly until the returned function is called."""
    stop = Event()

    def change() -> None:
        number = 0
        while not stop.wait(0.01):
            number += 1
            node.change(listening=(str(number),))

    thread = Thread(target=change)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    return end


def test_a_public_page_does_not_receive_private_posts() -> None:
    with (
        hostile_store() as hostile,
        inspected(hostile.store, is_public=True) as site,
        events_of(site, after=0) as events,
    ):
        heard = next(events)[1]
        hostile.store.ingest(raws(last := BOB.text("c", "the last one")))
        while last.hash.hex() not in {each["hash"] for each in heard}:
            heard += next(events)[1]
        assert hostile.posts[0].hash.hex() in {each["hash"] for each in heard}
        assert hostile.private.hash.hex() not in {each["hash"] for each in heard}


def test_closing_the_server_ends_live_pages() -> None:
    with CableStore.in_memory() as store:
        with inspected(store) as site:
            opened = events_of(site)
            events = opened.__enter__()
        assert list(events) == []
        opened.__exit__(None, None, None)


def test_other_commands_use_the_store_while_the_command_shows_it(tmp_path: Path) -> None:
    store = tmp_path / "store"
    cablestore("init", store=store)
    assert cablestore("post", "default", "before", store=store).returncode == 0
    command = [sys.executable, "-m", "cablestore", "inspect", str(store), "--listen", HERE, "--json", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            url, token = link_of(process)
            assert "before" in request(f"{url}/channel?name=default", token=token).text
            assert request(f"{url}/channel?name=default").status == 403, "the token differs from that of the tests"
            assert cablestore("post", "default", "meanwhile", store=store).returncode == 0
            assert "meanwhile" in request(f"{url}/channel?name=default", token=token).text
        finally:
            process.terminate()
        assert process.wait(LIMIT_S) == 0


def link_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    assert process.stdout is not None
    url, _, token = json.loads(process.stdout.readline())["inspect"].partition("/?token=")
    return url, token


def test_serve_shows_its_store_and_peers(tmp_path: Path, serving: Callable[..., Served]) -> None:
    one = serving(tmp_path / "a", "--create", "--listen", HERE, "--inspect", HERE, CABLESTORE_SERVE_INSPECT_TOKEN=TOKEN)
    url, _, token = one.hear("inspect").partition("/?token=")
    assert token == TOKEN
    assert TOKEN not in str(one.logged())
    two = serving(tmp_path / "b", "--create", "--listen", HERE, "--connect", one.address)
    assert two.address
    assert cablestore("post", "default", "from elsewhere", store=two.store).returncode == 0
    wait_until(lambda: "from elsewhere" in request(f"{url}/channel?name=default").text)
    page = request(f"{url}/peers?format=json").json
    assert [peer["is_outgoing"] for peer in page["peers"]] == [False]
    beside = [sys.executable, "-m", "cablestore", "inspect", "-s", str(one.store), "--listen", HERE, "--json"]
    with subprocess.Popen(beside, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            other, token = link_of(process)
            assert len(request(f"{other}/peers?format=json", token=token).json["peers"]) == 1
        finally:
            process.terminate()
        assert process.wait(LIMIT_S) == 0
