"""Delivery of messages to all members: acknowledgements, resends, gaps, sync messages, repairs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain

import pytest
from sds_people import CHANNEL, PATIENT, SMALL, START_MS, Member, changed, content, delivered, filter_of, opened, sends

from cablestore.errors import SdsError
from cablestore.limits import MAX_SDS_REVIEWED
from cablestore.sds.bloom import ForeignFilter, positions
from cablestore.sds.codec import encode
from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.dialects import NIM, SPEC
from cablestore.sds.effects import (
    Acknowledged,
    Deliver,
    DeliverEphemeral,
    Lost,
    Missing,
    PossiblyAcknowledged,
    Reason,
    RepairRequested,
    Retrieve,
    Send,
    Unacknowledged,
)
from cablestore.sds.message import HistoryEntry, MessageKind, SdsMessage
from cablestore.sds.repair import RepairParameters, request_delay_ms, response_delay_ms
from cablestore.sds.settings import Backoff

# --- acknowledgements --------------------------------------------------------------------------------


def test_a_history_acknowledges_the_messages_it_lists() -> None:
    ann, bob = Member("ann"), Member("bob")
    first = ann.says("1")
    bob.receives(first)
    ann.receives(bob.says("answer"))
    assert ann.channel.counters().outgoing == 0
    effects = ann.effects()
    assert effects[0] == Acknowledged(opened(first).message_id)
    assert isinstance(effects[1], Deliver)
    assert not ann.tick(10**7) or not sends(ann.effects())


def test_a_history_acknowledges_indirect_dependencies() -> None:
    """A member that lists a message has all its dependencies."""
    ann, bob = Member("ann", PATIENT), Member("bob", PATIENT)
    bob.receives(*(ann.says(str(i)) for i in range(6)))
    ann.receives(changed(bob.says("x"), bloom_filter=None))
    assert ann.channel.counters().outgoing == 0
    assert len(ann.effects_of(Acknowledged)) == 6


def test_returned_own_messages_do_not_acknowledge() -> None:
    """A store returns them: their histories and filters show our own state."""
    settings = replace(PATIENT, filters_that_acknowledge=1)
    ann = Member("ann", settings)
    first, second = ann.says("1"), ann.says("2")
    stored = ann.channel.encoded(opened(second).message_id)
    assert stored is not None
    for data in (stored, second, changed(content("another", opened(first).message_id, sender="ann"), content=None)):
        ann.channel.retrieved(data, ann.now_ms)
    assert ann.channel.counters().outgoing == 2
    assert ann.effects() == []


def test_an_own_message_listed_by_another_member_acknowledges_its_dependencies() -> None:
    """The database was restored from an older copy, so the listed message had to be retrieved."""
    ann = Member("ann", PATIENT)
    first = opened(ann.says("1")).message_id
    ann.receives(content("answer", "second", at=9, sender="bob"))
    ann.effects()
    ann.receives(content("second", first, at=5, sender="ann"))
    assert ann.effects_of(Acknowledged) == [Acknowledged(first)]


def test_own_messages_that_list_each_other_do_not_acknowledge() -> None:
    ann = Member("ann", PATIENT)
    first = opened(ann.says("1")).message_id
    ann.channel.retrieved(content("third", "second", at=9, sender="ann"), ann.now_ms)
    ann.channel.retrieved(content("second", first, at=5, sender="ann"), ann.now_ms)
    assert ann.texts() == ["1", "text", "text"]
    assert ann.channel.counters().outgoing == 1


def test_requests_in_returned_own_messages_are_not_answered() -> None:
    ann = Member("ann", REPAIRS)
    ann.receives(content("a"), content("answer", "lost", at=9, sender="bob"))
    asking = changed(content("lost", at=5, sender="ann"), repair_request=(HistoryEntry("a", None, "eve"),))
    assert ann.receives(asking) == [ReceiveResult.DELIVERED]
    assert ann.channel.counters().answers == 0


def test_filters_possibly_acknowledge_once_for_each_member() -> None:
    ann, bob = Member("ann", PATIENT), Member("bob", PATIENT)
    first = opened(ann.says("1")).message_id
    seen = filter_of(first)
    for name in ("bob", "bob", "cyd"):
        bob.says("?")
        ann.receives(changed(content(f"{name} {bob.now_ms}", sender=name), bloom_filter=seen))
        bob.now_ms += 1
    effects = ann.effects_of(PossiblyAcknowledged)
    assert [(effect.message_id, effect.members) for effect in effects] == [(first, 1), (first, 2)]
    assert 0 < effects[1].doubt < effects[0].doubt < 1e-3
    assert ann.channel.counters().outgoing == 1  # one filter is not sufficient, unless it is configured
    ann.receives(*(changed(content(f"{i}", sender=f"{i}"), bloom_filter=seen) for i in range(7)))
    assert [effect.members for effect in ann.effects_of(PossiblyAcknowledged)] == [3, 4, 5, 6, 7, 8]


def test_filters_of_several_members_acknowledge_if_configured() -> None:
    settings = replace(PATIENT, filters_that_acknowledge=2)
    ann = Member("ann", settings)
    first = opened(ann.says("1")).message_id
    seen = filter_of(first)
    ann.receives(*(changed(content(name, sender=name), bloom_filter=seen) for name in ("bob", "cyd")))
    assert ann.effects_of(Acknowledged) == [Acknowledged(first)]
    doubtful = Member("dan", replace(settings, most_doubt=0.0))
    second = opened(doubtful.says("1")).message_id
    seen = filter_of(second)
    doubtful.receives(*(changed(content(name, sender=name), bloom_filter=seen) for name in ("bob", "cyd")))
    assert not doubtful.effects_of(Acknowledged)


def test_resends_become_less_frequent_and_end() -> None:
    settings = replace(PATIENT, resend=Backoff(100, 500), resends=4)
    ann = Member("ann", settings)
    first = opened(ann.says("1")).message_id
    effects = [(ann.now_ms - START_MS, effect) for _ in range(300) for effect in ann.tick(10)]
    times = [(time_ms, effect.reason if isinstance(effect, Send) else effect) for time_ms, effect in effects]
    assert times == [
        (100, Reason.RESEND),
        (300, Reason.RESEND),
        (700, Reason.RESEND),
        (1200, Reason.RESEND),
        (1700, Unacknowledged(first, 5, is_possibly_acknowledged=False)),
    ]
    assert ann.ids() == [first]


def test_possibly_acknowledged_messages_are_resent_later() -> None:
    settings = replace(PATIENT, resend=Backoff(100, 100), resend_possibly=Backoff(1_000, 1_000))
    ann = Member("ann", settings)
    certain, possible = (opened(ann.says(text)).message_id for text in "12")
    ann.receives(changed(content("m"), bloom_filter=filter_of(possible)))
    ann.effects()
    again = [message.message_id for _ in range(9) for message in sends(ann.tick(100))]
    assert again == [certain] * 9
    assert possible in [message.message_id for message in sends(ann.tick(100))]


def test_the_next_filter_is_compared_with_the_remaining_messages() -> None:
    """MAX_SDS_REVIEWED own messages are compared with the filters of one write. After the last, the first follow."""
    ann = Member("ann", PATIENT)
    with ann.log.batch():
        ids = [ann.channel.send(str(i).encode(), START_MS).message_id for i in range(150)]
    ann.effects()
    for start in (0, 64, 128):
        ann.receives(changed(content(f"m{start}", sender=f"{start}"), bloom_filter=filter_of(*ids)))
        known = {effect.message_id for effect in ann.effects_of(PossiblyAcknowledged)}
        assert known == {*[*ids, *ids][start : start + MAX_SDS_REVIEWED]}


def test_all_filters_of_one_write_are_compared_with_the_same_messages() -> None:
    ann = Member("ann", PATIENT)
    with ann.log.batch():
        ids = [ann.channel.send(str(i).encode(), START_MS).message_id for i in range(MAX_SDS_REVIEWED + 9)]
    ann.effects()
    seen = filter_of(*ids)
    with ann.log.batch():
        ann.receives(*(changed(content(name, sender=name), bloom_filter=seen) for name in ("bob", "cyd")))
    filters = Counter(effect.message_id for effect in ann.effects_of(PossiblyAcknowledged))
    assert [*filters.values()] == [2] * MAX_SDS_REVIEWED


# --- missing messages --------------------------------------------------------------------------------


def test_missing_messages_are_reported_once_and_retrieved_repeatedly() -> None:
    ann = Member("ann", replace(PATIENT, retrieve=Backoff(100, 400)))
    hinted = SdsMessage(
        "b", CHANNEL, "eve", START_MS + 9, causal_history=(HistoryEntry("a", b"hint", "eve"),), content=b"x"
    )
    ann.receives(content("c", "a", at=5), encode(hinted, SPEC))
    assert ann.effects_of(Missing) == [Missing(HistoryEntry("a", None, "eve"))]
    told = [(ann.now_ms - START_MS, effect) for _ in range(100) for effect in ann.tick(10)]
    entry = HistoryEntry("a", b"hint", "eve")  # the hint arrived later
    assert told == [(100, Retrieve(entry, 2)), (300, Retrieve(entry, 3)), (700, Retrieve(entry, 4))]
    assert ann.channel.retrieved(content("a"), ann.now_ms).verdict is ReceiveResult.DELIVERED
    assert delivered(ann.effects()) == ["a", "c", "b"]
    assert not [effect for _ in range(100) for effect in ann.tick(10)]


def test_messages_missing_for_too_long_are_lost_and_dependents_delivered() -> None:
    ann = Member("ann", replace(PATIENT, lost_after_ms=1_000))
    ann.receives(content("b", "a", at=1), content("c", "b", at=2))
    ann.effects()
    assert not ann.tick(999)
    effects = ann.tick(1)
    assert effects[-1] == Lost(HistoryEntry("a", None, "eve"))
    assert delivered(effects) == ["b", "c"]
    assert ann.channel.counters().lost == 1
    assert ann.receives(content("a")) == [ReceiveResult.DELIVERED]  # it arrives after it was declared lost
    assert ann.channel.counters().lost == 0
    assert ann.ids() == ["a", "b", "c"]
    assert [e.message_id for e in opened(ann.says("x")).causal_history] == ["b", "c"]  # a message already lists it


def test_missing_messages_are_never_lost_if_that_is_disabled() -> None:
    ann = Member("ann", replace(PATIENT, lost_after_ms=None))
    ann.receives(content("b", "a", at=1))
    ann.effects()
    assert not ann.tick(10**8)


# --- sync and ephemeral messages ---------------------------------------------------------------------


def test_a_sync_message_is_empty_and_not_logged() -> None:
    ann, bob = Member("ann"), Member("bob")
    bob.receives(ann.says("x"))
    bob.effects()
    bob.tick()
    (sync,) = sends(bob.tick(SMALL.sync_interval_ms or 0))
    assert sync.kind is MessageKind.SYNC
    assert not sync.content
    assert sync.lamport_ms == bob.now_ms
    assert [entry.message_id for entry in sync.causal_history] == ann.ids()
    assert sync.bloom_filter
    assert bob.channel.counters().outgoing == 0
    assert ann.receives(encode(sync, SPEC)) == [ReceiveResult.SYNC]
    assert ann.effects_of(Acknowledged) == [Acknowledged(ann.ids()[0])]
    for member in (ann, bob):
        assert member.texts() == ["x"]
        after = opened(member.says("y"))
        assert sync.message_id not in [entry.message_id for entry in after.causal_history]
        foreign = ForeignFilter.read(after.bloom_filter, SMALL.filter, SPEC)
        assert foreign is not None
        assert not foreign.contains(positions(sync.message_id, foreign, SPEC))


def test_a_sync_message_reveals_missing_messages() -> None:
    ann, bob = Member("ann"), Member("bob")
    bob.receives(ann.says("x"))
    bob.effects()
    bob.tick()
    (sync,) = sends(bob.tick(40_000))
    cyd = Member("cyd")
    cyd.receives(encode(sync, SPEC))
    assert [effect.entry for effect in cyd.effects_of(Missing)] == [HistoryEntry(ann.ids()[0], None, "ann")]


def test_a_sync_message_is_omitted_if_another_member_sent_the_same() -> None:
    ann, bob, cyd = Member("ann"), Member("bob"), Member("cyd")
    said = ann.says("x")
    for member in (bob, cyd):
        member.receives(said)
        member.effects()
        member.tick()
    (sync,) = sends(bob.tick(30_000))
    cyd.now_ms += 25_000
    cyd.receives(encode(sync, SPEC))
    assert not cyd.tick(5_000)  # it was due, and bob has just sent one
    assert sends(cyd.tick(31_000))  # bob's message is too old by now


def test_resent_messages_do_not_suppress_sync_messages() -> None:
    """Acknowledgements depend on other members' messages, so they must not be omitted."""
    ann, bob = Member("ann"), Member("bob")
    said = ann.says("x")
    bob.receives(said)
    bob.effects()
    bob.tick()
    for _ in range(3):
        bob.receives(said)
    bob.now_ms += 20_000
    name = opened(said).message_id
    bob.receives(changed(content("sync", name, sender="ann", at=9), content=None))
    assert sends(bob.tick(10_000))


def test_an_empty_log_sends_no_sync_message() -> None:
    ann = Member("ann")
    assert not [effect for _ in range(100) for effect in ann.tick(10_000)]
    assert ann.channel.due_ms() is not None


def test_pending_repairs_cause_a_sync_message_even_if_others_sent_one() -> None:
    ann = Member("ann")
    ann.receives(content("a"), content("c", "b", at=2))
    ann.effects()
    ann.tick()
    sent = []
    for turn in range(20):
        ann.receives(changed(content(f"sync {turn}", "a", sender="dan", at=3), content=None))
        sent += sends(ann.tick(10_000))
    assert [entry.message_id for entry in sent[0].repair_request] == ["b"]


def test_ephemeral_messages_are_delivered_immediately_and_not_logged() -> None:
    ann, bob = Member("ann"), Member("bob")
    ann.says("x")
    ann.channel.send_ephemeral(b"typing")
    (effect,) = ann.effects_of(Send)
    message = opened(effect.data)
    assert (message.kind, message.content) == (MessageKind.EPHEMERAL, b"typing")
    assert (message.lamport_ms, message.causal_history, message.bloom_filter) == (None, (), None)
    assert bob.receives(effect.data) == [ReceiveResult.EPHEMERAL]
    assert bob.effects_of(DeliverEphemeral) == [DeliverEphemeral(message)]
    assert not bob.texts()
    assert ann.channel.counters().outgoing == 1
    assert ann.receives(effect.data) == [ReceiveResult.OWN]
    with pytest.raises(SdsError):
        Member("nim", replace(SMALL, dialect=NIM)).channel.send_ephemeral(b"none travels there")


# --- repair ------------------------------------------------------------------------------------------

REPAIRS = replace(PATIENT, repair=RepairParameters(1_000, 4_000), repair_backoff=Backoff(4_000, 60_000))


def test_a_repair_is_requested_at_t_req_and_answered_at_t_resp() -> None:
    ann, bob, cyd = (Member(name, REPAIRS) for name in ("ann", "bob", "cyd"))
    first, second = ann.says("1"), ann.says("2")
    cyd.receives(first, second)
    bob.receives(second)
    bob.effects()
    missed = opened(first).message_id
    parameters = REPAIRS.repair
    assert parameters is not None
    bob.now_ms += request_delay_ms("bob", missed, parameters, SPEC) - 1
    assert not opened(bob.says("early")).repair_request
    bob.now_ms += 1
    asking = bob.says("now")
    assert opened(asking).repair_request == (HistoryEntry(missed, None, "ann"),)
    assert not opened(bob.says("again")).repair_request
    for member in (ann, cyd):
        member.now_ms = bob.now_ms
        member.receives(asking)
        member.effects()
    (answer,) = ann.tick()  # its author answers immediately
    assert isinstance(answer, Send)
    assert answer.reason is Reason.REPAIR
    wait_ms = response_delay_ms("cyd", "ann", missed, parameters, SPEC)
    assert not cyd.tick(wait_ms - 1)
    (late,) = cyd.tick(1)
    assert isinstance(late, Send)
    assert opened(late.data).bloom_filter is None
    assert replace(opened(late.data), bloom_filter=None) == replace(opened(first), bloom_filter=None)
    assert bob.receives(late.data) == [ReceiveResult.DELIVERED]
    assert bob.texts()[:2] == ["1", "2"]


def test_an_answer_of_another_member_cancels_ours() -> None:
    ann, cyd = Member("ann", REPAIRS), Member("cyd", REPAIRS)
    first = ann.says("1")
    cyd.receives(first, changed(content("ask"), repair_request=(HistoryEntry(opened(first).message_id),)))
    cyd.effects()
    assert cyd.channel.counters().answers == 1
    lamport_ms = opened(first).lamport_ms or 0
    cyd.receives(changed(first, content=b"another"), changed(first, lamport_ms=lamport_ms + 1))
    assert cyd.channel.counters().answers == 1  # only the same message answers the request
    cyd.receives(first)
    assert cyd.channel.counters().answers == 0
    assert not cyd.tick(10_000)


def test_repairs_are_requested_again_later_with_three_per_message() -> None:
    bob = Member("bob", REPAIRS)
    bob.receives(content("z", *"abcdefg", at=9))
    bob.effects()
    bob.now_ms += 4_000
    asked = [[entry.message_id for entry in opened(bob.says("x")).repair_request] for _ in range(4)]
    assert list(map(len, asked)) == [3, 3, 1, 0]
    parameters = REPAIRS.repair
    assert parameters is not None
    order = sorted("abcdefg", key=lambda each: request_delay_ms("bob", each, parameters, SPEC))
    assert list(chain.from_iterable(asked)) == order  # the most overdue first
    bob.now_ms += 4_000
    assert not opened(bob.says("too early")).repair_request
    bob.now_ms += 4_001
    assert len(opened(bob.says("again")).repair_request) == 3


def test_a_repair_requested_by_another_member_is_not_requested_at_the_same_time() -> None:
    bob = Member("bob", REPAIRS)
    bob.receives(content("b", "a", at=1), changed(content("ask"), repair_request=(HistoryEntry("a"),)))
    bob.effects()
    bob.now_ms += 4_000
    assert not opened(bob.says("x")).repair_request
    bob.now_ms += 4_001
    assert opened(bob.says("nobody answered")).repair_request
    bob.receives(content("a"))
    bob.now_ms += 10**6
    assert not opened(bob.says("it is here")).repair_request


def test_a_request_is_reported_with_the_message_that_contains_it() -> None:
    bob = Member("bob", REPAIRS)
    bob.receives(content("b", "a", at=1))
    bob.now_ms += 4_000
    message = bob.channel.send(b"x", bob.now_ms)
    assert bob.effects_of(RepairRequested) == [RepairRequested(message.message_id, (HistoryEntry("a", None, "eve"),))]


def test_repairs_are_sent_only_from_the_log_and_only_by_their_group() -> None:
    many = replace(REPAIRS, repair=RepairParameters(1_000, 4_000, groups=1_000))
    members = [Member(f"member {i}", many) for i in range(40)]
    asking = changed(content("ask"), repair_request=(HistoryEntry("m"), HistoryEntry("waits"), HistoryEntry("unknown")))
    for member in members:
        member.receives(content("m", sender="member 7"), content("waits", "unknown"), asking)
        assert member.channel.counters().answers <= 1
    # Its author has it as an own message, received by `retrieved`.
    author = Member("member 7", many)
    author.channel.retrieved(content("m", sender="member 7"), START_MS)
    author.receives(asking)
    assert author.channel.counters().answers == 1
    assert sum(member.channel.counters().answers for member in members) < 5
