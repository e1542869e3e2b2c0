"""Relaying: small networks of sessions in memory. Each node answers and forwards by ttl like a real node."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network import LINE, ORIGIN, SHAPES, STAR, Network, hash_of, post_of

from cablestore import DRAFT8, limits
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.exchange import State, Step
from cablestore.protocol.message import (
    CancelRequest,
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    ModerationRequest,
    PostRequest,
    Request,
    StateRequest,
    TimeRangeRequest,
)

FEWER = settings(max_examples=settings().max_examples // 6)
"""Settings for tests of whole networks in four shapes."""
ALL_SHAPES = pytest.mark.parametrize("edges", SHAPES.values(), ids=list(SHAPES))
HASH_REQUESTS: dict[str, Callable[..., Request]] = {
    "range": lambda ttl, limit=0: TimeRangeRequest(b"", "a", 0, 9, limit, ttl),
    "live": lambda ttl, limit=0: TimeRangeRequest(b"", "a", 0, 0, limit, ttl),
    "state": lambda ttl: StateRequest(b"", "a", 0, ttl),
    "live state": lambda ttl: StateRequest(b"", "a", 1, ttl),
    "moderation": lambda ttl: ModerationRequest(b"", (), 0, 0, ttl),
}


def responses_beside(network: Network, request_id: bytes) -> list[Message]:
    """Return responses under an id without a request."""
    asked = {(far, near) for near, far, message in network.log if message.request_id == request_id}
    return [
        message
        for near, far, message in network.log
        if isinstance(message, HashResponse | ListResponse) and (near, far) not in asked
    ]


def requests_of_all_kinds(ttl: int) -> list[Request]:
    return [
        HASH_REQUESTS["range"](ttl),
        HASH_REQUESTS["state"](ttl),
        HASH_REQUESTS["moderation"](ttl),
        ListRequest(b"", 0, 0, ttl),
        PostRequest(b"", tuple(hash_of(node) for node in range(1, 9)), ttl),
    ]


KINDS = st.integers(0, len(requests_of_all_kinds(0)) - 1)

# --- answers and their recipients -----------------------------------------------------------------


@ALL_SHAPES
@pytest.mark.parametrize("kind", HASH_REQUESTS)
@pytest.mark.parametrize("ttl", [0, 1, 2, 4, 16])
def test_only_the_requester_receives_answers_of_all_within_ttl_hops(
    edges: list[tuple[int, int]], kind: str, ttl: int
) -> None:
    network = Network(edges, posts=2)
    mine, question = network.send_request(HASH_REQUESTS[kind](ttl))
    network.run()
    reached = network.within(ttl)
    assert sorted(question.hashes) == sorted(hash_of(node, at) for node in reached for at in range(2))
    assert {node.number for node in network.nodes.values() if node.asked} - {ORIGIN} == reached
    is_live = "live" in kind
    if not is_live:
        network.wait(30)
        assert question.ends == [Step.FINISHED]
    else:
        assert question.ends == []
        network.nodes[ORIGIN].sessions[1].cancel(mine)
        network.run()
    assert len(question.hashes) == 2 * len(reached)
    assert responses_beside(network, mine.request.request_id) == []
    network.assert_nothing_is_left()


@ALL_SHAPES
def test_ids_are_kept_and_ttls_count_down(edges: list[tuple[int, int]]) -> None:
    network = Network(edges)
    mine, _ = network.send_request(HASH_REQUESTS["state"](4))
    network.run()
    requests = [(near, message) for near, _, message in network.log if isinstance(message, StateRequest)]
    assert {message.request_id for _, message in requests} == {mine.request.request_id}
    hops = {near: hops for hops in range(4, -1, -1) for near in network.within(hops)}
    for near, message in requests:
        assert message.ttl == (4 if near == ORIGIN else 3 - hops[near])
        assert message.ttl >= 0


@ALL_SHAPES
@FEWER
@given(st.integers(0, 4), st.integers(1, 12), st.booleans(), st.randoms(use_true_random=False))
def test_the_limit_holds_over_all_sources(
    edges: list[tuple[int, int]], ttl: int, limit: int, is_live: bool, rng: random.Random
) -> None:
    network = Network(edges, posts=2, rng=rng)
    request = HASH_REQUESTS["live" if is_live else "range"](ttl, limit)
    _, question = network.send_request(request)
    network.run()
    if not is_live:
        network.wait(30)
    sent = [m for near, far, m in network.log if isinstance(m, HashResponse) and (near, far) == (1, ORIGIN)]
    assert sum(len(message.hashes) for message in sent) <= limit
    assert len(question.hashes) == len(set(question.hashes)) <= limit
    if edges in (LINE, STAR):
        assert len(question.hashes) == min(limit, 2 * len(network.within(ttl)))
    assert ORIGIN not in {node for node in range(7) for at in range(2) if hash_of(node, at) in question.hashes}
    if len(question.hashes) == limit:
        assert question.ends == [Step.LIMIT]
        network.wait(30)
        network.assert_nothing_is_left()
    else:
        assert question.ends == ([] if is_live else [Step.FINISHED])


def test_a_live_request_that_is_satisfied_immediately_ends_everywhere() -> None:
    network = Network(STAR, posts=3)
    _, question = network.send_request(HASH_REQUESTS["live"](3, 3))
    network.run()
    assert question.ends == [Step.LIMIT]
    network.assert_nothing_is_left()


@given(
    st.sets(st.sampled_from(list(itertools.combinations(range(5), 2))), max_size=10),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
def test_requests_end_in_any_network_and_order(edges: set[tuple[int, int]], ttl: int, rng: random.Random) -> None:
    """In any order of events the request ends, each node answers once, and nodes get only what they requested."""
    network = Network({*edges, (0, 1)}, posts=2, rng=rng)
    mine, question = network.send_request(HASH_REQUESTS["range"](ttl))
    network.run()
    network.wait(30)
    assert question.ends == [Step.FINISHED]
    heard = {node for node in network.nodes for at in range(2) if hash_of(node, at) in question.hashes}
    assert {1} <= heard <= network.within(ttl)
    assert len(question.hashes) == 2 * len(heard)
    if ttl == 5:
        assert heard == network.within(5)
    assert responses_beside(network, mine.request.request_id) == []
    network.assert_nothing_is_left()


@given(
    KINDS,
    st.sets(st.sampled_from(list(itertools.combinations(range(5), 2))), max_size=10),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
def test_stores_never_wait_for_each_other(kind: int, edges: set[tuple[int, int]], ttl: int, rng: random.Random) -> None:
    """Requests that cross on a connection are concluded by both sides without a timeout."""
    network = Network({*edges, (0, 1)}, rng=rng, greets=True)
    _, question = network.send_request(requests_of_all_kinds(ttl)[kind])
    network.run()
    assert len(question.ends) == 1
    if ttl == 5 and question.names:
        assert question.names == [tuple(f"channel {node}" for node in sorted(network.within(5)))]
    network.assert_nothing_is_left()


@ALL_SHAPES
@FEWER
@given(st.randoms(use_true_random=False))
def test_forwarding_ends_in_loops(edges: list[tuple[int, int]], rng: random.Random) -> None:
    network = Network(edges, rng=rng)
    network.send_request(HASH_REQUESTS["range"](limits.MAX_TTL))
    network.run()
    asked = [message for _, _, message in network.log if isinstance(message, TimeRangeRequest)]
    assert len(asked) <= 2 * len(edges), "a request must not be sent twice over a wire in one direction"


@given(KINDS, st.sets(st.integers(2, 6)), st.randoms(use_true_random=False))
def test_draft8_peers_are_never_forwarded_to(kind: int, modern: set[int], rng: random.Random) -> None:
    network = Network(STAR, dialects=dict.fromkeys(modern, DRAFT8), rng=rng)
    _, question = network.send_request(requests_of_all_kinds(3)[kind])
    network.run()
    assert not [message for near, far, message in network.log if far in modern]
    assert all(network.nodes[leaf].asked == (leaf not in modern) for leaf in range(2, 7))
    assert len(question.ends) == 1
    network.assert_nothing_is_left()


# --- cancel, loss, silence -------------------------------------------------------------------------


@ALL_SHAPES
@pytest.mark.parametrize("how", ["cancel", "loss"])
@FEWER
@given(st.randoms(use_true_random=False), st.integers(0, 5))
def test_a_cancel_and_a_loss_are_forwarded_along_the_route(
    edges: list[tuple[int, int]], how: str, rng: random.Random, ttl: int
) -> None:
    network = Network(edges, rng=rng)
    mine, question = network.send_request(HASH_REQUESTS["live"](ttl))
    network.run()
    heard = len(question.hashes)
    if how == "cancel":
        network.nodes[ORIGIN].sessions[1].cancel(mine)
    else:
        network.cut(ORIGIN, 1)
    network.run()
    network.assert_nothing_is_left()
    assert len(question.hashes) == heard
    cancels = [message for _, _, message in network.log if isinstance(message, CancelRequest)]
    assert all(message.ttl == 0 and message.cancel_id == mine.request.request_id for message in cancels)


def test_hashes_of_a_live_request_are_forwarded() -> None:
    network = Network(LINE)
    _, question = network.send_request(HASH_REQUESTS["live state"](4))
    network.run()
    for number in (1, 3, 5):
        node = network.nodes[number]
        ((session, exchange),) = [(s, found) for s in node.sessions.values() for found in s.to_answer.values()]
        assert exchange.state is State.LIVE, "other answers have no end"
        session.answer_hashes(exchange, [hash_of(99, number)])
    network.run()
    assert sorted(question.hashes[-3:]) == sorted(hash_of(99, number) for number in (1, 3, 5))


def test_the_end_of_one_live_answer_does_not_end_the_others() -> None:
    network = Network(STAR)
    _, question = network.send_request(HASH_REQUESTS["live state"](2))
    network.run()
    leaf = network.nodes[2].sessions[1]
    (exchange,) = leaf.to_answer.values()
    leaf.reject(exchange)
    network.cut(1, 3)
    network.run()
    assert question.ends == []
    assert len(network.nodes[1].sessions[ORIGIN].to_answer) == 1


@ALL_SHAPES
@FEWER
@given(KINDS, st.integers(1, 5), st.sets(st.integers(2, 6)), st.booleans(), st.randoms(use_true_random=False))
def test_every_finite_request_ends(
    edges: list[tuple[int, int]], kind: int, ttl: int, broken: set[int], is_lost: bool, rng: random.Random
) -> None:
    """Peers with a request are silent, or are lost at some moment."""
    network = Network(edges, rng=rng)
    silent = [node for number, node in network.nodes.items() if number in broken]
    for node in silent:
        node.is_silent = True
    _, question = network.send_request(requests_of_all_kinds(ttl)[kind])
    network.run()
    if is_lost:
        for node in silent:
            for far in list(node.sessions):
                network.cut(node.number, far)
        network.run()
    network.wait(limits.ANSWER_TIMEOUT_S)
    assert len(question.ends) == 1
    if not silent or edges in (LINE, STAR):
        assert question.ends[0] in (Step.FINISHED, Step.SATISFIED)
    network.wait(limits.ANSWER_TIMEOUT_S)
    for node in network.nodes.values():
        for session in node.sessions.values():
            assert session.open_requests == {}
            assert node.is_silent or session.to_answer == {}
    assert network.violations == []


@given(st.integers(2, 5), st.integers(2, 5), st.randoms(use_true_random=False))
def test_answers_before_a_silent_peer_are_not_lost(silent: int, ttl: int, rng: random.Random) -> None:
    """A node nearer to the origin waits longer. All names arrive at the same time."""
    network = Network(LINE, phases_s=[rng.random() for _ in range(6)])
    network.nodes[silent].is_silent = True
    _, question = network.send_request(ListRequest(b"", 0, 0, ttl))
    network.run()
    network.wait(limits.ANSWER_TIMEOUT_S - 1)
    reached = range(1, min(silent, ttl + 2))
    assert question.names == [tuple(f"channel {node}" for node in reached)]
    assert question.ends == [Step.FINISHED]


# --- posts and names -------------------------------------------------------------------------------


@ALL_SHAPES
@FEWER
@given(st.data())
def test_only_missing_posts_are_requested_from_others(edges: list[tuple[int, int]], data: st.DataObject) -> None:
    network = Network(edges, posts=0, rng=data.draw(st.randoms(use_true_random=False)))
    ttl = data.draw(st.integers(0, 5))
    known = {hash_of(0, at): post_of(0, at) for at in range(6)}
    for node in network.nodes.values():
        if node.number != ORIGIN:
            node.posts = {digest: known[digest] for digest in data.draw(st.sets(st.sampled_from(sorted(known))))}
    wanted = tuple(data.draw(st.lists(st.sampled_from(sorted(known)), min_size=1, unique=True)))
    _, question = network.send_request(PostRequest(b"", wanted, ttl))
    network.run()
    network.wait(30)
    for near, _, message in network.log:
        if isinstance(message, PostRequest) and near != ORIGIN:
            assert message.hashes
            assert not set(message.hashes) & set(network.nodes[near].posts)
            assert set(message.hashes) <= set(wanted)
    heard = [post_hash(post) for post in question.posts]
    assert len(heard) == len(set(heard))
    assert set(heard) <= set(wanted)
    reached = network.within(ttl)
    available = {digest for node in reached for digest in network.nodes[node].posts if digest in wanted}
    if edges in (LINE, STAR) or ttl == 5:
        assert set(heard) == available
    assert question.ends == [Step.SATISFIED if set(heard) == set(wanted) else Step.FINISHED]
    network.assert_nothing_is_left()


@ALL_SHAPES
@FEWER
@given(
    st.lists(st.sets(st.sampled_from("abcdefgh"), max_size=5), min_size=7, max_size=7),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 5),
)
def test_names_of_all_nodes_are_one_sorted_page(
    edges: list[tuple[int, int]], names: list[set[str]], offset: int, limit: int, ttl: int
) -> None:
    network = Network(edges)
    for node in network.nodes.values():
        node.names = list(names[node.number])
    _, question = network.send_request(ListRequest(b"", offset, limit, ttl))
    network.run()
    network.wait(30)
    everything = sorted({name for node in network.within(ttl) for name in names[node]})
    page = everything[offset : offset + limit] if limit else everything[offset:]
    assert question.names == [tuple(page)]
    assert question.ends == [Step.FINISHED]
    responses = [(near, far) for near, far, message in network.log if isinstance(message, ListResponse)]
    assert responses.count((1, ORIGIN)) == 1
    network.assert_nothing_is_left()


def test_the_number_of_names_of_one_peer_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUTE_HASHES_REMEMBERED", 4)
    network = Network([(0, 1), (1, 2)])
    network.nodes[2].names = [f"c{number}" for number in range(9)]
    _, question = network.send_request(ListRequest(b"", 0, 0, 1))
    network.run()
    assert question.names == [("c0", "c1", "c2", "c3", "channel 1")]
