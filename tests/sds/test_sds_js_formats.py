"""Format compatibility with the npm package @waku/sds, in both directions; needs Node.js and the package."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sds_filters import BloomFilter
from sds_js import JsPeer
from sds_messages import NOW_MS, VECTORS, field, ids, message_of, messages

from cablestore.errors import SdsError
from cablestore.sds.bloom import FilterParameters, ForeignFilter, positions, to_wire
from cablestore.sds.codec import decode, encode
from cablestore.sds.dialects import NIM, SPEC
from cablestore.sds.hashes import sha256_hash
from cablestore.sds.message import HistoryEntry, MessageKind, SdsMessage
from cablestore.sds.repair import (
    RepairParameters,
    is_in_response_group,
    request_delay_ms,
    response_delay_ms,
)

DEFAULT = FilterParameters()
some = settings(max_examples=100)


@pytest.fixture(scope="module")
def js() -> Iterator[JsPeer]:
    with JsPeer() as peer:
        yield peer


@some
@given(message=messages(SPEC))
def test_messages_are_encoded_to_the_same_bytes(js: JsPeer, message: SdsMessage) -> None:
    """For the package, messages with empty content are equal with and without the field."""
    written = encode(message, SPEC)
    assert js.encode(message) == written
    found = js.decode(written)
    assert found is not None
    kind, read = found
    assert kind is message.kind
    assert read == replace(message, content=message.content or None)
    assert decode(js.encode(message), SPEC) == message


def test_the_package_encodes_the_vectors(js: JsPeer) -> None:
    for vector in VECTORS["wire"]["vectors"]:
        assert js.encode(message_of(vector["message"])).hex() == vector["spec_field_numbers_hex"]


def test_both_implementations_decode_the_same_messages(js: JsPeer) -> None:
    """Unknown fields, a repeated field, missing content. The package also accepts useless messages without ids."""
    whole = encode(SdsMessage("m", "room", "alice", 5, content=b"x"), SPEC)
    for data in (whole + field(99, b"later"), field(15, 7) + whole, whole + field(2, b"last"), whole + field(10, 0)):
        found = js.decode(data)
        assert found is not None
        assert found[1] == decode(data, SPEC)
    for data in (whole[:-2], b"\xff", encode(SdsMessage("m", "room", "", 5, content=b"x"), NIM), field(20, b"")):
        assert js.decode(data) is None
        with pytest.raises(SdsError):
            decode(data, SPEC)
    assert js.decode(field(20, b"x")) is not None
    with pytest.raises(SdsError, match="an id and a channel"):
        decode(field(20, b"x"), SPEC)


@some
@given(names=st.lists(ids, max_size=50), others=st.lists(ids, max_size=20))
def test_filters_are_encoded_to_the_same_bytes(js: JsPeer, names: list[str], others: list[str]) -> None:
    for parameters in (DEFAULT, FilterParameters(64), FilterParameters(100, 0.01)):
        filter_ = BloomFilter(parameters)
        for name in names:
            filter_.add(positions(name, parameters, SPEC))
        wire = to_wire(filter_.bits, parameters, SPEC)
        theirs = js.bloom(names, parameters)
        assert theirs == wire
        assert js.lookup(wire, names, parameters) == [True] * len(names)
        foreign = ForeignFilter.read(theirs, parameters, SPEC)
        assert foreign is not None
        ours = [foreign.contains(positions(name, foreign, SPEC)) for name in others]
        assert js.lookup(wire, others, parameters) == ours


@some
@given(names=st.lists(ids | st.text(st.characters(min_codepoint=0x10000)), max_size=50))
def test_any_id_has_the_same_bits(js: JsPeer, names: list[str]) -> None:
    """In ASCII and beyond it, where the package hashes units of UTF-16."""
    parameters = FilterParameters(12_345, 0.01)
    assert js.positions(names, parameters) == [positions(name, parameters, SPEC) for name in names]


@some
@given(
    rows=st.lists(st.tuples(ids, ids, ids), max_size=20),
    t_min_ms=st.integers(0, 10**6),
    span_ms=st.integers(1, 10**6),
    groups=st.integers(1, 100),
)
def test_times_and_groups_of_repairs_are_the_same(
    js: JsPeer, rows: list[tuple[str, str, str]], t_min_ms: int, span_ms: int, groups: int
) -> None:
    parameters = RepairParameters(t_min_ms, t_min_ms + span_ms, groups)
    assert js.repair_times(rows, parameters) == [
        (
            sha256_hash(own + message),
            request_delay_ms(own, message, parameters, SPEC),
            response_delay_ms(own, sender, message, parameters, SPEC),
            is_in_response_group(own, sender, message, parameters, SPEC),
        )
        for own, sender, message in rows
    ]


# --- a member there, our codec here: features of the driver ----------------------------------------


@pytest.fixture
def alice() -> Iterator[JsPeer]:
    with JsPeer() as peer:
        peer.clock(NOW_MS)
        peer.join("room", "alice", repair=RepairParameters(30_000, 300_000))
        yield peer


def sent_by(js: JsPeer, content: bytes) -> SdsMessage:
    (data,) = js.send(content, b"hint").out
    return decode(data, SPEC)


def test_messages_of_the_package_are_decoded(alice: JsPeer) -> None:
    first = sent_by(alice, b"first")
    assert first.kind is MessageKind.CONTENT
    assert (first.message_id, first.lamport_ms) == (hashlib.sha256(b"first").hexdigest(), NOW_MS + 1)
    assert first.bloom_filter == bytes(DEFAULT.size_bytes)
    second = sent_by(alice, b"second")
    assert second.causal_history == (HistoryEntry(first.message_id, b"hint", "alice"),)
    foreign = ForeignFilter.read(second.bloom_filter, DEFAULT, SPEC)
    assert foreign is not None
    assert foreign.contains(positions(first.message_id, foreign, SPEC))
    assert not foreign.contains(positions(second.message_id, foreign, SPEC))
    (data,) = alice.sync().out
    assert decode(data, SPEC).kind is MessageKind.SYNC
    (data,) = alice.ephemeral(b"typing").out
    assert decode(data, SPEC).kind is MessageKind.EPHEMERAL
    assert alice.contains([first.message_id, "other"]) == [True, False]


def test_the_package_delivers_and_acknowledges_our_messages(alice: JsPeer) -> None:
    mine = sent_by(alice, b"mine")
    history = (HistoryEntry(mine.message_id, None, "alice"),)
    received = alice.receive(encode(SdsMessage("b1", "room", "bob", NOW_MS + 5, history, content=b"reply"), SPEC))
    assert received.value == "ContentMessage"
    assert received.events_of("sds:out:message-acknowledged") == [mine.message_id]
    assert received.events_of("sds:in:message-delivered") == ["b1"]
    other = sent_by(alice, b"other")
    filter_ = BloomFilter(DEFAULT)
    filter_.add(positions(other.message_id, DEFAULT, SPEC))
    wire = to_wire(filter_.bits, DEFAULT, SPEC)
    for number, name in enumerate(("possibly-acknowledged", "acknowledged"), 1):
        ours = SdsMessage(f"b{number + 1}", "room", "bob", NOW_MS + 10 + number, (), wire, content=b"more")
        assert len(alice.receive(encode(ours, SPEC)).events_of(f"sds:out:message-{name}")) == 1
    state = alice.state()
    assert [message_id for message_id, _ in state.history] == [mine.message_id, "b1", other.message_id, "b2", "b3"]
    assert (state.outgoing, state.incoming, state.lamport_ms) == ([], [], NOW_MS + 12)


def test_the_package_drops_messages_with_filters_of_another_length(alice: JsPeer) -> None:
    sent_by(alice, b"mine")
    ours = SdsMessage("b1", "room", "bob", NOW_MS + 5, content=b"x", bloom_filter=b"\x00" * 16)
    received = alice.receive(encode(ours, SPEC))
    assert received.events_of("sds:in:message-delivered") == []
    assert "RangeError" in received.events_of("sds:error-task")[0]["error"]
    received = alice.receive(encode(replace(ours, bloom_filter=None), SPEC))
    assert received.events_of("sds:in:message-delivered") == ["b1"]


def test_the_package_requests_and_sends_repairs_at_the_computed_times(alice: JsPeer) -> None:
    agreed = RepairParameters(30_000, 300_000)
    missing = HistoryEntry("m0", b"hint", "carol")
    ours = SdsMessage("m1", "room", "carol", NOW_MS + 5, (missing,), content=b"x")
    received = alice.receive(encode(ours, SPEC))
    assert [each["messageId"] for each in received.events_of("sds:in:message-missing")[0]] == ["m0"]
    asked_ms = NOW_MS + request_delay_ms("alice", "m0", agreed, SPEC)
    assert alice.state().requests == [("m0", asked_ms, False)]
    alice.clock(asked_ms - 1)
    assert alice.sync().out == []
    alice.clock(asked_ms)
    (data,) = alice.sync().out
    assert decode(data, SPEC).repair_request == (missing,)
    received = alice.receive(encode(SdsMessage("m0", "room", "carol", NOW_MS + 1, content=b"w"), SPEC))
    assert received.events_of("sds:in:message-delivered") == ["m0"]
    swept = alice.sweep()
    assert swept.events_of("sds:in:message-delivered") == ["m1"]

    request = SdsMessage("s", "room", "bob", NOW_MS + 6, repair_request=(missing,))
    assert alice.receive(encode(request, SPEC)).value == "SyncMessage"
    answered_ms = asked_ms + response_delay_ms("alice", "carol", "m0", agreed, SPEC)
    assert alice.state().responses == [("m0", answered_ms)]
    alice.clock(answered_ms - 1)
    assert alice.sweep().out == []
    alice.clock(answered_ms)
    (data,) = alice.sweep().out
    assert decode(data, SPEC) == SdsMessage("m0", "room", "carol", NOW_MS + 1, content=b"w")


def test_the_package_resends_unacknowledged_messages(alice: JsPeer) -> None:
    (data,) = alice.send(b"mine").out
    swept = alice.sweep(resend=True)
    assert swept.out == [data]
    assert swept.value["unacknowledged"] == [decode(data, SPEC).message_id]
    assert alice.send(b"mine").out == [data]
    assert alice.receive(data).events == []
    assert alice.receive(b"\xff").value is None
