"""The properties that the tests of the deployed implementation check, one test each.

The model and the sessions of this package have them. If its tests tolerate missed messages, the sessions must not miss
any. This file also tests what it leaves untested.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from nwaku import NwakuPeer
from people import ANN
from reconciling import (
    HEADERS,
    HOUR_NS,
    NOW_NS,
    VECTORS,
    Outcome,
    an_id,
    converse,
    read_item_set,
    reconciled,
    session,
    spread,
)

from cablestore import CableStore, Post
from cablestore.archive.format.profile import keccak256
from cablestore.protocol.fields import sized
from cablestore.protocol.waku import message_of
from cablestore.reconcile.codec import decode, encode, write_item_set
from cablestore.reconcile.dialects import NWAKU_036, NWAKU_037, SPEC
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import EVERYTHING, Bound, Range, SyncID, of_times
from cablestore.reconcile.messages import ReconcileFrameReader
from cablestore.reconcile.payload import Content, Header, ItemSet, Payload, PayloadPart, Shards, Topics
from cablestore.reconcile.session import ReconcileSession
from cablestore.reconcile.sets import MemorySet, OrderedSet
from cablestore.reconcile.splitting import Splitting
from cablestore.reconcile.transfer import decode_message, encode_message

TEN_YEARS_NS: Final = 10 * 365 * 24 * HOUR_NS
F = TypeVar("F", bound=Callable[..., None])
_PINNED: list[str] = []


def pins(*words: str) -> Callable[[F], F]:
    """Associate a test with the property of the vectors that has these words."""
    (found,) = [p["property"] for p in VECTORS["properties"] if all(word in p["property"] for word in words)]

    def tied(test: F) -> F:
        _PINNED.append(found)
        return test

    return tied


def test_every_property_has_a_test() -> None:
    assert len(_PINNED) == 31
    assert sorted(_PINNED) == sorted(p["property"] for p in VECTORS["properties"])


def numbered(number: int) -> list[SyncID]:
    """Return the ids of its tests of splitting and of states."""
    return [SyncID(1000 + i, keccak256(f"msg{i}".encode())) for i in range(number)]


def altered(ids: list[SyncID], at: int) -> list[SyncID]:
    return [*ids[:at], SyncID(1000 + at, keccak256(f"msg{at}_x".encode())), *ids[at + 1 :]]


def over(ids: list[SyncID]) -> Range:
    return of_times(ids[0].timestamp_ns, ids[-1].timestamp_ns + 1)


def asked(ids: list[SyncID], within: Range | None = None) -> PayloadPart:
    within = within or over(ids)
    return PayloadPart(within, MemorySet(ids).snapshot().fingerprint(within).wire)


def peer(ids: list[SyncID], threshold: int, partitions: int) -> NwakuPeer:
    return NwakuPeer(ids, NWAKU_037, HEADERS["nwaku-0.37"], threshold=threshold, partitions=partitions)


def answered(side: NwakuPeer, parts: list[PayloadPart]) -> tuple[list[PayloadPart], list[SyncID], list[SyncID]]:
    have: list[SyncID] = []
    need: list[SyncID] = []
    return side.answered(parts, have, need), have, need


def kinds(parts: list[PayloadPart]) -> str:
    names: dict[type, str] = {type(None): "S", bytes: "F", ItemSet: "I"}
    return "".join(names[type(part.content)] for part in parts)


def sets_with(sync_id: SyncID, parts: list[PayloadPart]) -> int:
    return sum(isinstance(part.content, ItemSet) and sync_id in part.content.elements for part in parts)


def ours_find(here: list[SyncID], there: list[SyncID], fan_out: int = 8, threshold: int = 16) -> Outcome:
    """Return the result of sessions of this package, in the dialect of these tests."""
    outcome = reconciled(here, there, NWAKU_037, splitting=Splitting(fan_out, threshold))
    assert outcome.is_exactly(here, there)
    return outcome


# --- codec -------------------------------------------------------------------------------------------


@pins("empty item set (reconciled)")
def test_an_empty_item_set_is_decoded() -> None:
    out = bytearray()
    write_item_set(out, ItemSet([], reconciled=True))
    assert read_item_set(bytes(out), NWAKU_037) == (ItemSet([], reconciled=True), 2)


@pins("27 trailing zero bytes")
def test_zeros_after_an_item_set_are_not_read() -> None:
    out = bytearray()
    write_item_set(out, ItemSet(numbered(10), reconciled=False))
    assert read_item_set(bytes(out) + bytes(27), NWAKU_037) == (ItemSet(numbered(10), reconciled=False), len(out))


@pins("4 item-set ranges")
def test_four_ranges_of_each_kind_are_decoded_unchanged() -> None:
    """The ranges have lower bounds too."""
    ids = numbered(40)
    items: list[Content] = [ItemSet(ids[at : at + 10], reconciled=False) for at in (0, 10, 20, 30)]
    prints: list[Content] = [i.hash for i in ids[:4]]
    ranges = [of_times(1000 + at, 1010 + at) for at in (0, 10, 20, 30)]
    for contents in (items, prints, [items[0], prints[1], None, items[3]]):
        payload = Payload(Topics(), list(map(PayloadPart, ranges, contents)))
        assert decode(encode(payload, NWAKU_037), NWAKU_037) == payload


# --- splitting ---------------------------------------------------------------------------------------


@pins("2048 items t=1000..3047")
def test_a_large_range_is_split_into_fingerprints() -> None:
    ids = numbered(2048)
    parts, have, need = answered(peer(ids, 100, 8), [asked(altered(ids, 70))])
    assert (kinds(parts), have, need) == ("F" * 8, [], [])
    side = session(ids, NWAKU_037, splitting=Splitting(item_set_threshold=100))
    step = side.receive(encode(Payload(HEADERS["nwaku-0.37"], [asked(altered(ids, 70))]), NWAKU_037), at_s=0.0)
    assert step.reply is not None
    assert (kinds(decode(step.reply, NWAKU_037).parts), step.have, step.need) == ("F" * 8, [], [])


@pins("8 items, thr 4 parts 2")
def test_a_small_range_is_split_into_item_sets() -> None:
    """The session of this package sends fingerprints of both halves, and finds the same."""
    ids = numbered(8)
    parts, _, _ = answered(peer(ids, 4, 2), [asked(altered(ids, 3))])
    assert kinds(parts) == "II"
    ours_find(ids, altered(ids, 3), fan_out=2, threshold=4)


@pins("second round on the 1/8 sub-slice")
def test_the_second_round_of_a_large_range_sends_item_sets() -> None:
    ids = numbered(2048)
    other = altered(ids, 70)
    first, _, _ = answered(peer(ids, 100, 8), [asked(other)])
    parts, _, _ = answered(peer(other, 100, 8), [first[0]])
    assert kinds(parts) == "I" * 8
    assert sets_with(other[70], parts) == 1
    ours_find(ids, other)


@pins("8 items thr 100")
def test_few_items_are_sent_at_once() -> None:
    ids = numbered(8)
    parts, _, _ = answered(peer(ids, 100, 8), [asked(altered(ids, 3))])
    assert kinds(parts) == "I"
    other = session(altered(ids, 3), NWAKU_037)
    step = other.receive(encode(Payload(HEADERS["nwaku-0.37"], parts), NWAKU_037), at_s=0.0)
    assert (len(step.have), len(step.need)) == (1, 1)


# --- states ------------------------------------------------------------------------------------------


def rounds(here: list[SyncID], there: list[SyncID], threshold: int = 100) -> list[str]:
    """Return the messages of two deployed peers, without skipped ranges."""
    sides, message = [peer(there, threshold, 8), peer(here, threshold, 8)], [asked(here)]
    said = []
    while message:
        message, _, _ = answered(sides[0], message)
        said.append(kinds(message).replace("S", ""))
        sides.reverse()
    return said


@pins("2000 items, diff at 137")
def test_one_fingerprint_leads_to_one_difference_in_three_rounds() -> None:
    ids = numbered(2000)
    other = altered(ids, 137)
    assert rounds(ids, other) == ["F" * 8, "I" * 8, "I" * 8, ""]
    outcome = ours_find(ids, other)
    assert (outcome.have, outcome.need) == ([ids[137]], [other[137]])
    united = [*ids, other[137]]
    assert rounds(united, united) == [""]
    assert ours_find(united, united).said[1:] == [b"\x00"]


@pins("two FP ranges of 60 items")
def test_only_the_differing_one_of_two_ranges_is_answered() -> None:
    ids = numbered(120)
    other = altered(ids, 100)
    message = [asked(other, over(ids[:60])), asked(other, over(ids[60:]))]
    parts, _, _ = answered(peer(ids, 100, 8), message)
    assert kinds(parts) == "SI"
    side = session(ids, NWAKU_037, splitting=Splitting(item_set_threshold=100))
    step = side.receive(encode(Payload(HEADERS["nwaku-0.37"], message), NWAKU_037), at_s=0.0)
    assert step.reply is not None
    assert decode(step.reply, NWAKU_037).parts == parts[1:]  # ranges that are skipped at the beginning are not sent


@pins("300 items thr 50")
def test_three_hundred_items_are_sent_as_eight_item_sets() -> None:
    ids = numbered(300)
    parts, _, _ = answered(peer(altered(ids, 123), 50, 8), [asked(ids)])
    assert kinds(parts) == "I" * 8
    assert sets_with(altered(ids, 123)[123], parts) == 1
    ours_find(ids, altered(ids, 123), threshold=50)


@pytest.mark.thorough
@pins("80000 items, diff at N-10")
def test_eighty_thousand_items_take_three_rounds_of_fingerprints() -> None:
    """The sessions of this package need one more round, and a fraction of the bytes."""
    ids = numbered(80_000)
    assert rounds(ids, altered(ids, 79_990)) == ["F" * 8] * 3 + ["I" * 8] * 2 + [""]
    outcome = ours_find(ids, altered(ids, 79_990))
    assert len(outcome.said) <= 8
    assert outcome.size_bytes < 2_500


# --- storage -----------------------------------------------------------------------------------------


@pins("10000 identical items")
def test_identical_sets_are_skipped() -> None:
    ids = numbered(10_000)
    parts, _, _ = answered(peer(ids, 100, 8), [asked(ids)])
    assert parts == []
    assert peer(ids, 100, 8)._fingerprint(over(ids), asked(ids).content) == [PayloadPart(over(ids), None)]  # type: ignore[arg-type] # a fingerprint, as asked
    assert ours_find(ids, ids).said[1:] == [b"\x00"]


@pins("1000 items vs ~10% remote")
def test_missing_ids_of_the_other_side_are_found_in_order() -> None:
    ids, rng = numbered(1000), random.Random(1)
    remote = [i for i in ids if rng.random() < 0.1]
    remote_payload = Payload(HEADERS["nwaku-0.37"], [PayloadPart(over(ids), ItemSet(remote, reconciled=True))])
    step = session(ids, NWAKU_037).receive(encode(remote_payload, NWAKU_037), at_s=0.0)
    assert step.have == [i for i in ids if i not in set(remote)]
    assert step.need == []


@pins("insert returns length")
def test_a_duplicate_is_ignored() -> None:
    changing, (one, other) = MemorySet(), numbered(2)
    lengths = []
    for sync_id in (one, other, other):
        changing.add(sync_id)
        lengths.append(changing.snapshot().count(EVERYTHING))
    assert lengths == [1, 2, 2]


@pins("prune(500)")
def test_pruned_ids_leave_the_set() -> None:
    changing = MemorySet(SyncID(at, keccak256(f"msg{at}".encode())) for at in range(1000))
    old = changing.snapshot().items(of_times(0, 500))
    assert [changing.discard(sync_id) for sync_id in old] == [True] * 500
    assert changing.snapshot().items(EVERYTHING)[0].timestamp_ns == 500
    assert changing.snapshot().count(EVERYTHING) == 500


@pins("topic table slot is recycled")
def test_an_emptied_set_can_be_filled_again() -> None:
    """This package has a set for each topic instead of a table, and an emptied set leaves no state."""
    changing = MemorySet(numbered(300))
    for sync_id in numbered(300):
        changing.discard(sync_id)
    assert changing.snapshot().fingerprint(EVERYTHING) == MemorySet().snapshot().fingerprint(EVERYTHING)
    for sync_id in numbered(300):
        changing.add(sync_id)
    assert changing.snapshot().items(EVERYTHING) == numbered(300)


# --- protocol ----------------------------------------------------------------------------------------


@pins("both empty")
def test_two_empty_sides_find_nothing() -> None:
    ours_find([], [])


@pins("empty client/full server")
def test_a_side_is_found_whole_if_the_other_is_empty() -> None:
    three = [an_id(name) for name in "abc"]
    ours_find([], three)
    ours_find(three, [])


@pins("1 common + 1 each side")
def test_one_different_id_on_each_side_is_found() -> None:
    a, b, c = (an_id(name) for name in "abc")
    outcome = ours_find([a, b], [a, c])
    assert (outcome.have, outcome.need) == ([b], [c])


@pins("shards {1,2,3,4}")
def test_only_common_shards_are_reconciled() -> None:
    def side(name: str, shards: tuple[int, ...]) -> ReconcileSession:
        topic_of = {an_id(f"{shard} {name}"): f"/waku/2/rs/1/{shard}" for shard in shards}

        def kept(header: Header) -> OrderedSet:
            assert isinstance(header, Topics)
            return MemorySet(i for i, topic in topic_of.items() if topic in header.pubsub).snapshot()

        return ReconcileSession(kept, NWAKU_037, Topics(tuple(topic_of.values())))

    ours, theirs = side("o", (1, 2, 3, 4)), side("t", (3, 4, 5, 6))
    outcome = converse(ours, theirs, ours.initiate(at_s=0.0))
    assert outcome.is_exactly([an_id("3 o"), an_id("4 o")], [an_id("3 t"), an_id("4 t")])
    for dialect in (NWAKU_036, SPEC):
        strict = session([an_id("x")], dialect, header=Shards(1, (1, 2, 3, 4)))
        other = session([], dialect, header=Shards(1, (3, 4, 5, 6)))
        assert converse(strict, other, strict.initiate(at_s=0.0)).is_exactly([], [])
        assert strict.is_mismatch
        assert other.is_mismatch


@pins("100k msgs 1 diff")
def test_one_difference_in_a_hundred_thousand_is_found() -> None:
    ids = spread(100_000)
    outcome = ours_find(ids, ids[:777] + ids[778:])
    assert outcome.have == [ids[777]]
    assert outcome.size_bytes < 2_200


@pins("10k msgs 1k missing")
def test_a_thousand_differences_in_ten_thousand_are_found() -> None:
    """All thousand differences are found; the deployed test accepts 900."""
    ids = spread(10_000)
    assert len(ours_find(ids, ids[1_000:]).have) == 1_000


full_size = [1, pytest.param(10, marks=pytest.mark.soak)]


@pytest.mark.thorough
@pins("400k msgs 100k missing")
@pytest.mark.parametrize("times", full_size)
def test_a_missing_quarter_is_found(times: int) -> None:
    """All differences are found; the deployed test asserts that some are missed. The size is a tenth except in a
    soak."""
    ids = spread(40_000 * times)
    assert len(ours_find(ids, ids[10_000 * times :]).have) == 10_000 * times


@pins("100 msgs 20 diff")
def test_twenty_differences_in_a_hundred_are_found() -> None:
    ids = spread(100, over_ns=10**9)
    assert len(ours_find(ids[20:], ids).need) == 20


@pytest.mark.thorough
@pins("500k msgs 300k missing")
@pytest.mark.parametrize("times", full_size)
def test_missing_ids_within_one_second_are_found(times: int) -> None:
    """The size is a tenth except in a soak."""
    ids = spread(50_000 * times, over_ns=10**9)
    assert len(ours_find(ids, ids[30_000 * times :]).have) == 30_000 * times


@pins("sharing an 8-byte prefix")
def test_hashes_with_a_common_prefix_are_distinguished() -> None:
    one, other = SyncID(NOW_NS, bytes(8) + b"\x01" * 24), SyncID(NOW_NS, bytes(8) + b"\x02" * 24)
    for dialect in (SPEC, NWAKU_036, NWAKU_037):
        assert reconciled([one, other], [one], dialect).is_exactly([one, other], [one])


@pins("all-zero hash at t=0")
def test_ids_outside_the_window_are_ignored() -> None:
    strange = [SyncID(0, bytes(32)), SyncID(NOW_NS + TEN_YEARS_NS, an_id("late").hash)]
    for dialect in (SPEC, NWAKU_036, NWAKU_037):
        assert reconciled([*strange, an_id("in")], [], dialect, within=of_times(NOW_NS, NOW_NS + HOUR_NS)).have == [
            an_id("in")
        ]


@pins("duplicate ingress")
def test_duplicate_ids_are_found_once() -> None:
    one = an_id("one")
    assert ours_find([one, one], []).have == [one]
    side = session([], NWAKU_037)
    twice = Payload(HEADERS["nwaku-0.37"], [PayloadPart(EVERYTHING, ItemSet([one, one], reconciled=False))])
    assert side.receive(encode(twice, NWAKU_037), at_s=0.0).need == [one]
    assert side.receive(encode(twice, NWAKU_037), at_s=0.0).need == []


# --- transfer, and disabled or untested cases ----------------------------------------------------------


def waku_id(post: Post) -> SyncID:
    message = message_of(post)
    return SyncID(message.timestamp_ns, message.hash)


def moved(posts: dict[SyncID, Any], sent: list[SyncID], need: list[SyncID], store: CableStore) -> None:
    """Send posts and store the needed ones."""
    reader, expected = ReconcileFrameReader(200_000), set(need)
    for sync_id in sent:
        for content in reader.feed(sized(encode_message(message_of(posts[sync_id]), NWAKU_037))):
            found = decode_message(content, NWAKU_037)
            if found.waku_id in expected:
                expected.remove(found.waku_id)
                store.ingest([found.message.payload])


@pins("1 message lands")
def test_a_missing_post_is_found_and_stored(tmp_path: Path) -> None:
    post = ANN.text("tea", "is ready")
    sync_id = waku_id(post)
    with CableStore.open(tmp_path / "store") as store:
        outcome = ours_find([sync_id], [])
        moved({sync_id: post}, outcome.have, outcome.peer_need, store)
        assert store.get(post.hash) == post


@pins("17-in/20-out window")
def test_only_the_missing_posts_within_the_window_are_stored(tmp_path: Path) -> None:
    """There are 17 posts in the window, 20 outside of it.

    The benchmark has the million, which is too large for this test.
    """
    inside = [ANN.text("tea", f"in {n}", at=NOW_NS // 10**6 + n) for n in range(17)]
    outside = [ANN.text("tea", f"out {n}", at=NOW_NS // 10**6 + 100 + n) for n in range(20)]
    posts = {waku_id(post): post for post in inside + outside}
    outcome = reconciled(posts, [], NWAKU_037, within=of_times(NOW_NS, NOW_NS + 100 * 10**6))
    with CableStore.open(tmp_path / "store") as store:
        moved(posts, list(posts), outcome.peer_need, store)  # the peer sends too much
        assert {post.hash for post in inside} == {post.hash for post in inside + outside if store.get(post.hash)}


@pins("decode of hostile bytes")
def test_hostile_inputs_that_deployed_nodes_do_not_test_are_handled() -> None:
    """Each of these has tests in the other files."""
    for hostile in (bytes.fromhex("0102"), b"\xff" * 50, bytes(2**24 + 1)):
        with pytest.raises(ReconcileError):
            decode(hostile, NWAKU_037)
    flood = [an_id(f"{number}") for number in range(150)]
    theirs, other = peer(flood[1:], 100, 8), peer(flood[:-1], 100, 8)
    lost = converse(theirs, other, theirs.initiate(NOW_NS - 14, NOW_NS + 2))
    assert lost.is_exactly([], [])  # deployed peers only: both are done, and find nothing
    ours_find(flood[1:], flood[:-1])
    cut = Payload(Shards(), [PayloadPart(Range(Bound(NOW_NS), Bound(NOW_NS, b"\x40")), None)])
    assert decode(encode(cut, SPEC), SPEC).parts[1:] == cut.parts
    refused = session([], NWAKU_037, header=Topics(("b",)))
    asking = session([an_id("a")], NWAKU_037, header=Topics(("a",)))
    assert refused.receive(asking.initiate(at_s=0.0), at_s=0.0).reply == b""
    old = NwakuPeer(flood, NWAKU_036, HEADERS["nwaku-0.36"])
    assert sorted(converse(old, ours := session([], NWAKU_036), old.initiate(NOW_NS, NOW_NS + 9)).peer_need) == sorted(
        flood
    )
    assert ours.is_done
