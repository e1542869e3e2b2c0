"""Conversations: two stores compare, send and receive until they are equal, and any fault of a peer ends in an error."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from history import histories
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN, BOB, START_MS, raws
from stores import public
from talking import (
    Side,
    content_of,
    conversation,
    hello,
    live,
    reconciled,
    talk_between,
    talk_with_slow_disks,
    two_halves,
    vanishing,
    with_stores,
)

from cablestore import Dialect, Post, StoreOptions, limits
from cablestore.reconcile import conversation as conversations
from cablestore.reconcile import outgoing
from cablestore.reconcile.codec import encode
from cablestore.reconcile.conversation import DEFAULT_SPLITTING
from cablestore.reconcile.dialects import SPEC
from cablestore.reconcile.errors import PeerRefusedError, ReconcileError, ReconcileLimitError
from cablestore.reconcile.ids import EVERYTHING
from cablestore.reconcile.messages import (
    Accepted,
    ConversationMessage,
    Done,
    Ended,
    EndReason,
    PayloadFrame,
    PostsFrame,
    PostsSent,
    Purpose,
    Stored,
    SumsRequest,
    Terms,
    decode_frame,
    encode_frame,
)
from cablestore.reconcile.payload import ItemSet, Payload, PayloadPart, Shards
from cablestore.reconcile.session import SessionLimits

# --- results -------------------------------------------------------------------------------------


def are_alike(*sides: Side) -> bool:
    assert all(side.store.check().is_clean for side in sides)
    return len({side.store.dump_digest() for side in sides}) == 1


@pytest.mark.thorough("3000-hear_unlisted6")
@pytest.mark.parametrize(
    ("number", "hear_unlisted"),
    [
        (0, (True, True)),
        (1, (True, False)),
        (120, (True, True)),
        (120, (True, False)),
        (120, (False, True)),
        (120, (False, False)),
        (3_000, (True, True)),
    ],
)
def test_two_stores_become_equal(number: int, hear_unlisted: tuple[bool, bool]) -> None:
    """The stores have texts, names, joins, topics, and deletions before and after their targets.

    Each post is sent once.
    """
    here, there = two_halves(conversation(number))
    stores = with_stores(here, there)
    lacked = [len(live(store) - live(peer)) for store, peer in (stores, stores[::-1])]
    one, other = reconciled(*stores, hear_unlisted=hear_unlisted)
    assert are_alike(one, other)
    assert [len(other.came), len(one.came)] == lacked
    for side, peer in ((one, other), (other, one)):
        findings = side.talk.findings
        assert findings.posts_received == len(side.came) == peer.talk.findings.posts_sent
        assert (findings.here_only, findings.there_only, findings.unasked) == (len(peer.came), len(side.came), 0)
        assert side.talk.missing == []
        if all(hear_unlisted):
            assert findings.sent == peer.talk.findings.received
    again = reconciled(one.store, other.store)
    assert [side.talk.findings.here_only for side in again] == [0, 0]
    assert again[1].talk.findings.received.comparing < 150


@pytest.mark.thorough
@settings(max_examples=100)
@given(histories(), st.data())
def test_any_histories_become_equal(history: tuple[Dialect, list[Post]], data: st.DataObject) -> None:
    """Each store has any of the posts. Both end with the state that any order of storing them has."""
    dialect, posts = history
    which = data.draw(st.lists(st.integers(0, 3), min_size=len(posts), max_size=len(posts)))
    stores = with_stores([], [])
    stores = [
        type(store).in_memory(dialect=dialect, options=StoreOptions(verify_threads=1, clock=lambda: 10**12))
        for store in stores
    ]
    for side, store in enumerate(stores):
        store.ingest(raws(*(post for post, to in zip(public(posts), which, strict=False) if to in (side, 2))))
    one, other = reconciled(*stores)
    held = [{post for post in public(posts) if side.store.get(post.hash)} for side in (one, other)]
    assert held[0] == held[1]
    assert all(store.check().is_clean for store in stores)


@pytest.mark.thorough
def test_deletions_are_sent_after_all_other_posts() -> None:
    """The targets of a deletion are sent before it, so both stores keep the same skeletons."""
    texts = [ANN.text("default", f"{i}" + "x" * 500) for i in range(2_000)]
    gone = [ANN.delete(*texts[:1_000])]
    one, other = reconciled(*with_stores(texts, gone))
    assert are_alike(one, other)
    batches = [message for message in other.said if isinstance(message, PostsFrame | PostsSent)]
    assert isinstance(batches[0], PostsSent)
    assert other.came == raws(*texts)


def test_a_conversation_compares_the_states_at_its_beginning() -> None:
    """Posts that are stored meanwhile wait for the next one. Posts that are deleted meanwhile are not sent."""
    here, there = two_halves(conversation(1_000))
    stores = with_stores(here, there)
    with Side(stores[0]) as one, Side(stores[1]) as other:
        talk_between(one, other, most=3)
        late = [ANN.text("default", f"late {i}") for i in range(10)]
        stores[0].ingest(raws(*late))
    with Side(stores[0], receives_unlisted=False) as one, Side(stores[1], receives_unlisted=False) as other:
        one.talk.begin()
        kept = [post for post in here if post not in there and stores[0].get(post.hash)][:5]
        stores[0].discard([post.hash for post in kept])
        wires = [*one.output()]
        while wires:
            other.take(wires.pop(0))
            for frame in other.output():
                one.take(frame)
            wires += one.output()
        assert one.talk.is_finished
        assert other.talk.is_finished
        assert len(other.talk.missing) == 5
        assert not any(stores[1].get(post.hash) for post in kept)
        assert all(stores[1].get(post.hash) for post in late)


@pytest.mark.parametrize(
    ("terms", "of_peer"),
    [
        (Terms(from_ms=START_MS + 10_000, until_ms=START_MS + 20_000), Terms()),
        (Terms(from_ms=START_MS + 10_000), Terms(until_ms=START_MS + 20_000)),
    ],
)
def test_only_posts_in_the_times_of_both_sides_are_exchanged(terms: Terms, of_peer: Terms) -> None:
    texts = [ANN.text("default", f"{i}", at=START_MS + 1000 * i) for i in range(30)]
    stores = with_stores(texts[::2], texts[1::2])
    with Side(stores[0], terms) as one, Side(stores[1], of_peer) as other:
        talk_between(one, other)
    assert sorted(one.came) == sorted(raws(*texts[11:20:2]))
    assert sorted(other.came) == sorted(raws(*texts[10:20:2]))


def test_only_posts_in_channels_of_both_sides_or_without_a_channel_are_exchanged() -> None:
    texts = [ANN.text(name, name) for name in ("a", "b", "c")]
    texts.append(ANN.named("Ann"))
    stores = with_stores(texts, [])
    with (
        Side(stores[0], Terms(channels=frozenset({"a", "b"}))) as one,
        Side(stores[1], Terms(channels=frozenset({"b", "c"}))) as other,
    ):
        talk_between(one, other)
    assert set(other.came) == set(raws(texts[1], texts[3]))


@pytest.mark.parametrize("takes", [(True, False), (False, True), (False, False)])
def test_a_side_that_accepts_nothing_still_sends(takes: tuple[bool, bool]) -> None:
    here, there = two_halves(conversation(50))
    stores = with_stores(here, there)
    with Side(stores[0], Terms(accepts_posts=takes[0])) as one, Side(stores[1], Terms(accepts_posts=takes[1])) as other:
        talk_between(one, other)
    assert (bool(one.came), bool(other.came)) == takes


@pytest.mark.thorough
@settings(max_examples=15)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_interrupted_conversations_lose_nothing(breaks: list[int]) -> None:
    """Conversations break after any number of frames; the last one does not.

    Frames are smaller than usual, so there are more.
    """
    stores = with_stores(*two_halves(conversation(300)))
    splitting = type(DEFAULT_SPLITTING)(frame_size_bytes=1_000, skip_equal_sets=True)
    for most in [*breaks, None]:
        with Side(stores[0], splitting=splitting) as one, Side(stores[1], splitting=splitting) as other:
            talk_between(one, other, most=most)
    assert are_alike(one, other)


# --- auditing --------------------------------------------------------------------------------------


def test_an_audit_reports_posts_that_were_crafted_to_stay_unfound() -> None:
    """Real signed posts, some of which have XOR 0, are not moved by a reconciliation. The audit reports their times.

    It ends although the sets still differ.
    """
    hidden = vanishing(lambda i: ANN.text("spam", f"{i}", at=START_MS + 1_000_000 + 1000 * i))
    base = [ANN.text("default", f"{i}", at=START_MS + 1000 * i) for i in range(3_000)]
    stores = with_stores(base, base + hidden)
    one, other = reconciled(*stores)
    assert not are_alike(one, other)
    assert (one.came, other.came) == ([], [])
    for first, second in (stores, stores[::-1]):
        with Side(first, purpose=Purpose.AUDIT) as one, Side(second) as other:
            talk_between(one, other)
        requests = [message.data for message in one.said if isinstance(message, SumsRequest)]
        assert len({*requests}) == 3
        findings = one.talk.findings
        assert findings.is_by_design
        assert len(findings.differing) > 40, "each audit splits the ranges of the one before"
        assert (one.came, other.came) == ([], [])
        first_ns, last_ns = findings.differing[0].lower.timestamp_ns, findings.differing[-1].upper.timestamp_ns
        assert first_ns <= 1_000_000 * hidden[0].timestamp_ms
        assert last_ns >= 1_000_000 * hidden[-1].timestamp_ms


@pytest.mark.parametrize("number", [0, 5, 400])
def test_an_audit_of_ordinary_differences_finds_no_crafted_posts(number: int) -> None:
    stores = with_stores(*two_halves(conversation(number)))
    with Side(stores[0], purpose=Purpose.AUDIT) as one, Side(stores[1]) as other:
        talk_between(one, other)
    findings = one.talk.findings
    assert (findings.differing, findings.is_by_design) == ([], False)
    assert findings.here_only > 0 or number == 0
    assert (one.came, other.came) == ([], [])


# --- faulty peers ----------------------------------------------------------------------------------


def begun(posts: list[Post], *more: ConversationMessage, terms: Terms | None = None) -> Side:
    """Return the accepting side of a conversation that received these frames."""
    [store] = with_stores(posts)
    side = Side(store, terms)
    side.take(hello())
    for message in more:
        side.take(encode_frame(7, message))
    return side


def refusals(side: Side) -> list[EndReason]:
    side.output()
    return [message.reason for message in side.said if isinstance(message, Ended)]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (hello(version=2), EndReason.VERSION),
        (hello(dialect="draft8"), EndReason.DIALECT),
        (hello(terms=Terms(until_ms=5)), EndReason.NOTHING),
    ],
)
def test_impossible_terms_are_rejected_with_a_reason(frame: bytes, reason: EndReason) -> None:
    [store] = with_stores([])
    with Side(store, Terms(from_ms=5)) as side:
        with pytest.raises(PeerRefusedError) as error:
            side.take(frame)
        assert error.value.reason == reason.name.lower()
        assert refusals(side) == [reason]
    with Side(store) as asking:
        asking.talk.begin()
        number, _ = decode_frame(asking.output()[0])
        with pytest.raises(PeerRefusedError, match="the peer ended the reconciliation: no"):
            asking.take(encode_frame(number, Ended(reason, "no")))


def test_frames_of_another_conversation_are_ignored() -> None:
    with begun(conversation(20)) as side:
        for message in (Done(1), PostsFrame(5, (b"x",)), Ended(EndReason.OTHER, "x")):
            side.take(encode_frame(8, message))
        assert refusals(side) == []


@pytest.mark.parametrize(
    "message",
    [
        Accepted(Terms()),
        Done(0),
        Stored(0),
        SumsRequest(b"\x01"),
        PostsFrame(1, ()),
        PostsFrame(0, (b"nothing",)),
        PayloadFrame(b"\xff" * 30),
    ],
    ids=lambda message: type(message).__name__,
)
def test_frames_out_of_turn_end_a_conversation(message: ConversationMessage) -> None:
    with begun(conversation(20)) as side, pytest.raises(ReconcileError):
        side.take(encode_frame(7, message))


NEW = ANN.text("default", "x", at=START_MS + 5_000)


@pytest.mark.parametrize(
    ("held", "terms"),
    [
        ([NEW], Terms()),
        ([], Terms(until_ms=START_MS)),
        ([], Terms(from_ms=START_MS + 9_000)),
        ([], Terms(accepts_posts=False)),
    ],
    ids=["known", "later", "earlier", "nothing is accepted"],
)
def test_unneeded_posts_are_rejected(held: list[Post], terms: Terms) -> None:
    """MAX_TALK_UNASKED: other posts, and repeated ones, are not stored. Too many of them end the conversation."""
    one = PostsFrame(0, (content_of(NEW),) * limits.MAX_TALK_UNASKED)
    with begun([*conversation(20), *held], one, terms=terms) as side:
        assert side.came == []
        with pytest.raises(ReconcileError, match="sent 101 posts that were not requested, the maximum is 100"):
            side.take(encode_frame(7, PostsFrame(1, (content_of(NEW),))))


def test_received_posts_are_not_accepted_again() -> None:
    texts = [ANN.text("default", f"{i}") for i in range(3)]
    stores = with_stores([], texts)
    with Side(stores[0]) as here, Side(stores[1]) as there:
        here.talk.begin()
        while not any(isinstance(message, PostsFrame) for message in there.said):
            for frame in here.output():
                there.take(frame)
            frames = there.output()
            for frame in frames:
                here.take(frame)
        [(number, batch)] = [decode_frame(frame) for frame in frames if frame[0] == 5]
        assert isinstance(batch, PostsFrame)
        here.take(encode_frame(number, batch._replace(batch=1)))
        assert sorted(here.came) == sorted(raws(*texts))
        assert here.talk.findings.unasked == 3


def test_unstored_batches_have_a_limit() -> None:
    """MAX_TALK_BATCHES in transit: each side waits until its batches are stored. More batches end the conversation."""
    texts = [ANN.text("default", f"{i}" + "x" * 3_000) for i in range(200)]
    stores = with_stores(texts, [])
    with Side(stores[0]) as one, Side(stores[1]) as other:
        one.talk.begin()
        for _ in range(10):
            for frame in one.output():
                if frame[0] != 5:
                    other.take(frame)
            for frame in other.output():
                one.take(frame)
        sent = [message for message in one.said if isinstance(message, PostsFrame)]
        assert 1 < len(sent) <= limits.MAX_TALK_BATCHES
    [store] = with_stores([])
    with Side(store) as side:
        side.talk.receive(hello(), at_s=0.0)
        for batch in range(limits.MAX_TALK_BATCHES):
            assert side.talk.receive(encode_frame(7, PostsFrame(batch, ())), at_s=0.0)
        with pytest.raises(ReconcileError, match="too many unconfirmed batches: the maximum is 4"):
            side.talk.receive(encode_frame(7, PostsFrame(4, ())), at_s=0.0)


def test_the_size_of_payloads_and_batches_is_limited() -> None:
    """A frame exceeds TALK_PAYLOAD_SIZE_BYTES or TALK_BATCH_SIZE_BYTES by at most one post.

    The first ones have about TALK_FIRST_PAYLOAD_SIZE_BYTES and at least TALK_LEAST_BATCH_SIZE_BYTES.
    """
    texts = [ANN.text("default", f"{i}" + "x" * 1_000) for i in range(3_000)]
    one, other = reconciled(*with_stores(texts, []), hear_unlisted=(False, False))
    payloads = [len(m.data) for side in (one, other) for m in side.said if isinstance(m, PayloadFrame)]
    batches = [sum(map(len, m.contents)) for m in one.said if isinstance(m, PostsFrame)]
    assert max(payloads) < 1.2 * limits.TALK_PAYLOAD_SIZE_BYTES
    assert next(size for size in payloads if size > 200) < 2.2 * limits.TALK_FIRST_PAYLOAD_SIZE_BYTES
    assert limits.TALK_BATCH_SIZE_BYTES <= max(batches) < limits.TALK_BATCH_SIZE_BYTES + 1_500
    assert limits.TALK_LEAST_BATCH_SIZE_BYTES <= batches[0] < limits.FLOW_FIRST_SIZE_BYTES
    assert len(other.came) == 3_000


@pytest.mark.thorough("receives")
@pytest.mark.parametrize("is_here", [True, False], ids=["sends", "receives"])
def test_ids_of_missing_posts_are_not_sent(is_here: bool) -> None:
    """If one side has no posts, the other one sends posts instead of ids. Older versions need the ids."""
    texts = [ANN.text("default", f"{i}") for i in range(2_000)]

    def compared_size_bytes(*, hears: bool) -> int:
        halves = (texts, texts[:100]) if is_here else (texts[:100], texts)
        one, other = reconciled(*with_stores(*halves), hear_unlisted=(hears, hears))
        assert are_alike(one, other)
        return one.talk.findings.sent.comparing + one.talk.findings.received.comparing

    assert compared_size_bytes(hears=True) < 3 * 1_900 < 33 * 1_900 < compared_size_bytes(hears=False)


@pytest.mark.parametrize("is_here", [True, False], ids=["sends", "receives"])
def test_the_latest_posts_are_sent_with_the_first_answer(is_here: bool) -> None:
    """Ranges are not split, because each split needs a round trip."""
    texts = [ANN.text("default", f"{i}", at=START_MS + 1000 * i) for i in range(1_000)]
    halves = (texts, texts[:800]) if is_here else (texts[:800], texts)
    with Side(with_stores(halves[0])[0]) as one, Side(with_stores(halves[1])[0]) as other:
        taker = other if is_here else one
        one.talk.begin()
        rounds = 0
        while not taker.came:
            for sender, receiver in ((one, other), (other, one)):
                for frame in sender.output():
                    receiver.take(frame)
            rounds += 1
        assert rounds <= 3
        assert not set(taker.came) - set(raws(*texts[800:]))


def test_the_largest_post_is_transferred() -> None:
    largest = ANN.text(
        "x" * limits.MAX_CHANNEL_CODEPOINTS, "y" * 4_096, links=tuple(bytes((i % 256,)) * 32 for i in range(8_050))
    )
    assert len(largest.raw) > 0.99 * limits.MAX_POST_SIZE_BYTES
    one, other = reconciled(*with_stores([largest], []))
    assert are_alike(one, other)


def test_differences_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_TALK_DIFFERENCES limits what one conversation finds, MAX_TALK_UNSENT what it leaves unsent.

    Further conversations find the rest.
    """
    monkeypatch.setattr(outgoing, "MAX_TALK_UNSENT", 50)
    assert limits.MAX_TALK_UNSENT < limits.MAX_TALK_DIFFERENCES
    stores = with_stores([ANN.text("default", f"{i}") for i in range(1_500)], [])
    splitting = type(DEFAULT_SPLITTING)(frame_size_bytes=2_000, skip_equal_sets=True)
    named: dict[str, Any] = {"splitting": splitting, "limits": SessionLimits(differences=400)}
    sizes = []
    for _ in range(10):
        with Side(stores[0], **named) as one, Side(stores[1], **named) as other:
            try:
                talk_between(one, other)
                break
            except ReconcileLimitError:
                sizes.append(len(other.came))
    assert len(sizes) in (3, 4)
    assert min(sizes) > 300, "what is found is sent before more is compared"
    assert are_alike(one, other)


def test_held_frames_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_TALK_HELD_FRAMES: memory is bounded for a peer that does not confirm batches and continues to send frames."""
    monkeypatch.setattr(outgoing, "MAX_TALK_UNSENT", 10)
    monkeypatch.setattr(outgoing, "TALK_BATCH_SIZE_BYTES", 1)
    [store] = with_stores([ANN.text("default", f"{i}") for i in range(50)])
    nothing = encode(Payload(Shards(), [PayloadPart(EVERYTHING, ItemSet([], False))]), SPEC)
    with Side(store) as side:
        side.take(hello())
        side.take(encode_frame(7, PayloadFrame(nothing)))
        side.output()
        assert 1 <= sum(isinstance(message, PostsFrame) for message in side.said) <= 4
        for _ in range(limits.MAX_TALK_HELD_FRAMES):
            side.take(encode_frame(7, PayloadFrame(nothing)))
        with pytest.raises(ReconcileError, match="too many frames of the peer wait: the maximum is 16"):
            side.take(encode_frame(7, PayloadFrame(nothing)))


@pytest.mark.thorough("0", "60")
@pytest.mark.parametrize("unsent", [0, 30, 60])
def test_two_sides_with_many_posts_to_send_do_not_wait_for_each_other(
    unsent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MAX_TALK_UNSENT on both sides at once, with disks so slow that all four batches are in transit."""
    monkeypatch.setattr(outgoing, "MAX_TALK_UNSENT", unsent)
    monkeypatch.setattr(conversations, "MAX_TALK_HELD_FRAMES", 6)  # more than honest peers need
    monkeypatch.setattr(outgoing, "TALK_BATCH_SIZE_BYTES", 600)
    splitting = type(DEFAULT_SPLITTING)(frame_size_bytes=2_000, skip_equal_sets=True)
    for _ in range(3):
        posts = [random.choice((ANN, BOB)).text("default", f"{i}", at=START_MS + i) for i in range(600)]
        stores = with_stores(*([post for post in posts if post.author == each.key] for each in (ANN, BOB)))
        with Side(stores[0], splitting=splitting) as one, Side(stores[1], splitting=splitting) as other:
            talk_with_slow_disks(one, other)
            assert one.talk.is_finished
            assert other.talk.is_finished
        assert are_alike(one, other)


def test_audits_of_a_peer_have_a_limit() -> None:
    """MAX_TALK_QUESTIONS that one peer may send in a conversation."""
    [store] = with_stores(conversation(20))
    question = encode_frame(7, SumsRequest(b"\x01\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00"))
    with Side(store) as side:
        side.take(hello(purpose=Purpose.AUDIT))
        for _ in range(limits.MAX_TALK_QUESTIONS):
            side.take(question)
        with pytest.raises(ReconcileError, match="too many sums requests: the maximum is 8"):
            side.take(question)


def test_an_agreement_to_more_than_was_requested_is_rejected() -> None:
    [store] = with_stores([])
    with Side(store, Terms(from_ms=1_000)) as side:
        side.talk.begin()
        number, _ = decode_frame(side.output()[0])
        with pytest.raises(ReconcileError, match="accepted terms that were not requested"):
            side.take(encode_frame(number, Accepted(Terms())))


@cache
def whole_talk() -> tuple[list[Post], tuple[list[Post], list[Post]], list[bytes]]:
    """Return the posts of two stores, the posts of each store, and the frames that the second one received."""
    posts = conversation(40)
    halves = two_halves(posts)
    stores = with_stores(*halves)
    with Side(stores[0]) as one, Side(stores[1]) as other:
        talk_between(one, other)
    return posts, halves, other.heard


@pytest.mark.thorough
@settings(max_examples=150)
@given(st.data())
def test_any_frames_of_a_peer_end_in_order_or_in_an_error(data: st.DataObject) -> None:
    """The frames of a real conversation are damaged, omitted, repeated or truncated."""
    posts, halves, frames = whole_talk()
    heard = data.draw(st.lists(st.sampled_from(frames), max_size=8)) if data.draw(st.booleans()) else frames
    [store] = with_stores(halves[1])
    with Side(store) as side:
        for frame in heard:
            raw = bytearray(frame)
            for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=2)):
                raw[at : at + data.draw(st.integers(0, 2))] = bytes((byte,))
            try:
                side.take(bytes(raw))
            except ReconcileError as error:
                assert str(error)  # noqa: PT017 - an error is not required
                break
        assert store.check().is_clean
        assert {*side.came} <= {*raws(*posts)}
