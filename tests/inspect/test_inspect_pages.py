"""The pages of a store: their content as JSON and as HTML, page by page, and of a store of another process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from history import histories
from hypothesis import given, settings
from hypothesis import strategies as st
from inspecting import hostile_store, inspected
from people import ANN, BOB, CYD, raws
from remote_stores import remote_of
from stores import store_of

from cablestore import CableStore, Dialect, Post, StoreOptions
from cablestore.index.packing import pack
from cablestore.inspect.rows import LAYOUTS, decoded_row, key_bytes, key_text
from cablestore.moderation import UserRole
from cablestore.remote.node import NodeState, NodeStatus, PeerStatus, WatchedNode
from cablestore.views import CATALOG


def all_rows(site: Any, path: str, table: str, /, **parameters: object) -> list[Any]:
    """Return the rows of all pages of a table."""
    found: list[Any] = []
    following: dict[str, Any] | None = {}
    while following is not None:
        page = site.json(path, **parameters, **following)
        found += page[table]
        following = page["next"]
    return found


def test_each_page_is_html_and_json_also_for_a_store_of_another_process() -> None:
    with (
        hostile_store() as hostile,
        remote_of(hostile.store) as remote,
        inspected(hostile.store) as here,
        inspected(remote) as there,
    ):
        for path in hostile.paths():
            if path.startswith("/nowhere"):
                continue
            answers = [site.get(f"{path}{'&' if '?' in path else '?'}format=json") for site in (here, there)]
            assert answers[0].headers["Content-Type"].startswith("application/json")
            assert answers[0].json["page"]
            assert answers[0].status == answers[1].status
            assert answers[0].json == answers[1].json, path
            page = there.get(path)
            assert page.headers["Content-Type"].startswith("text/html")
            assert page.status == answers[0].status
            assert "<h1>" in page.text


def test_tables_are_sorted_and_paged_by_cursor() -> None:
    channels = [f"{number:03}" for number in range(120)]
    posts = [ANN.text(name, f"{number}", at=10**12 + number) for number, name in enumerate(channels)]
    with CableStore.in_memory(options=StoreOptions(verify_threads=1)) as store:
        store.ingest(raws(*posts), verify=False)
        with inspected(store) as site:
            assert [row["name"] for row in all_rows(site, "/channels", "rows")] == channels
            assert [row["name"] for row in all_rows(site, "/channels", "rows", sort="-latest_ms")] == channels[::-1]
            events = all_rows(site, "/log", "events")
            assert [each["sequence"] for each in events] == list(range(120, 0, -1))
            assert {each["hash"] for each in events} == {post.hash.hex() for post in posts}
            rows = all_rows(site, "/keys", "rows")
            assert [key_bytes(row["key"]) for row in rows] == [key for key, _ in store.rows(b"", 10**6)]
            assert len(all_rows(site, "/user", "posts", key=ANN.key.hex())) == 120
            assert site.get("/channels?sort=members").text.count('aria-sort="ascending"') == 1
            assert site.get("/channels?sort=nothing").status == 400


def test_a_channel_shows_visible_messages_and_marks_hidden_ones() -> None:
    texts = [BOB.text("c", f"text {number}") for number in range(60)]
    with CableStore.in_memory(identity=ANN.identity) as store:
        store.ingest(raws(*texts, BOB.named("bob"), BOB.topic("c", "about")))
        store.moderation.hide(posts=[texts[5].hash], reason="off topic")
        with inspected(store) as site:
            messages = all_rows(site, "/channel", "messages", name="c")
            assert [each["text"] for each in messages] == [f"text {number}" for number in range(59, -1, -1)]
            assert [each["text"] for each in messages if each["hidden_by"]] == ["text 5"]
            page = site.json("/channel", name="c")
            assert (page["topic"], page["member_count"], page["heads"]) == (
                "about",
                1,
                [h.hex() for h in store.heads("c")],
            )
            assert "off topic" in site.get(f"/channel?name=c&cursor={texts[7].sort_time.decode()}").text


def test_a_post_shows_its_fields_rows_links_and_state() -> None:
    first = BOB.text("c", "first")
    second = BOB.text("c", "second", links=(first.hash,))
    third = CYD.text("c", "third", links=(second.hash,))
    with CableStore.in_memory(identity=ANN.identity) as store:
        store.ingest(raws(first, second, third))
        with inspected(store) as site:
            page = site.json("/post", hash=second.hash.hex())
            fields = {each["name"]: each for each in page["post"]["fields"]}
            assert fields["text"]["value"] == "second"
            assert fields["links"]["value"] == [first.hash.hex()]
            assert fields["timestamp"]["value"] == second.timestamp_ms
            assert [each["hash"] for each in page["outgoing"]] == [first.hash.hex()]
            assert [each["hash"] for each in page["incoming"]] == [third.hash.hex()]
            assert {key_bytes(row["key"]) for row in page["rows"]} == {key for key, _ in store.rows_of(second.hash)}
            hex_digits = "".join(part["hex"] for line in page["post"]["lines"] for part in line["parts"]).replace(
                " ", ""
            )
            assert hex_digits == second.raw.hex()

            deletion = BOB.delete(second)
            store.ingest(raws(deletion))
            page = site.json("/post", hash=second.hash.hex())
            assert (page["state"], page["post"]) == ("deleted", None)
            assert [(each["word"], each["hash"]) for each in page["fate"]] == [("deleted", deletion.hash.hex())]
            assert [each["hash"] for each in page["outgoing"]] == [first.hash.hex()]

            [block] = store.moderation.block([CYD.key], drop=True, reason="spam").posts
            store.moderation.sweep()
            page = site.json("/post", hash=third.hash.hex())
            assert page["state"] == "dropped"
            assert ("dropped", block.hash.hex(), "spam") in [
                (each["word"], each["hash"], each["reason"]) for each in page["fate"]
            ]
            [hiding] = store.moderation.hide(posts=[first.hash], reason="old").posts
            page = site.json("/post", hash=first.hash.hex())
            assert ("hidden", hiding.hash.hex()) in [(each["word"], each["hash"]) for each in page["fate"]]
            assert site.get(f"/post?hash={'ab' * 32}").status == 404


def test_an_unknown_page_returns_an_error_as_html_and_as_json() -> None:
    with CableStore.in_memory() as store, inspected(store) as site:
        for path in ("/nowhere", "/channels/garden", "/post/", "/%00"):
            as_html, as_json = site.get(path), site.get(f"{path}?format=json")
            assert (as_html.status, as_json.status) == (404, 404), path
            assert "page not found" in as_html.text
            assert json.loads(as_json.text)["page"] == "error"
            assert site.get(path, token=None).status == 403
        assert "page not found" not in site.get("/static/x/y", token=None).text  # the page needs a token


@given(histories(max_posts=15))
@settings(deadline=None, max_examples=10)
def test_the_fields_of_a_post_cover_its_bytes(history: tuple[Dialect, list[Post]]) -> None:
    dialect, posts = history
    with store_of(dialect, posts) as store, inspected(store) as site:
        for post in posts:
            if store.get(post.hash) is None:
                continue
            fields = site.json("/post", hash=post.hash.hex())["post"]["fields"]
            assert [each["start"] for each in fields] == [0, *(each["end"] for each in fields[:-1])]
            assert fields[-1]["end"] == len(post.raw)


def test_a_user_page_lists_earlier_names_and_a_role_shows_who_assigned_it() -> None:
    with CableStore.in_memory(identity=ANN.identity) as store:
        store.ingest(raws(BOB.named("bob"), BOB.named("robert"), CYD.text("c", "text")))
        [given_role] = store.moderation.set_role(BOB.key, UserRole.MOD, reason="helps").posts
        with inspected(store) as site:
            page = site.json("/user", key=BOB.key.hex())
            assert [each["name"] for each in page["names"]] == ["bob", "robert"]
            assert (page["name"], page["role"]) == ("robert", "mod")
            roles = site.json("/roles")
            [edge] = roles["edges"]
            assert (edge["giver"], edge["recipient"], edge["role"]) == (ANN.key.hex(), BOB.key.hex(), "mod")
            assert (edge["result"], edge["hash"]) == ("applies", given_role.hash.hex())
            assert 'class="edge role"' in site.get("/roles").text
            assert next(row["name"] for row in site.json("/users", sort="-role")["rows"]) == CYD.key.hex()


def test_the_graph_has_a_lane_for_each_branch_and_marks_wrong_clocks() -> None:
    first = ANN.text("c", "first", at=10**12)
    branches = [who.text("c", "branch", at=10**12 + 1, links=(first.hash,)) for who in (ANN, BOB)]
    early = CYD.text("c", "dated before what it links to", at=10**11, links=tuple(post.hash for post in branches))
    gone = ANN.text("c", "gone", at=10**12 + 5, links=(early.hash,))
    with CableStore.in_memory() as store:
        store.ingest(raws(first, *branches, early, gone, ANN.delete(gone)))
        with inspected(store) as site:
            text = site.get("/graph?name=c").text
            assert text.count('class="edge late"') == 2
            assert text.count('class="edge"') == 3
            assert text.count('class="head"') == 1
            assert text.count('class="node stored') == 4
            assert {line.split('cy="')[1].split('"')[0] for line in text.split("<circle")[1:]} >= {"14", "32"}
            assert len(site.json("/graph", name="c", after=10**12)["nodes"]) == 4
            assert site.json("/graph", name="c", after=10**12 + 1, before=10**12 + 2)["nodes"][0]["state"] == "stored"
            assert site.get("/graph?name=c&axis=time").status == 200
            assert site.get("/graph?name=c&after=5&before=5").status == 400


def test_posts_are_found_by_words_digits_and_names() -> None:
    pytest.importorskip("apsw")
    with CableStore.in_memory(identity=ANN.identity) as store:
        store.ingest(raws(BOB.named("bob"), post := BOB.text("harbour", "the red boat")))
        with inspected(store) as site:
            [hit] = site.json("/search", q="boat")["hits"]
            assert (hit["hash"], hit["excerpt"]) == (post.hash.hex(), [["the red ", False], ["boat", True]])
            for text, kind, href in (
                (post.hash.hex()[:8], "post", f"/post?hash={post.hash.hex()}"),
                ("bob", "user", f"/user?key={BOB.key.hex()}"),
                ("#harbour", "channel", "/channel?name=harbour"),
            ):
                assert (kind, href) in [(each["kind"], each["href"]) for each in site.json("/search", q=text)["jumps"]]


def test_only_a_private_overview_shows_the_last_check(tmp_path: Path) -> None:
    record = {"format": 1, "at_ms": 1_700_000_000_000, "posts": 9, "problems": 1, "signatures": False}
    with CableStore.open(tmp_path / "store") as store:
        with inspected(store) as site:
            assert site.json("/")["local"]["check_at_ms"] is None
            store.check(signatures=True)
            local = site.json("/")["local"]
            assert local["check_at_ms"] > record["at_ms"]
            assert (local["check_problems"], local["check_signatures"]) == (0, True)
            assert "no problems, signatures verified" in site.get("/").text
            (tmp_path / "store" / "last-check.json").write_text(json.dumps(record))
            assert "1 problem</strong>, signatures not verified" in site.get("/").text
        with inspected(store, is_public=True) as site:
            assert "check_at_ms" not in site.get("/?format=json").text
            assert "Last check" not in site.get("/").text


def test_a_public_page_shows_peers_without_addresses() -> None:
    peer = PeerStatus("192.0.2.7:5", "ab" * 32, True, False, 10**12, None, 0, 10, 20, 1.0, 2.0, 0, 7, 3, 10**12)

    class Node(WatchedNode):
        def status(self) -> NodeStatus:
            counts = (1, 2, 3, 4, 5, 6, 7, 0)
            return NodeStatus("1", 10**12, "ok", "", 0.0, *counts, "off", None, 0, 0, "", (peer,))

    node = Node(NodeState(None))
    with CableStore.in_memory() as store:
        with inspected(store, node) as site:
            assert "192.0.2.7:5" in site.get("/peers").text
            assert site.json("/peers")["peers"][0]["key"] == "ab" * 32
        with inspected(store, node, is_public=True) as site:
            assert "192.0.2.7" not in site.get("/peers").text + site.get("/peers?format=json").text
            shown = site.json("/peers")["peers"][0]
            assert [shown[name] for name in ("received_size_bytes", "received_requests", "reconciliations")] == [
                10,
                7,
                3,
            ]


def test_every_prefix_of_the_database_has_a_layout() -> None:
    assert {prefix for prefix, _ in CATALOG.prefixes} <= LAYOUTS.keys()


@given(st.binary())
def test_the_text_of_a_key_is_printable_and_reversible(key: bytes) -> None:
    assert key_bytes(key_text(key)) == key
    assert key_text(key).isprintable()


@given(st.sampled_from(sorted(LAYOUTS)), st.binary(max_size=60), st.binary(max_size=60))
def test_damaged_rows_are_shown(prefix: bytes, rest: bytes, value: bytes) -> None:
    row = decoded_row(CATALOG, prefix + rest, value)
    assert key_bytes(row["key"]) == prefix + rest
    decoded_row(CATALOG, prefix + rest, pack([value, {"a": 1}]))
