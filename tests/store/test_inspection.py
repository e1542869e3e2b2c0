"""Reads for programs that inspect a store: raw rows, the rows of a post, counts by time, the graph of a channel."""

from __future__ import annotations

from collections import Counter

from history import CHANNELS, histories
from hypothesis import given, settings
from people import ANN, BOB, raws
from stores import store_of

from cablestore import CableStore, Dialect, Post, limits
from cablestore.protocol.body import LINKABLE_TYPES

OF_SEVERAL_POSTS = (b"!meta", b"!sizes", b"!sync!sum!", b"!channel!members!", b"!head!")
"""Rows of sums over many posts, and of heads, which also exist for posts that the store has never received."""


def all_posts(store: CableStore) -> list[Post]:
    return [post for user in store.users() for post in store.posts_by(user.public_key)]


@given(histories(max_posts=20))
@settings(deadline=None)
def test_the_rows_of_all_posts_are_the_complete_database(history: tuple[Dialect, list[Post]]) -> None:
    dialect, posts = history
    with store_of(dialect, posts) as store:
        found = {row for post in posts for row in store.rows_of(post.hash)}
        named = {target for post in posts for target in getattr(post.body, "hashes", ())}
        found |= {row for target in named for row in store.rows_of(target)}
        assert {row for row in store.dump() if not row[0].startswith(OF_SEVERAL_POSTS)} == {
            row for row in found if not row[0].startswith(OF_SEVERAL_POSTS)
        }


@given(histories(max_posts=20))
@settings(deadline=None)
def test_pages_of_rows_cover_the_complete_database(history: tuple[Dialect, list[Post]]) -> None:
    dialect, posts = history
    with store_of(dialect, posts) as store:
        pages, after = [], None
        while page := store.rows(b"", 7, after_key=after):
            pages += page
            after = page[-1][0]
        assert [row for row in pages if not row[0].startswith((b"!arrival!", b"!local!"))] == list(store.dump())
        assert store.rows(b"!chat!", 1000) == [row for row in pages if row[0].startswith(b"!chat!")]


@given(histories(max_posts=20))
@settings(deadline=None)
def test_posts_are_counted_by_time(history: tuple[Dialect, list[Post]]) -> None:
    dialect, posts = history
    with store_of(dialect, posts) as store:
        held = all_posts(store)
        for step_ms in (1, 1000, 86_400_000):

            def expected(chosen: list[Post], step_ms: int = step_ms) -> list[tuple[int, int]]:
                return sorted(Counter(post.timestamp_ms // step_ms * step_ms for post in chosen).items())

            assert store.post_counts(step_ms) == expected([post for post in held if not post.is_local_only])
            for user in store.users():
                own = [post for post in held if post.author == user.public_key]
                assert store.post_counts(step_ms, author=user.public_key) == expected(own)
            for channel in CHANNELS:
                name = dialect.channel_id(channel)
                inside = [post for post in held if post.channel == name and not post.is_local_only]
                assert store.post_counts(step_ms, channel=channel) == expected(inside)


@given(histories(max_posts=20))
@settings(deadline=None)
def test_the_graph_has_the_posts_of_the_channel_and_their_links(history: tuple[Dialect, list[Post]]) -> None:
    dialect, posts = history
    with store_of(dialect, posts) as store:
        held = all_posts(store)
        for channel in CHANNELS:
            graph = store.channel_graph(channel)
            stored = {node.hash for node in graph.nodes if node.state == "stored"}
            inside = {
                post.hash for post in held if post.channel == dialect.channel_id(channel) and not post.is_local_only
            }
            assert graph.is_complete
            assert (
                {post.hash for post in held if post.hash in inside and post.type in LINKABLE_TYPES} <= stored <= inside
            )
            for node in graph.nodes:
                if node.state == "stored":
                    assert node.links == store.links(node.hash)
                    assert node.is_head == (node.hash in store.heads(channel))
                elsewhere = {link for link in node.links if store.get(link) is not None} - inside
                assert set(node.links) - elsewhere <= {other.hash for other in graph.nodes}
            assert [node.hash for node in graph.nodes] == [
                node.hash for node in sorted(graph.nodes, key=lambda node: (node.timestamp_ms or 0, node.hash))
            ]


def test_the_graph_shows_forks_deleted_and_missing_posts() -> None:
    unknown = ANN.text("c", "never sent")
    first = ANN.text("c", "first", links=(unknown.hash,))
    left = ANN.text("c", "left", links=(first.hash, unknown.hash))
    right = BOB.text("c", "right", links=(first.hash,))
    last = ANN.text("c", "last", links=(left.hash,))
    with CableStore.in_memory() as store:
        store.ingest(raws(first, left, right, last, ANN.delete(left)))
        nodes = {node.hash: node for node in store.channel_graph("c").nodes}
        assert {hash_: node.state for hash_, node in nodes.items()} == {
            unknown.hash: "missing",
            first.hash: "stored",
            left.hash: "deleted",
            right.hash: "stored",
            last.hash: "stored",
        }
        assert {hash_ for hash_, node in nodes.items() if node.is_head} == {right.hash, last.hash}
        assert nodes[left.hash].links == (first.hash, unknown.hash)
        assert store.graph_nodes([*nodes]) == [*nodes.values()]
        later = store.channel_graph("c", after_ms=last.timestamp_ms)
        assert {node.hash for node in later.nodes} == {last.hash, left.hash}
        since_left = store.channel_graph("c", after_ms=left.timestamp_ms)
        assert {node.hash for node in since_left.nodes} == {last.hash, right.hash, left.hash, unknown.hash}


def test_a_window_includes_its_start_and_excludes_its_end() -> None:
    posts = [ANN.text("c", "x", at=10)]
    for at in (20, 30, 40):
        posts.append(ANN.text("c", "x", at=at, links=(posts[-1].hash,)))
    gone, head = posts.pop(1), ANN.text("c", "x", at=60, links=(posts[-1].hash,))
    with CableStore.in_memory() as store:
        store.ingest(raws(gone, *posts, head, ANN.delete(gone, at=50), ANN.delete(head, at=70)))
        for where in ({"channel": "c"}, {"author": ANN.key}):
            assert store.post_counts(1, after_ms=30, before_ms=40, **where) == [(30, 1)]
            assert store.post_counts(15, after_ms=10, before_ms=41, **where) == [(0, 1), (30, 2)]
            assert store.post_counts(1, after_ms=2**60, **where) == []
        assert store.post_counts(1, before_ms=51) == [(10, 1), (30, 1), (40, 1), (50, 1)]
        graph = store.channel_graph("c", after_ms=20, before_ms=40)
        assert [(node.hash, node.state) for node in graph.nodes] == [(gone.hash, "deleted"), (posts[1].hash, "stored")]
        assert [node.hash for node in store.channel_graph("c", after_ms=60).nodes] == [head.hash]
        assert store.channel_graph("c", after_ms=41, before_ms=60).nodes == []
        rows = store.rows(b"!chat!text!", 100)
        assert store.rows(b"!chat!text!", 2, after_key=b"!a") == rows[:2]
        assert store.rows(b"!chat!text!", 2, after_key=rows[0][0]) == rows[1:3]


def test_a_graph_has_the_newest_posts_up_to_its_limit() -> None:
    posts = [ANN.text("c", str(number)) for number in range(limits.MAX_GRAPH_POSTS + 1)]
    with CableStore.in_memory() as store:
        store.ingest(raws(*posts), verify=False)
        graph = store.channel_graph("c")
        assert [node.hash for node in graph.nodes] == [post.hash for post in posts[1:]]
        assert not graph.is_complete
        assert store.channel_graph("c", limit=len(posts)).is_complete
