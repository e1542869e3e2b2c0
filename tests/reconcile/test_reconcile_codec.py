"""Payloads in three dialects: the bytes of deployed nodes, round trips, and invalid bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reconciling import ALL, HEADERS, NOW_NS, VECTORS, known_parts, read_item_set, spread
from steps import steps_of

from cablestore import limits
from cablestore.protocol.varint import encode_varint
from cablestore.reconcile import codec
from cablestore.reconcile.codec import decode, encode, write_item_set
from cablestore.reconcile.dialects import NWAKU_036, NWAKU_037, SPEC, SyncDialect, agreed
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import END_NS, EVERYTHING, Bound, Range, SyncID
from cablestore.reconcile.payload import Content, Header, ItemSet, Payload, PayloadPart, Shards, Topics
from cablestore.reconcile.session import ReconcileSession
from cablestore.reconcile.sets import MemorySet

COLUMNS = {
    "spec": "spec_literal_cluster1_shards_0_1",
    "nwaku-0.36": "nwaku_v036_cluster1_shards_0_1",
    "nwaku-0.37": "nwaku_v037_pubsub_waku_2_rs_1_0",
}
in_each = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)


def padded(within: Range) -> list[list[int | str]]:
    return [[bound.timestamp_ns, bound.prefix.ljust(32, b"\x00").hex()] for bound in within]


def test_a_session_keeps_the_cluster_0_and_all_topics_by_default() -> None:
    for dialect, header in ((SPEC, Shards(0, ())), (NWAKU_037, Topics((), ()))):
        session = ReconcileSession(lambda _: MemorySet([]).snapshot(), dialect)
        assert decode(session.initiate(EVERYTHING, at_s=0.0), dialect).header == header


@in_each
@pytest.mark.parametrize("vector", VECTORS["codec"], ids=lambda vector: str(vector["name"]))
def test_payloads_of_deployed_nodes_are_encoded_and_decoded_byte_for_byte(
    vector: dict[str, Any], dialect: SyncDialect
) -> None:
    """Payloads of deployed nodes are encoded and decoded byte for byte. Only the empty one is not in the
    specification."""
    parts = known_parts(vector["ranges"], dialect)
    known = vector[COLUMNS[dialect.name]]
    if known is None:
        assert vector["name"] == "empty"
        assert encode(Payload(HEADERS["spec"], []), SPEC) == b"\x01\x02\x00\x01"
        return
    assert encode(Payload(HEADERS[dialect.name], parts), dialect).hex() == known
    found = decode(bytes.fromhex(known), dialect)
    assert found.header == (HEADERS[dialect.name] if parts else None)
    skipped = len(found.parts) - len(parts)  # the specification begins at zero
    assert [part.content for part in found.parts[skipped:]] == [part.content for part in parts]
    if dialect is NWAKU_036 and isinstance(vector["nwaku_v036_decodes_back_to"], list):
        assert [padded(part.range) for part in found.parts] == [
            [back["a"], back["b"]] for back in vector["nwaku_v036_decodes_back_to"]
        ]


@pytest.mark.parametrize(
    ("transcript", "dialect"), [("session_nwaku_v036", NWAKU_036), ("session_nwaku_v037_no_topics", NWAKU_037)]
)
def test_payloads_of_recorded_sessions_are_decoded_and_encoded_again(transcript: str, dialect: SyncDialect) -> None:
    for said in VECTORS[transcript]:
        data = bytes.fromhex(said["hex"])
        assert encode(decode(data, dialect), dialect) == data


REFUSED = {
    "two_zero_bytes": None,  # only a header: only the deployed reader requires nine bytes at each number
    "range_type_3": "type 3",
    "reconciled_2": "expected 0 or 1",
    "truncated_fp": "is truncated",
    "nonminimal_varint_lower": "ends at or before its beginning",  # after the number, which is read
    "hash_len_33": "33 bytes of a hash",
    "ts_overflow": "add up to",
    "itemset_ts_overflow": "add up to",
    "ten_byte_varint": "more than 9 bytes",
}


@pytest.mark.parametrize("vector", VECTORS["malformed"], ids=lambda vector: str(vector["name"]))
def test_malformed_payloads_are_rejected_or_decoded_as_empty(vector: dict[str, Any]) -> None:
    """Some of them crash the deployed reader with an uncaught defect."""
    data = bytes.fromhex(vector["hex"])
    reason = REFUSED.get(vector["name"])
    if reason is None:
        assert decode(data, NWAKU_036).parts == []
        return
    with pytest.raises(ReconcileError, match=reason):
        decode(data, NWAKU_036)


def test_numbers_that_are_not_minimal_are_read_where_deployed_nodes_read_them() -> None:
    data = bytes.fromhex("01020001e887800005 00")
    assert decode(data, NWAKU_036).parts == [PayloadPart(Range(Bound(1000), Bound(1005)), None)]
    with pytest.raises(ReconcileError, match="not minimal"):
        decode(data, SPEC)


prefixes = st.binary(max_size=32).map(lambda prefix: prefix.rstrip(b"\x00"))
times = st.one_of(st.integers(0, 4), st.integers(0, END_NS), st.integers(NOW_NS, NOW_NS + 10))
sync_ids = st.builds(SyncID, times, st.binary(min_size=32, max_size=32))
contents: st.SearchStrategy[Content] = st.one_of(
    st.none(),
    st.binary(min_size=32, max_size=32),
    st.builds(ItemSet, st.lists(sync_ids, max_size=4).map(sorted), st.booleans()),
)
headers: dict[type[Header], st.SearchStrategy[Header]] = {
    Shards: st.builds(Shards, st.integers(0, 2**63 - 1), st.lists(st.integers(0, 2**63 - 1), max_size=3).map(tuple)),
    Topics: st.builds(
        Topics,
        st.lists(st.text(max_size=9), max_size=3).map(tuple),
        st.lists(st.text(max_size=9), max_size=3).map(tuple),
    ),
}


@st.composite
def payloads(draw: st.DrawFn, dialect: SyncDialect) -> Payload:
    """Draw payloads whose bounds are sent whole: hashes only after a bound of the same time."""
    marks = draw(st.lists(st.builds(Bound, times, prefixes), min_size=2, max_size=8, unique=True))
    if not dialect.cuts_hashes:
        marks = [Bound(mark.timestamp_ns) for mark in marks]
    cuts = sorted({*marks, *(Bound(mark.timestamp_ns) for mark in marks)})
    parts = [PayloadPart(Range(low, high), draw(contents)) for low, high in pairwise(cuts)]
    return Payload(draw(headers[dialect.header]), parts) if parts else Payload(None, [])


@in_each
@given(data=st.data())
def test_encoded_payloads_are_decoded_unchanged(dialect: SyncDialect, data: st.DataObject) -> None:
    payload = data.draw(payloads(dialect))
    if payload.header is None:
        return
    written = encode(payload, dialect)
    found = decode(written, dialect)
    begins = payload.parts[0].range.lower
    ahead = [part for part in found.parts if part.range.upper <= begins]
    assert all(part.content is None for part in ahead)
    assert found._replace(parts=found.parts[len(ahead) :]) == payload
    assert encode(found, dialect) == written


@pytest.mark.thorough("spec")
@in_each
@given(data=st.data())
def test_any_bytes_result_in_a_payload_or_an_error(dialect: SyncDialect, data: st.DataObject) -> None:
    """The test uses random bytes, and payloads with some bytes changed, truncated or doubled."""
    raw = bytearray(
        data.draw(
            st.one_of(
                st.binary(max_size=300), payloads(dialect).filter(lambda p: p.header).map(lambda p: encode(p, dialect))
            )
        )
    )
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4)):
        raw[at : at + 1] = bytes((byte,))
    try:
        found = decode(bytes(raw), dialect)
    except ReconcileError:
        return
    for part in found.parts:
        assert part.range.lower < part.range.upper
    assert all(one.range.upper < other.range.upper for one, other in pairwise(found.parts))


def test_bounds_that_do_not_increase_are_neither_written_nor_read() -> None:
    one = PayloadPart(Range(Bound(5), Bound(9)), None)
    for other in (Bound(9), Bound(8), Bound(9, b"")):
        with pytest.raises(ReconcileError, match="in order"):
            encode(Payload(Shards(), [one, PayloadPart(Range(Bound(9), other), None)]), SPEC)
    for behind in (b"\x00\x00", b"\x00\x01\x00", b"\x00\x02\x00\x00"):
        with pytest.raises(ReconcileError, match="ends at or before its beginning"):
            decode(b"\x00\x00\x09\x00" + behind + b"\x00", SPEC)


def test_a_hash_after_a_bound_of_another_time_is_not_written() -> None:
    """Such a bound would be read as one without the hash."""
    with pytest.raises(ReconcileError, match="after a bound of another time"):
        encode(Payload(Shards(), [PayloadPart(Range(Bound(5), Bound(9, b"x")), None)]), SPEC)


def test_ids_out_of_order_are_not_written() -> None:
    with pytest.raises(ReconcileError, match="in order"):
        write_item_set(bytearray(), ItemSet([SyncID(2, bytes(32)), SyncID(1, bytes(32))], reconciled=True))


def test_a_header_of_another_dialect_is_not_written() -> None:
    with pytest.raises(ReconcileError, match="has a header of type Topics"):
        encode(Payload(Shards(), [PayloadPart(Range(Bound(0), Bound(1)), None)]), NWAKU_037)


def test_topics_that_are_not_utf_8_are_rejected() -> None:
    with pytest.raises(ReconcileError, match="not UTF-8"):
        decode(b"\x01\x02\xff\xfe\x00\x05\x05\x00", NWAKU_037)


@pytest.mark.parametrize(
    ("own", "other", "both"),
    [
        (Shards(1, (0, 1)), Shards(1, (1, 0)), Shards(1, (0, 1))),
        (Shards(1, (0, 1)), Shards(1, (0,)), None),
        (Shards(1, (0,)), Shards(2, (0,)), None),
        (Topics(("a", "b")), Topics(("b", "c")), Topics(("b",))),
        (Topics(("a",)), Topics(("b",)), None),
        (Topics(), Topics(("b",), ("x",)), Topics(("b",), ("x",))),
        (Topics(("a",), ("x",)), Topics((), ("y",)), None),
        (Shards(), Topics(), None),
    ],
)
def test_two_headers_agree_on_common_shards_or_topics(own: Header, other: Header, both: Header | None) -> None:
    """The result depends on the dialect: the same shards, or some topics. An empty list of topics means all topics."""
    assert agreed(own, other) == both


def test_dialects_have_names() -> None:
    assert [dialect.name for dialect in ALL] == ["spec", "nwaku-0.36", "nwaku-0.37"]


# --- limits ------------------------------------------------------------------------------------------


def test_a_frame_is_not_larger_than_allowed() -> None:
    """MAX_RECONCILE_FRAME_SIZE_BYTES, on both sides."""
    with pytest.raises(ReconcileError, match="Reconcile a shorter time"):
        decode(bytes(limits.MAX_RECONCILE_FRAME_SIZE_BYTES + 1), SPEC)
    ids = [SyncID(NOW_NS, bytes(32))] * (limits.MAX_RECONCILE_ITEMS)
    halves = [PayloadPart(Range(Bound(at), Bound(at + 1)), ItemSet(ids, reconciled=True)) for at in (1, 2)]
    with pytest.raises(ReconcileError, match="Reconcile a shorter time"):
        encode(Payload(Shards(), halves), SPEC)


def test_the_number_of_ranges_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_RECONCILE_RANGES: the limit is accepted, and one more is rejected."""
    assert limits.MAX_RECONCILE_RANGES == 262_144
    limit = 1_000
    monkeypatch.setattr(codec, "MAX_RECONCILE_RANGES", limit)
    allowed = b"\x00\x00" + b"\x01\x00" * limit
    assert len(decode(allowed, SPEC).parts) == limit
    with pytest.raises(ReconcileError, match=f"too many ranges in the payload: the maximum is {limit}"):
        decode(allowed + b"\x01\x00", SPEC)


def test_the_number_of_ids_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_RECONCILE_ITEMS of all item sets together."""
    assert limits.MAX_RECONCILE_ITEMS == 350_000
    monkeypatch.setattr(codec, "MAX_RECONCILE_ITEMS", 1_000)
    half = 500
    first = b"\x01\x02" + encode_varint(half) + bytes(33 * half) + b"\x00"
    allowed = b"\x00\x00" + first * 2
    assert (
        sum(len(part.content.elements) for part in decode(allowed, SPEC).parts if isinstance(part.content, ItemSet))
        == 2 * half
    )
    with pytest.raises(ReconcileError, match="the number of ids is 1, the maximum is 0"):
        decode(allowed + b"\x01\x02\x01" + bytes(34), SPEC)
    with pytest.raises(ReconcileError, match="cannot send 1001 ids at once"):
        write_item_set(bytearray(), ItemSet([SyncID(0, bytes(32))] * (2 * half + 1), reconciled=True))


@pytest.mark.parametrize(
    ("dialect", "announced", "of"),
    [
        (SPEC, b"\x00" + encode_varint(limits.MAX_RECONCILE_SHARDS + 1), "shards"),
        (NWAKU_037, encode_varint(limits.MAX_RECONCILE_TOPICS + 1), "topics"),
        (NWAKU_037, b"\x01" + encode_varint(limits.MAX_RECONCILE_TOPIC_SIZE_BYTES + 1), "bytes of a topic"),
        (NWAKU_037, encode_varint(2**62), "topics"),
    ],
)
def test_the_size_of_headers_is_limited(dialect: SyncDialect, announced: bytes, of: str) -> None:
    """MAX_RECONCILE_SHARDS, MAX_RECONCILE_TOPICS and MAX_RECONCILE_TOPIC_SIZE_BYTES."""
    with pytest.raises(ReconcileError, match=f"the number of {of} is"):
        decode(announced + bytes(5_000), dialect)


def empty_item_sets(number: int) -> bytes:
    """Return bytes that take the deployed reader quadratic time: 71 s for 640 kB."""
    return b"\x00\x00" + b"\x01\x02\x00\x01" * number


def skips(number: int) -> bytes:
    return b"\x00\x00" + b"\x01\x00" * number


def many_ids(number: int) -> bytes:
    found = bytearray()
    write_item_set(found, ItemSet(sorted(spread(number)), reconciled=False))
    return b"\x00\x00" + encode_varint(END_NS) + b"\x02" + found


def refused_at_the_end(number: int) -> bytes:
    return skips(number) + b"\x01\x03"


@pytest.mark.parametrize("hostile", [empty_item_sets, skips, many_ids, refused_at_the_end])
def test_decoding_takes_linear_time(hostile: Callable[[int], bytes]) -> None:
    """Four times the bytes take about four times the steps, for any content."""

    def steps(data: bytes) -> int:
        def read() -> None:
            with suppress(ReconcileError):
                decode(data, SPEC)
                assert hostile is not refused_at_the_end

        return steps_of(read)

    assert steps(hostile(8_000)) < 5 * steps(hostile(2_000))


@settings(max_examples=50)
@given(st.lists(sync_ids, max_size=20).map(sorted), st.booleans(), st.binary(max_size=40))
def test_bytes_after_an_item_set_are_not_read(ids: list[SyncID], reconciled: bool, behind: bytes) -> None:
    out = bytearray()
    write_item_set(out, ItemSet(ids, reconciled))
    assert read_item_set(bytes(out) + behind, SPEC) == (ItemSet(ids, reconciled), len(out))
