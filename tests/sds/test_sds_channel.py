"""Sending and receiving in a channel: the lines of the specification's protocol, one after the other."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice

import pytest
from sds_people import (
    CHANNEL,
    PATIENT,
    SMALL,
    START_MS,
    Member,
    changed,
    content,
    database_of,
    delivered,
    filter_of,
    opened,
)

from cablestore.errors import SdsError
from cablestore.sds import log as causal_log
from cablestore.sds.bloom import FilterParameters, ForeignFilter, positions
from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.dialects import NIM, SPEC
from cablestore.sds.effects import (
    Acknowledged,
    Missing,
    PossiblyAcknowledged,
    Send,
)
from cablestore.sds.log import CausalLog
from cablestore.sds.message import HistoryEntry, message_id_of
from cablestore.sds.settings import COMPACT_FILTER, Backoff, Settings

# --- sending -----------------------------------------------------------------------------------------


def test_the_lamport_time_is_the_current_time_and_always_increases() -> None:
    ann = Member("ann")
    times = [opened(ann.says(str(i))).lamport_ms for i in range(5)]
    assert times == [START_MS + i for i in range(5)]  # strictly increasing within one millisecond
    ann.now_ms += 1_000_000
    assert opened(ann.says("later")).lamport_ms == START_MS + 1_000_000
    ann.now_ms -= 999_000  # the clock is set back
    assert opened(ann.says("earlier")).lamport_ms == START_MS + 1_000_001


def test_the_lamport_time_is_later_than_all_delivered_messages() -> None:
    ann = Member("ann")
    ann.receives(content("ahead", at=1_000))
    assert opened(ann.says("x")).lamport_ms == START_MS + 1_001
    ann.receives(content("behind", at=5), content("waits", "nothing", at=50_000))
    assert opened(ann.says("y")).lamport_ms == START_MS + 1_002


def test_a_history_lists_the_newest_two_messages_with_hints_and_senders() -> None:
    ann, bob = Member("ann"), Member("bob")
    first, second, third = ann.says("1", hint=b"where"), ann.says("2"), ann.says("3")
    assert [entry.message_id for entry in opened(third).causal_history] == [
        opened(first).message_id,
        opened(second).message_id,
    ]
    assert opened(second).causal_history == (HistoryEntry(opened(first).message_id, b"where", "ann"),)
    bob.channel.receive(first, bob.now_ms, retrieval_hint=b"bob's way")
    assert opened(bob.says("x")).causal_history[0].retrieval_hint == b"bob's way"


@pytest.mark.thorough("200")
@pytest.mark.parametrize("length", [1, 5, 200])
def test_the_length_of_histories_is_configurable(length: int) -> None:
    ann = Member("ann", replace(SMALL, history_length=length))
    texts = [opened(ann.says(str(i), message_id=f"id {i}")) for i in range(length + 3)]
    assert [e.message_id for e in texts[-1].causal_history] == [f"id {i}" for i in range(2, length + 2)]


def test_histories_contain_senders_only_if_repairs_are_enabled() -> None:
    ann = Member("ann", replace(SMALL, repair=None))
    ann.says("1")
    assert opened(ann.says("2")).causal_history[0].sender_id is None


def test_unlisted_messages_are_also_listed() -> None:
    """Among many messages written at once, some are never among the newest of any member."""
    ann = Member("ann", PATIENT)
    ann.receives(*(content(f"m{i}", at=i) for i in range(8)))
    assert [e.message_id for e in opened(ann.says("x")).causal_history] == [f"m{i}" for i in range(8)]
    ann.receives(*(content(f"n{i:02}", at=100 + i) for i in range(30)))
    named = [e.message_id for e in opened(ann.says("y")).causal_history]
    assert len(named) == SMALL.history_length + SMALL.heads
    rest = [e.message_id for e in opened(ann.says("z")).causal_history]
    assert {f"n{i:02}" for i in range(30)} <= {*named, *rest}


def test_a_message_contains_the_filter_at_the_time_of_sending() -> None:
    ann = Member("ann", PATIENT)
    ann.channel.send(b"x", ann.now_ms)
    ann.receives(content("came since"))
    (data,) = [effect.data for effect in ann.effects_of(Send)]
    foreign = ForeignFilter.read(opened(data).bloom_filter, SMALL.filter, SPEC)
    assert foreign is not None
    for message_id in ("came since", opened(data).message_id):
        assert foreign.contains(positions(message_id, foreign, SPEC))


@pytest.mark.parametrize(("settings", "most"), [(Settings(), 18_900), (Settings(filter=COMPACT_FILTER), 3_500)])
def test_the_overhead_of_a_message_is_limited(settings: Settings, most: int) -> None:
    """The filter, three ids, and the fields for sender, channel and time."""
    ann = Member("ann", settings)
    sizes = [len(ann.says("x" * 200)) - 200 for _ in range(4)]
    assert settings.filter.size_bytes < sizes[0] < sizes[-1] == sizes[-2] <= min(most, settings.filter.size_bytes + 150)


def test_ids_of_the_same_time_sort_the_same_by_bytes_and_by_locale() -> None:
    """@waku/sds sorts ids by locale, where upper-case letters are next to their lower-case ones."""
    ids = [message_id_of("ann", "room", at, b"x") for at in range(200)]
    assert sorted(ids, key=str.encode) == sorted(ids, key=str.casefold)
    assert all(re.fullmatch("[0-9a-v]{32}", each) for each in ids)


def test_ids_are_unique_unless_the_application_chooses_them() -> None:
    ann, bob = Member("ann"), Member("bob")
    hi = [opened(member.says("hi")).message_id for member in (ann, bob, ann)]
    assert len(set(hi)) == 3
    assert all(len(message_id) == 32 for message_id in hi)
    assert opened(ann.says("hi", message_id="mine")).message_id == "mine"
    with pytest.raises(SdsError, match="already in the log"):
        ann.says("again", message_id="mine")
    ann.receives(content("waits", "for something"))
    with pytest.raises(SdsError, match="already in the log"):
        ann.says("again", message_id="waits")


@pytest.mark.parametrize(("text", "message_id"), [(b"", None), (b"x", "\ud800"), (b"x" * 2_000_000, None)])
def test_a_rejected_message_does_not_change_the_channel(text: bytes, message_id: str | None) -> None:
    ann = Member("ann")
    before = ann.channel.counters()
    with pytest.raises(SdsError):
        ann.channel.send(text, START_MS, message_id=message_id)
    assert ann.channel.counters() == before
    assert not ann.effects()


# --- receiving ---------------------------------------------------------------------------------------


def test_returned_own_messages_are_ignored() -> None:
    ann = Member("ann")
    assert ann.receives(ann.says("x")) == [ReceiveResult.OWN]
    assert ann.receives(content("unknown", sender="ann")) == [ReceiveResult.OWN]
    assert not ann.effects()


def test_lost_own_messages_are_recovered_if_another_member_lists_them() -> None:
    """The database was restored from an older copy: other members repair it, or a store does."""
    ann = Member("ann")
    ann.receives(content("later", "lost", at=5))
    lost = content("lost", sender="ann")
    assert ann.receives(lost) == [ReceiveResult.DELIVERED]
    assert ann.ids() == ["lost", "later"]
    assert ann.channel.retrieved(content("another", sender="ann"), START_MS).verdict is ReceiveResult.DELIVERED


def test_duplicates_are_never_delivered_twice() -> None:
    ann, bob = Member("ann"), Member("bob", PATIENT)
    first, second = ann.says("1"), ann.says("2")
    assert bob.receives(second, second, first, second, first) == [
        ReceiveResult.WAITING,
        ReceiveResult.DUPLICATE,
        ReceiveResult.DELIVERED,
        ReceiveResult.DUPLICATE,
        ReceiveResult.DUPLICATE,
    ]
    assert len(delivered(bob.effects())) == 2
    again = bob.reopened()
    assert again.receives(first, second) == [ReceiveResult.DUPLICATE] * 2


def test_dependencies_are_met_only_when_they_are_in_the_log() -> None:
    """A <- B <- C, where C arrives after B, and A last. Other implementations deliver C first or use a wrong order."""
    bob = Member("bob", PATIENT)
    a, b, c = content("a"), content("b", "a", at=1), content("c", "b", at=2)
    assert bob.receives(b, c) == [ReceiveResult.WAITING] * 2
    assert not delivered(bob.effects())
    assert bob.receives(a) == [ReceiveResult.DELIVERED]
    assert delivered(bob.effects()) == ["a", "b", "c"]


def test_a_dependency_that_is_only_in_a_filter_is_missing() -> None:
    bob = Member("bob", PATIENT)
    bob.receives(changed(content("b", "a", at=1), bloom_filter=filter_of("a")))
    assert bob.effects_of(Missing) == [Missing(HistoryEntry("a", None, "eve"))]


def test_missing_dependencies_are_resolved_one_by_one_or_marked_as_met() -> None:
    """nim-sds: 3 (1, 2) then 2 (1): missing 2 and 1, then 1; treating 1 as met delivers both."""
    bob = Member("bob", PATIENT)
    bob.receives(content("3", "1", "2", at=3))
    assert [effect.entry.message_id for effect in bob.effects_of(Missing)] == ["1", "2"]
    bob.receives(content("2", "1", at=2))
    assert [entry.message_id for entry in bob.channel.missing()] == ["1"]
    bob.channel.met(["1"])
    assert delivered(bob.effects()) == ["2", "3"]
    assert bob.channel.counters().waiting == 0
    assert bob.receives(content("1", at=1)) == [ReceiveResult.DELIVERED]  # it is still accepted
    assert bob.ids() == ["1", "2", "3"]


def test_the_log_is_sorted_by_time_and_then_by_the_bytes_of_ids() -> None:
    bob = Member("bob")
    bob.receives(*(content(message_id) for message_id in ("_x", "10", "9", "a", "B", "Z")), content("0", at=-10))
    bob.receives(content("zz", at=-10), content("é", at=-10))
    assert bob.ids() == ["0", "zz", "é", "10", "9", "B", "Z", "_x", "a"]
    assert [message.message_id for message in bob.channel.newest(2)] == ["a", "_x"]
    third = list(bob.channel.log())[2]
    assert [message.message_id for message in islice(bob.channel.log(third), 2)] == ["10", "9"]


def test_messages_that_arrive_out_of_order_are_sorted_by_time() -> None:
    """nim-sds keeps them in order of arrival."""
    bob = Member("bob")
    bob.receives(content("x", at=50), content("y", at=10), content("z", at=30))
    assert bob.ids() == ["y", "z", "x"]


def test_a_message_that_lists_itself_is_delivered() -> None:
    """Another implementation produces such a message for two people who write the same text, and drops it."""
    bob = Member("bob")
    assert bob.receives(content("self", "self")) == [ReceiveResult.DELIVERED]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_cycle_of_dependencies_does_not_block_delivery(order: tuple[str, str]) -> None:
    """An honest message is later than all messages in its history, so one of two that list each other is forged."""
    bob = Member("bob", PATIENT)
    circle = {"a": content("a", "b", at=1), "b": content("b", "a", at=2)}
    assert bob.receives(*(circle[name] for name in order))[-1] is ReceiveResult.DELIVERED
    assert bob.ids() == ["a", "b"]
    assert bob.channel.counters().waiting == 0
    assert not list(bob.channel.missing())


@pytest.mark.parametrize("foreign", [None, b"", b"short", bytes(376), b"\xff" * 20_000])
def test_messages_with_missing_or_invalid_filters_are_delivered(foreign: bytes | None) -> None:
    ann = Member("ann")
    ann.says("mine")
    assert ann.receives(changed(content("m"), bloom_filter=foreign)) == [ReceiveResult.DELIVERED]
    assert ann.receives(changed(content("n"), bloom_filter=b"\xff" * 376)) == [ReceiveResult.DELIVERED]
    assert not ann.effects_of(PossiblyAcknowledged)  # a filter that matches everything has no information


def test_invalid_and_foreign_messages_are_rejected_with_a_reason() -> None:
    ann = Member("ann")
    for data in (b"", b"\xff" * 50, changed(content("m"), channel_id="another")):
        received = ann.received(data)
        assert received.verdict is ReceiveResult.REFUSED
        assert received.reason
    assert not ann.effects()
    assert not ann.ids()


def test_a_log_is_read_completely_in_several_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log needs several pages."""
    monkeypatch.setattr(causal_log, "MAX_SDS_BATCH", 7)
    bob = Member("bob", PATIENT)
    names = [f"m{i:02}" for i in range(50)]
    bob.receives(*(content(name, at=i) for i, name in enumerate(names)))
    bob.receives(*(content(f"later {i}", f"none {i:02}", at=100) for i in range(20)))
    assert bob.ids() == names
    assert [message.message_id for message in bob.channel.log_from(START_MS + 20)] == names[20:]
    assert [entry.message_id for entry in bob.channel.missing()] == [f"none {i:02}" for i in range(20)]
    reading = bob.channel.log()
    assert next(reading).message_id == "m00"
    bob.receives(content("new", at=200))
    assert [message.message_id for message in reading] == [*names[1:], "new"]


# --- channels and settings ---------------------------------------------------------------------------


def test_channels_are_independent() -> None:
    log = CausalLog.in_memory()
    names = ["room", "room!", 'room"', "ro", "ro\x00om", "ß"]
    for number, name in enumerate(names):
        channel = log.channel(name, "ann")
        for _ in range(number + 1):
            channel.send(b"x", START_MS)
    assert sorted(log.channel_ids()) == sorted(names)
    assert [log.channel(name, "ann").counters().logged for name in names] == [1, 2, 3, 4, 5, 6]


def test_a_log_cannot_be_opened_by_another_sender() -> None:
    ann = Member("ann")
    ann.says("x")
    with pytest.raises(SdsError, match="belongs to 'ann'"):
        CausalLog.in_memory(database_of(ann.log)).channel(CHANNEL, "bob")
    with pytest.raises(SdsError, match="already open"):
        ann.log.channel(CHANNEL, "ann", replace(SMALL, resends=1))


def test_a_filter_with_other_parameters_is_rebuilt_from_the_log() -> None:
    ann = Member("ann")
    ids = [opened(ann.says(str(i))).message_id for i in range(20)]
    larger = replace(SMALL, filter=FilterParameters(1_000, 0.01))
    for settings in (larger, SMALL, larger):
        again = Member("ann", settings, CausalLog.in_memory(database_of(ann.log)))
        foreign = ForeignFilter.read(opened(again.says("x")).bloom_filter, settings.filter, SPEC)
        assert foreign is not None
        assert all(foreign.contains(positions(message_id, foreign, SPEC)) for message_id in ids)


def test_two_members_communicate_in_the_dialect_of_nim() -> None:
    settings = replace(SMALL, dialect=NIM)
    ann, bob = Member("ann", settings), Member("bob", settings)
    for text in ("1", "2"):
        ann.channel.send(text.encode(), START_MS)
    data = [effect.data for effect in ann.effects_of(Send)]
    bob.receives(*reversed(data))
    assert bob.texts() == ["1", "2"]
    bob.channel.send(b"3", START_MS)
    ann.receives(bob.effects_of(Send)[-1].data)
    assert len(ann.effects_of(Acknowledged)) == 2


@pytest.mark.parametrize(
    "wrong",
    [{"history_length": 0}, {"heads": 2_000}, {"repairs_per_message": 65}, {"resends": -1}, {"lost_after_ms": 0}],
)
def test_impossible_settings_are_rejected(wrong: dict[str, int]) -> None:
    with pytest.raises(SdsError):
        Settings(**wrong)  # type: ignore[arg-type]  # each is a number
    with pytest.raises(SdsError):
        Backoff(10, 5)
