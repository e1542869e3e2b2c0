"""Messages that a causal log accepts can be sent with filter, repairs and hints. Others are rejected immediately."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sds_people import CHANNEL, PATIENT, SMALL, START_MS, Member, content, opened, sends

from cablestore import limits
from cablestore.errors import SdsError
from cablestore.sds import channel, records
from cablestore.sds.codec import decode, encode
from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.dialects import NIM, SPEC, SdsDialect
from cablestore.sds.effects import Reason, Send
from cablestore.sds.log import CausalLog
from cablestore.sds.message import HistoryEntry, SdsMessage
from cablestore.sds.repair import RepairParameters
from cablestore.sds.settings import COMPACT_FILTER, Settings

LONGEST_ID = "i" * (limits.MAX_SDS_ID_SIZE_BYTES - 1)
LONGEST_HINT = bytes(limits.MAX_SDS_HINT_SIZE_BYTES)
ASKING = replace(PATIENT, repair=RepairParameters(1, 2), repairs_per_message=3)


def with_longest_requests(dialect: SdsDialect) -> Member:
    """Return a member that requests the longest repairs with its next message."""
    ann = Member("ann", replace(ASKING, dialect=dialect))
    longest = tuple(HistoryEntry(f"{LONGEST_ID}{i}", LONGEST_HINT, "e" * 512) for i in range(3))
    asking = SdsMessage("sync", CHANNEL, "eve", START_MS, longest, content=b"x")
    ann.receives(encode(asking, dialect))
    ann.effects()
    ann.now_ms += 1_000
    return ann


@pytest.mark.parametrize("dialect", [SPEC, NIM], ids=lambda dialect: dialect.name)
def test_the_longest_accepted_message_is_sent_with_filter_and_repairs(dialect: SdsDialect) -> None:
    """MAX_SDS_MESSAGE_SIZE_BYTES."""
    fits, fits_not = 1_000_000, limits.MAX_SDS_MESSAGE_SIZE_BYTES
    while fits_not - fits > 1:
        middle = (fits + fits_not) // 2
        try:
            Member("ann", replace(ASKING, dialect=dialect)).channel.send(bytes(middle), START_MS)
            fits = middle
        except SdsError:
            fits_not = middle
    ann = with_longest_requests(dialect)
    with pytest.raises(SdsError, match="before its filter and repairs are added"):
        ann.channel.send(bytes(fits_not), ann.now_ms)
    ann.channel.send(bytes(fits), ann.now_ms)
    [data] = [effect.data for effect in ann.effects() if isinstance(effect, Send)]
    assert 0 <= limits.MAX_SDS_MESSAGE_SIZE_BYTES - len(data) < 250
    sent = decode(data, dialect)
    assert sent.bloom_filter
    assert len(sent.repair_request) == 3


def test_the_longest_message_of_deployed_nodes_can_be_sent() -> None:
    ann = Member("ann", Settings())
    assert len(opened(ann.says("x" * 1_048_576)).bloom_filter or b"") == 18_752


def test_sending_a_hint_that_is_too_long_is_rejected() -> None:
    """MAX_SDS_HINT_SIZE_BYTES: later histories list the message with its hint."""
    ann = Member("ann")
    with pytest.raises(SdsError, match="a retrieval hint has 1025 bytes, the maximum is 1024"):
        ann.says("x", hint=LONGEST_HINT + b"x")
    assert ann.texts() == []
    ann.says("1", hint=LONGEST_HINT)
    assert opened(ann.says("2")).causal_history[0].retrieval_hint == LONGEST_HINT


def test_a_received_hint_that_is_too_long_is_ignored() -> None:
    ann = Member("ann")
    hint = LONGEST_HINT + b"x"
    assert ann.channel.receive(content("m"), START_MS, retrieval_hint=hint).verdict is ReceiveResult.DELIVERED
    assert ann.channel.retrieved(content("n"), START_MS, retrieval_hint=hint).verdict is ReceiveResult.DELIVERED
    assert [entry.retrieval_hint for entry in opened(ann.says("x")).causal_history] == [None, None]
    assert ann.channel.receive(content("o"), START_MS, retrieval_hint=LONGEST_HINT).verdict is ReceiveResult.DELIVERED


@pytest.mark.parametrize("wrong", ["i" * 513, "é" * 257, "\ud800", ""])
def test_opening_a_channel_with_an_invalid_id_is_rejected(wrong: str) -> None:
    """MAX_SDS_ID_SIZE_BYTES."""
    with CausalLog.in_memory() as empty:
        for channel_id, sender_id in ((wrong, "ann"), ("room", wrong)):
            with pytest.raises(SdsError, match="id"):
                empty.channel(channel_id, sender_id)
        assert empty.channel_ids() == []
        longest = empty.channel("é" * 256, "é" * 256)
        longest.send(b"x", START_MS)
        assert len(longest.outbox()) == 1


def test_ids_that_are_not_valid_unicode_are_rejected_or_unknown() -> None:
    ann = Member("ann")
    ann.says("x")
    with pytest.raises(SdsError, match="UTF-8"):
        ann.channel.send(b"x", START_MS, message_id="\ud800")
    with pytest.raises(SdsError, match="UTF-8"):
        ann.channel.met(["a", "\ud800"])
    assert ann.channel.message("\ud800") is None
    assert ann.channel.encoded("\ud800") is None
    assert ann.channel.counters().logged == 1


# --- logs of earlier versions --------------------------------------------------------------------


def test_a_message_of_an_earlier_version_that_is_too_long_is_sent_without_filter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Versions up to 0.12 did not check the space for filter and repairs."""
    ann = with_longest_requests(SPEC)
    with monkeypatch.context() as earlier:
        earlier.setattr(channel, "check_sendable", lambda *_: None)
        ann.channel.send(bytes(1_310_600), ann.now_ms)
    later = ann.reopened()
    later.channel.send(b"later", later.now_ms)
    long, short = sends(later.effects())
    assert (long.content, long.bloom_filter, long.repair_request) == (bytes(1_310_600), None, ())
    assert short.content == b"later"
    assert short.bloom_filter


def test_a_message_is_resent_without_filter_if_the_filter_has_grown() -> None:
    small = replace(PATIENT, filter=COMPACT_FILTER, resend=SMALL.resend)
    ann = Member("ann", small)
    ann.channel.send(bytes(1_305_000), START_MS)
    assert sends(ann.effects())[0].bloom_filter
    ann.settings = replace(small, filter=Settings().filter)
    [again] = sends(ann.reopened().tick(30_000))
    assert len(again.content or b"") == 1_305_000
    assert again.bloom_filter is None


def test_a_hint_of_an_earlier_version_that_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync messages in the outbox may already contain it."""
    ann = Member("ann")
    with monkeypatch.context() as earlier:
        earlier.setattr(records, "MAX_SDS_HINT_SIZE_BYTES", 10_000)
        ann.channel.receive(content("m"), START_MS, retrieval_hint=bytes(2_000))
        for after_ms in (0, 30_001):
            ann.now_ms += after_ms
            ann.channel.tick(ann.now_ms, lambda: 0.0)
    later = ann.reopened()
    later.channel.send(b"x", later.now_ms)
    sync, text = (effect for _, effect in later.channel.outbox() if isinstance(effect, Send))
    assert (sync.reason, text.reason) == (Reason.SYNC, Reason.NEW)
    for data in (sync.data, text.data):
        assert [entry[:2] for entry in opened(data).causal_history] == [("m", None)]
