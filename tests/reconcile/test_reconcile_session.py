"""Sessions: both sides find exactly the difference, in every dialect, with interruptions, and with any peer."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reconciling import ALL, HEADERS, HOUR_NS, NOW_NS, Pair, an_id, converse, reconciled, session, sets, spread
from steps import steps_of

from cablestore import limits, reconcile
from cablestore.reconcile.codec import decode, encode
from cablestore.reconcile.dialects import NWAKU_036, NWAKU_037, SPEC, SyncDialect
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import EVERYTHING, Bound, Range, SyncID, of_times
from cablestore.reconcile.payload import Header, ItemSet, Payload, PayloadPart, Shards, Topics
from cablestore.reconcile.session import ReconcileSession, SessionLimits
from cablestore.reconcile.sets import MemorySet, OrderedSet
from cablestore.reconcile.splitting import Splitting

in_each = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
splittings = st.builds(
    Splitting,
    fan_out=st.integers(2, 16),
    item_set_threshold=st.integers(1, 100),
    frame_size_bytes=st.sampled_from([1_280, 5_000, 4_194_304]),
    skip_equal_sets=st.booleans(),
)


def test_the_example_of_the_package_finds_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    """The test also checks that the example uses the names of the package, such as the function `stored_set`."""
    example = (reconcile.__doc__ or "").partition("network:\n\n")[2].partition("`stored_set(")[0]
    exec(textwrap.dedent(example), {})
    assert capsys.readouterr().out.splitlines()[0] == f"{[SyncID(2, b'b' * 32)]} []"
    assert callable(reconcile.stored_set)


@pytest.mark.thorough("nwaku-0.36")
@in_each
@settings(max_examples=60)
@given(pair=sets(), splitting=splittings)
def test_both_sides_find_exactly_the_difference(dialect: SyncDialect, pair: Pair, splitting: Splitting) -> None:
    here, there = pair
    assert reconciled(here, there, dialect, splitting=splitting).is_exactly(here, there)


@in_each
@settings(max_examples=30)
@given(pair=sets(most=1_000), cut=st.lists(st.integers(0, 8), max_size=4), splitting=splittings)
def test_interrupted_sessions_lose_nothing(
    dialect: SyncDialect, pair: Pair, cut: list[int], splitting: Splitting
) -> None:
    """Posts that were found before the break are sent. The next session, begun by the other side, finds the rest."""
    here, there = set(pair[0]), set(pair[1])
    union = here | there
    for most in [*cut, None]:
        outcome = reconciled(here, there, dialect, splitting=splitting, most=most)
        # Each side sends the posts that it found missing in the other. A found difference is never wrong.
        assert set(outcome.have) | set(outcome.peer_need) <= here - there
        assert set(outcome.need) | set(outcome.peer_have) <= there - here
        here, there = here | set(outcome.peer_have), there | set(outcome.have)
    assert here == there == union


@in_each
@settings(max_examples=30)
@given(pair=sets(most=1_000), data=st.data())
def test_only_the_window_is_reconciled(dialect: SyncDialect, pair: Pair, data: st.DataObject) -> None:
    """The peer may agree to a different window, because the clocks differ."""
    here, there = pair
    marks = sorted(data.draw(st.lists(st.integers(NOW_NS - 3, NOW_NS + HOUR_NS), min_size=4, max_size=4, unique=True)))
    pick = data.draw(st.permutations(marks))
    ours, theirs = of_times(*sorted(pick[:2])), of_times(*sorted(pick[2:]))
    initiator, responder = session(here, dialect), session(there, dialect, window=theirs)
    outcome = converse(initiator, responder, initiator.initiate(ours, at_s=0.0))
    both = ours.within(theirs)
    within = [[i for i in ids if both is not None and both.lower <= i < both.upper] for ids in (here, there)]
    assert outcome.is_exactly(*within)


@settings(max_examples=40)
@given(pair=sets(most=1_000), data=st.data())
def test_several_ranges_with_any_bounds_are_reconciled(pair: Pair, data: st.DataObject) -> None:
    """In the specification's dialect they are also split between ids of one time, with fingerprints and whole."""
    here, there = pair
    known = sorted({*here, *there, an_id("a"), an_id("b")})
    ids = data.draw(st.lists(st.sampled_from(known), min_size=2, max_size=6, unique=True).map(sorted))
    marks = [Bound(i.timestamp_ns, i.hash[: data.draw(st.integers(0, 32))].rstrip(b"\x00")) for i in ids]
    marks = sorted(set(marks))
    ranges = [Range(low, high) for low, high in zip(marks[::2], marks[1::2], strict=False)]
    if not ranges:
        return
    initiator, responder = session(here), session(there)
    outcome = converse(initiator, responder, initiator.initiate(*ranges, at_s=0.0, whole=data.draw(st.booleans())))
    asked = [[i for i in ids if any(r.lower <= i < r.upper for r in ranges)] for ids in pair]
    assert outcome.is_exactly(*asked)


# --- costs -------------------------------------------------------------------------------------------


def test_one_difference_in_a_large_set_takes_few_bytes() -> None:
    """One difference among a million costs 2.2 kB. Among the 20,000 of this test, the tree has a few levels less."""
    known = spread(20_000)
    outcome = reconciled(known, known[1:], splitting=Splitting(skip_equal_sets=True))
    assert outcome.have == known[:1]
    assert outcome.size_bytes < 2_000
    assert len(outcome.said) <= 9


def test_equal_sets_exchange_one_fingerprint() -> None:
    known = spread(1_000)
    outcome = reconciled(known, known)
    assert [len(said) for said in outcome.said] == [46, 4]


@in_each
def test_thousands_of_ids_with_one_time_are_reconciled(dialect: SyncDialect) -> None:
    """Deployed peers find none of these.

    The specification's bounds split them, and nwaku's send them whole, once each way.
    """
    known = [an_id(str(number)) for number in range(5_000)]
    outcome = reconciled(known[1:], known[:-1], dialect)
    assert outcome.is_exactly(known[1:], known[:-1])
    assert outcome.size_bytes < (6_000 if dialect is SPEC else 2 * 34 * 5_000)


@in_each
@pytest.mark.parametrize("missing", [0, 1, 100, 198])
def test_hashes_that_differ_only_in_their_last_byte_are_distinguished(dialect: SyncDialect, missing: int) -> None:
    """A bound between two of them has a whole hash, and must arrive unchanged."""
    alike = [SyncID(NOW_NS, bytes(range(1, 32)) + bytes((last,))) for last in range(200)]
    here, there = alike[:missing] + alike[missing + 1 :], alike[:-1]
    for splitting in (Splitting(), Splitting(fan_out=2, item_set_threshold=1)):
        assert reconciled(here, there, dialect, splitting=splitting).is_exactly(here, there)


def test_a_large_difference_is_divided_into_frames() -> None:
    """Each payload has about the size of a frame, even if only one side has posts."""
    known = spread(5_000)
    splitting = Splitting(frame_size_bytes=20_000, skip_equal_sets=True)
    for here, there in ((known, []), ([], known), (known[:2_500], known[2_500:])):
        outcome = reconciled(here, there, splitting=splitting)
        assert outcome.is_exactly(here, there)
        assert max(map(len, outcome.said)) < 25_000
        assert outcome.size_bytes < 2.5 * 38 * 5_000


def test_equal_item_sets_are_skipped_only_if_the_peer_supports_it() -> None:
    """In the specification's dialect item sets are echoed."""
    known = spread(3)
    asked = encode(Payload(HEADERS["spec"], [PayloadPart(EVERYTHING, ItemSet(sorted(known), reconciled=False))]), SPEC)
    for skips, parts in ((False, 1), (True, 0)):
        step = session(known, splitting=Splitting(skip_equal_sets=skips)).receive(asked, at_s=0.0)
        assert step.reply is not None
        assert len(decode(step.reply, SPEC).parts) == parts


# --- peers with other shards and topics ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "one", "other", "rejection"),
    [
        (SPEC, Shards(1, (0,)), Shards(1, (1,)), b"\x01\x01\x01"),
        (NWAKU_036, Shards(1, (0,)), Shards(2, (0,)), b""),
        (NWAKU_037, Topics(("a",)), Topics(("b",)), b""),
    ],
)
def test_mismatched_headers_are_detected_by_both_sides(
    dialect: SyncDialect, one: Header, other: Header, rejection: bytes
) -> None:
    """Each dialect has a separate answer, and both sides detect it."""
    initiator, responder = session([an_id("a")], dialect, header=one), session([], dialect, header=other)
    first = initiator.initiate(at_s=0.0)
    assert responder.receive(first, at_s=0.0) == (rejection, [], [])
    assert initiator.receive(rejection, at_s=0.0) == (None, [], [])
    for side in (initiator, responder):
        assert side.is_done
        assert side.is_mismatch


@in_each
def test_peers_with_equal_headers_and_sets_are_not_a_mismatch(dialect: SyncDialect) -> None:
    ours, theirs = session([], dialect), session([], dialect)
    converse(ours, theirs, ours.initiate(at_s=0.0))
    assert not ours.is_mismatch
    assert not theirs.is_mismatch


@settings(max_examples=40)
@given(sets(most=500), st.randoms(use_true_random=False))
def test_only_common_topics_are_reconciled(pair: Pair, rng: random.Random) -> None:
    """nwaku-0.37: each side reads the set of the common topics as soon as it knows them."""
    of = {sync_id: rng.choice("abc") for sync_id in sorted({*pair[0], *pair[1]})}

    def side(ids: list[SyncID], topics: tuple[str, ...]) -> ReconcileSession:
        def kept(header: Header) -> OrderedSet:
            assert isinstance(header, Topics)
            return MemorySet(i for i in ids if of[i] in header.pubsub).snapshot()

        return ReconcileSession(kept, NWAKU_037, Topics(topics))

    ours, theirs = side(pair[0], ("a", "b")), side(pair[1], ("b", "c"))
    outcome = converse(ours, theirs, ours.initiate(at_s=0.0))
    assert outcome.is_exactly([i for i in pair[0] if of[i] == "b"], [i for i in pair[1] if of[i] == "b"])


# --- one state per session ----------------------------------------------------------------------------


@settings(max_examples=30)
@given(sets(most=500), st.data())
def test_changes_during_a_session_do_not_affect_it(pair: Pair, data: st.DataObject) -> None:
    """A session finds the difference of the states at its beginning."""
    changing = [MemorySet(ids) for ids in pair]
    snapshots = [each.snapshot() for each in changing]
    ours, theirs = (ReconcileSession(lambda _, s=s: s, SPEC, HEADERS["spec"]) for s in snapshots)  # type: ignore[misc] # mypy does not infer s
    message: bytes | None = ours.initiate(at_s=0.0)
    have: list[SyncID] = []
    sides = [theirs, ours]
    while message is not None:
        step = sides[0].receive(message, at_s=0.0)
        have += step.have if sides[0] is ours else []
        changing[0].add(an_id(f"new {len(have)}", data.draw(st.integers(0, 2 * NOW_NS))))
        for sync_id in pair[1][: data.draw(st.integers(0, 3))]:
            changing[1].discard(sync_id)
        message = step.reply
        sides.reverse()
    assert sorted(have) == sorted(set(pair[0]) - set(pair[1]))


# --- limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("short", "what"),
    [
        (SessionLimits(rounds=3), "rounds"),
        (SessionLimits(size_bytes=3_000), "bytes"),
        (SessionLimits(differences=100), "differences"),
        (SessionLimits(timeout_s=2.5), "seconds"),
    ],
)
def test_a_session_ends_at_its_limits_and_the_next_one_continues(short: SessionLimits, what: str) -> None:
    """The limits are rounds, bytes, differences and time.

    Differences that were found count, and the error suggests a remedy.
    """
    known = spread(2_000)
    splitting = Splitting(frame_size_bytes=4_000)
    ours, theirs = session(known, limits=short, splitting=splitting), session(known[:1_000], splitting=splitting)
    message, at_s = ours.initiate(at_s=0.0), 0.0
    found: list[SyncID] = []
    reason = ""
    while not reason:
        at_s += 1.0
        reply = theirs.receive(message, at_s=0.0).reply
        assert reply is not None
        try:
            step = ours.receive(reply, at_s=at_s)
        except ReconcileError as error:
            reason = str(error)
        found += step.have if not reason else []
        message = step.reply or b"" if not reason else b""
    assert f" {what}, the maximum is " in reason
    assert reason.endswith("begin another session")
    assert ours.is_done
    with pytest.raises(ReconcileError, match="the session has ended"):
        ours.receive(message, at_s=at_s)
    rest = reconciled(known, [*known[:1_000], *found])
    assert sorted([*found, *rest.have]) == sorted(known[1_000:])


def test_the_defaults_are_the_limits() -> None:
    """MAX_RECONCILE_ROUNDS, MAX_RECONCILE_SESSION_SIZE_BYTES, MAX_RECONCILE_DIFFERENCES and RECONCILE_TIMEOUT_S."""
    assert SessionLimits() == SessionLimits(
        limits.MAX_RECONCILE_ROUNDS,
        limits.MAX_RECONCILE_SESSION_SIZE_BYTES,
        limits.MAX_RECONCILE_DIFFERENCES,
        limits.RECONCILE_TIMEOUT_S,
    )
    one = session([])
    one.initiate(at_s=0.0)
    with pytest.raises(ReconcileError, match="600"):
        one.receive(b"", at_s=limits.RECONCILE_TIMEOUT_S + 1)


def test_more_ids_of_one_time_than_a_dialect_can_send_raise_an_error() -> None:
    """MAX_RECONCILE_ITEMS: nwaku's dialects raise an error for this, the specification's does not."""
    number = limits.MAX_RECONCILE_ITEMS + 1
    flood = MemorySet(SyncID(NOW_NS, at.to_bytes(32, "big")) for at in range(number)).snapshot()
    asked = [PayloadPart(of_times(NOW_NS, NOW_NS + 9), bytes(32))]
    for dialect in (NWAKU_036, NWAKU_037):
        ours = ReconcileSession(lambda _: flood, dialect, HEADERS[dialect.name])
        with pytest.raises(ReconcileError, match=r"350001 ids share the time .* Reconcile in the dialect spec"):
            ours.receive(encode(Payload(HEADERS[dialect.name], asked), dialect), at_s=0.0)
    ours = ReconcileSession(lambda _: flood, SPEC, HEADERS["spec"])
    reply = ours.receive(encode(Payload(HEADERS["spec"], asked), SPEC), at_s=0.0).reply
    assert reply is not None
    assert len(reply) < 600


@pytest.mark.parametrize("bad", [{"fan_out": 1}, {"item_set_threshold": 0}, {"frame_size_bytes": 100}])
def test_parameters_with_endless_sessions_are_rejected(bad: dict[str, Any]) -> None:
    with pytest.raises(ReconcileError, match="would never end"):
        Splitting(**bad)


def test_invalid_beginnings_of_a_session_are_rejected() -> None:
    hashed = Range(Bound(1, b"x"), Bound(2))
    with pytest.raises(ReconcileError, match="out of order"):
        session([]).initiate(of_times(5, 9), of_times(1, 3), at_s=0.0)
    with pytest.raises(ReconcileError, match="cannot express bounds within one time"):
        session([], NWAKU_036).initiate(hashed, at_s=0.0)
    with pytest.raises(ReconcileError, match="cannot express bounds within one time"):
        session([], NWAKU_036, window=hashed)
    with pytest.raises(ReconcileError, match="has a header of type Topics"):
        session([], NWAKU_037, header=Shards())
    with pytest.raises(ReconcileError, match="do not fit into a frame"):
        session(spread(99), splitting=Splitting(frame_size_bytes=1_280)).initiate(at_s=0.0, whole=True)
    begun = session([])
    begun.initiate(at_s=0.0)
    with pytest.raises(ReconcileError, match="already begun"):
        begun.initiate(at_s=0.0)


# --- hostile peers ------------------------------------------------------------------------------------


@pytest.mark.thorough("nwaku-0.36", "nwaku-0.37")
@in_each
@settings(max_examples=100)
@given(data=st.data())
def test_any_messages_of_a_peer_result_in_answers_or_an_error(dialect: SyncDialect, data: st.DataObject) -> None:
    """Invalid, duplicate, unordered and outside ids result in an answer or a ReconcileError. Ids are never invented."""
    ids = data.draw(sets(most=300))[0]
    known = [*ids[:50], an_id("strange"), SyncID(0, bytes(32)), SyncID(2**63 - 2, b"\xff" * 32)]
    side = session(ids, dialect, splitting=Splitting(frame_size_bytes=5_000))
    seen: list[SyncID] = []
    for _ in range(4):
        marks = data.draw(
            st.lists(
                st.sampled_from([NOW_NS - 1, NOW_NS, NOW_NS + 1, 5, NOW_NS + HOUR_NS, 2**63 - 1]),
                min_size=2,
                unique=True,
            )
        )
        parts = []
        for low, high in zip(sorted(marks), sorted(marks)[1:], strict=False):
            listed = data.draw(
                st.lists(st.sampled_from(known), max_size=9).map(lambda s: sorted(s, key=lambda i: i[0]))
            )
            content = data.draw(
                st.sampled_from(
                    [None, bytes(32), b"\x07" * 32, ItemSet(listed, reconciled=True), ItemSet(listed, reconciled=False)]
                )
            )
            parts.append(PayloadPart(of_times(low, high), content))
        try:
            step = side.receive(encode(Payload(HEADERS[dialect.name], parts), dialect), at_s=0.0)
        except ReconcileError:
            assert side.is_done
            return
        assert set(step.have) <= set(ids)
        assert not set(step.need) & set(ids)
        seen += step.have + step.need
        assert len(seen) == len(set(seen))
        if step.reply is not None:
            decode(step.reply, dialect)
            assert len(step.reply) < 40_000


@in_each
def test_a_session_ends_after_an_invalid_payload(dialect: SyncDialect) -> None:
    side = session(spread(9), dialect)
    with pytest.raises(ReconcileError):
        side.receive(b"\xff" * 40, at_s=0.0)
    assert side.is_done
    with pytest.raises(ReconcileError, match="the session has ended"):
        side.receive(session(spread(9), dialect).initiate(at_s=0.0), at_s=0.0)


def lying_fingerprints(number: int) -> list[PayloadPart]:
    return [PayloadPart(of_times(NOW_NS + 1_000 * at, NOW_NS + 1_000 * (at + 1)), b"\x01" * 32) for at in range(number)]


def empty_sets(number: int) -> list[PayloadPart]:
    return [
        PayloadPart(of_times(NOW_NS + 1_000 * at, NOW_NS + 1_000 * (at + 1)), ItemSet([], reconciled=False))
        for at in range(number)
    ]


def strange_ids(number: int) -> list[PayloadPart]:
    listed = sorted(spread(number, seed=9, over_ns=10_000_000))
    return [PayloadPart(of_times(NOW_NS, NOW_NS + 10_000_000), ItemSet(listed, reconciled=False))]


@pytest.mark.thorough("lying_fingerprints")
@pytest.mark.parametrize("hostile", [lying_fingerprints, empty_sets, strange_ids])
def test_answering_takes_linear_time(hostile: Callable[[int], list[PayloadPart]]) -> None:
    """Four times the input takes about four times the steps, and the answer has little more than a frame."""
    snapshot = MemorySet(spread(20_000, over_ns=10_000_000)).snapshot()

    def steps(number: int) -> int:
        data = encode(Payload(HEADERS["spec"], hostile(number)), SPEC)
        side = ReconcileSession(lambda _: snapshot, SPEC, HEADERS["spec"])

        def answer() -> None:
            reply = side.receive(data, at_s=0.0).reply
            assert reply is not None
            assert len(reply) < 5_000_000

        return steps_of(answer)

    assert steps(4_000) < 5 * steps(1_000)


def test_an_empty_peer_is_answered_one_frame_at_a_time() -> None:
    """A peer that claims to be empty is answered one frame at a time."""
    known = MemorySet(spread(50_000)).snapshot()
    side = ReconcileSession(lambda _: known, SPEC, HEADERS["spec"], splitting=Splitting(frame_size_bytes=100_000))
    nothing = encode(Payload(HEADERS["spec"], [PayloadPart(EVERYTHING, ItemSet([], reconciled=True))]), SPEC)
    step = side.receive(nothing, at_s=0.0)
    assert len(step.have) < 3_000
    assert step.reply is not None
    assert len(step.reply) < 100
