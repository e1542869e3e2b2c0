"""Any schedule of sends, losses, duplicates, orders, kills and ticks results in equal logs.

The invariants are asserted at each step. The tests below cover the properties of other implementations' tests, one test
each, and more.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from folders import KNOWN_ANSWERS
from hypothesis import given, settings
from hypothesis import strategies as st
from sds_network import QUICK
from sds_people import CHANNEL, SMALL, START_MS, Member, changed, content, delivered, opened, sends

from cablestore.sds.delivery import ReceiveResult
from cablestore.sds.effects import Acknowledged, Deliver, Effect, Missing, PossiblyAcknowledged, Send
from cablestore.sds.log import CausalLog
from cablestore.sds.message import HistoryEntry
from cablestore.sds.repair import RepairParameters
from cablestore.sds.settings import Backoff, Settings

VECTORS: Final[dict[str, Any]] = json.loads((KNOWN_ANSWERS / "sds.json").read_text())
F = TypeVar("F", bound=Callable[..., None])
_PINNED: list[str] = []
_BEHAVIOUR: Final = [*VECTORS["nim_test_properties"], *VECTORS["lamport_tests"], *VECTORS["repair_buffer_tests"]]
_FORMATS: Final = ("T_req in [Tmin,Tmax)", "T_resp(self as sender)", "group: groups<=1")
"""Properties of the formats alone, which test_sds_repair.py covers."""


def pins(words: str) -> Callable[[F], F]:
    """Associate a test with the property of the vectors that contains these words."""
    (found,) = [each for each in _BEHAVIOUR if words in each]

    def tied(test: F) -> F:
        _PINNED.append(found)
        return test

    return tied


def test_every_property_of_the_vectors_has_a_test() -> None:
    left = [each for each in _BEHAVIOUR if not each.startswith(_FORMATS)]
    assert sorted(_PINNED) == sorted(left)


# --- any schedule ------------------------------------------------------------------------------------


class World:
    """Members, and messages in transit: a schedule determines the destination, number and time of deliveries."""

    def __init__(self, number: int) -> None:
        self.members = [Member(f"member {i}", replace(QUICK, sync_interval_ms=2_000)) for i in range(number)]
        self.in_transit: list[bytes] = []
        self.given: list[list[str]] = [[] for _ in self.members]
        self.handled = [0] * number

    def handle(self, which: int, *, confirm: bool = True) -> None:
        """Handle the outbox. Without `confirm`, the effects are repeated, as after a kill."""
        channel = self.members[which].channel
        effects = channel.outbox()
        for sequence, effect in effects:
            self.do(which, effect, again=sequence <= self.handled[which])
            self.handled[which] = max(self.handled[which], sequence)
        if effects and confirm:
            channel.confirm(effects[-1][0])

    def do(self, which: int, effect: Effect, *, again: bool) -> None:
        given = self.given[which]
        if isinstance(effect, Send):
            self.in_transit.append(effect.data)
        elif isinstance(effect, Deliver) and not again:
            name = self.members[which].name
            assert effect.message.message_id not in given
            assert all(e.message_id in given or e.sender_id == name for e in effect.message.causal_history)
            given.append(effect.message.message_id)

    def step(self, action: str, which: int, packet: int) -> None:
        which %= len(self.members)
        member = self.members[which]
        if action == "send":
            member.channel.send(b"%d" % packet, member.now_ms)
        elif action == "tick":
            member.now_ms += 1 + packet * 50
            member.channel.tick(member.now_ms, lambda: packet % 10 / 10)
        elif action == "lose" and self.in_transit:
            self.in_transit.pop(packet % len(self.in_transit))
        elif action in {"arrive", "repeat"} and self.in_transit:
            at = packet % len(self.in_transit)
            data = self.in_transit[at] if action == "repeat" else self.in_transit.pop(at)
            assert member.received(data).verdict is not ReceiveResult.REFUSED
        elif action == "kill":
            self.handle(which, confirm=False)
            self.members[which] = member.reopened()
        self.handle(which)

    def settle(self) -> None:
        """Deliver all messages to all members until no member lacks any."""
        for _ in range(200):
            arriving, self.in_transit = self.in_transit, []
            for which, member in enumerate(self.members):
                member.receives(*arriving)
                self.handle(which)
            if len({tuple(member.ids()) for member in self.members}) == 1 and not self.in_transit:
                return
            for which, member in enumerate(self.members):
                member.now_ms += 1_000
                member.channel.tick(member.now_ms, lambda: 0.5)
                self.handle(which)
        raise AssertionError([member.ids() for member in self.members])


ACTIONS = st.tuples(
    st.sampled_from(["send", "send", "arrive", "arrive", "repeat", "lose", "tick", "kill"]),
    st.integers(0, 4),
    st.integers(0, 100),
)


@settings(deadline=None)
@given(st.integers(2, 5), st.lists(ACTIONS, max_size=60))
def test_any_schedule_results_in_equal_logs(number: int, schedule: list[tuple[str, int, int]]) -> None:
    world = World(number)
    for action in schedule:
        world.step(*action)
    world.settle()
    sent = sum(action == "send" for action, _, _ in schedule)
    for which, member in enumerate(world.members):
        log = list(member.channel.log())
        assert len(log) == sent
        own = {message.message_id for message in log if message.sender_id == member.name}
        assert set(world.given[which]) == {message.message_id for message in log} - own
        places = [(message.lamport_ms or 0, message.message_id) for message in log]
        assert places == sorted(places)


@settings(deadline=None, max_examples=50)
@given(st.permutations(range(9)), st.lists(st.integers(0, 8), max_size=9), st.data())
def test_any_order_of_any_graph_delivers_the_same(order: list[int], repeated: list[int], data: st.DataObject) -> None:
    """Each message is delivered once, after its dependencies, and as soon as the last of them arrives."""
    graph = {i: data.draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set() for i in range(9)}
    member = Member("m", replace(SMALL, lost_after_ms=None))
    here: set[int] = set()
    seen: list[str] = []
    for i in [*order[:5], *repeated, *order[5:]]:
        before = {f"m{j}" for j in here if _is_whole(j, graph, here)}
        member.receives(content(f"m{i}", *(f"m{j}" for j in sorted(graph[i])), at=i))
        here.add(i)
        new = delivered(member.effects())
        assert set(new) == {f"m{j}" for j in here if _is_whole(j, graph, here)} - before
        seen += new
    for i, needed in graph.items():
        assert all(seen.index(f"m{j}") < seen.index(f"m{i}") for j in needed)
    assert member.ids() == [f"m{i}" for i in range(9)]
    counters = member.channel.counters()
    assert (counters.waiting, counters.waiting_size_bytes, counters.missing, counters.logged) == (0, 0, 0, 9)


def _is_whole(i: int, graph: dict[int, set[int]], here: set[int]) -> bool:
    return i in here and all(_is_whole(j, graph, here) for j in graph[i])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(st.binary(max_size=60), st.tuples(st.integers(0, 300), st.integers(0, 255)))))
def test_a_channel_works_after_any_bytes(inputs: list[bytes | tuple[int, int]]) -> None:
    ann = Member("ann")
    whole = content("m", "a", "b", at=3)
    for data in inputs:
        if isinstance(data, tuple):
            mutated = bytearray(whole)
            mutated[data[0] % len(whole)] = data[1]
            data = bytes(mutated)  # noqa: PLW2901 - the tested bytes
        received = ann.received(data)
        assert (received.reason is not None) == (received.verdict is ReceiveResult.REFUSED)
    ann.effects()
    assert ann.receives(content("fine", at=9)) == [ReceiveResult.DELIVERED]


# --- properties of other implementations' tests --------------------------------------------------------

PATIENT: Final = replace(SMALL, sync_interval_ms=None, resend=Backoff(10**9, 10**9), retrieve=Backoff(10**9, 10**9))
REPAIRS: Final = replace(PATIENT, repair=RepairParameters(1_000, 4_000), repair_backoff=Backoff(4_000, 60_000))


@pins("wrap/unwrap own bytes")
def test_a_sent_message_is_delivered_unchanged() -> None:
    ann, bob = Member("ann"), Member("bob")
    assert bob.receives(ann.says("hello")) == [ReceiveResult.DELIVERED]
    (effect,) = bob.effects_of(Deliver)
    assert effect.message.content == b"hello"
    assert not list(bob.channel.missing())


@pins("msg3(1,2) then msg2(1)")
def test_a_dependency_marked_as_met_releases_both_messages() -> None:
    bob = Member("bob", PATIENT)
    bob.receives(content("3", "1", "2", at=3), content("2", "1", at=2))
    assert [effect.entry.message_id for effect in bob.effects_of(Missing)] == ["1", "2"]
    bob.channel.met(["1"])
    assert delivered(bob.effects()) == ["2", "3"]
    assert bob.channel.counters().waiting == 0


@pins("only present in the bloom filter is still missing")
def test_a_filter_does_not_satisfy_dependencies() -> None:
    ann, bob = Member("ann", PATIENT), Member("bob", PATIENT)
    ann.says("1")
    bob.receives(ann.says("2"))
    assert len(bob.effects_of(Missing)) == 1


@pins("ack via causal history")
def test_a_history_acknowledges_the_listed_message() -> None:
    ann = Member("ann", PATIENT)
    first = opened(ann.says("1")).message_id
    ann.receives(content("m", first, at=5))
    assert ann.effects_of(Acknowledged) == [Acknowledged(first)]


@pins("ack via a single bloom hit")
def test_a_single_filter_acknowledges_only_if_configured() -> None:
    for needed, kind in ((1, Acknowledged), (None, PossiblyAcknowledged)):
        ann = Member("ann", replace(PATIENT, filters_that_acknowledge=needed, most_doubt=1e-3))
        bob = Member("bob", PATIENT)
        bob.receives(ann.says("1"))
        ann.receives(changed(bob.says("x"), causal_history=()))
        assert type(ann.effects()[0]) is kind


@pins("outgoing buffer / resend")
def test_unacknowledged_messages_are_resent_and_then_removed() -> None:
    """The history has no limit here: messages of the log are never removed."""
    ann = Member("ann", replace(SMALL, resend=Backoff(100, 100), resends=1, sync_interval_ms=50))
    ann.says("1")
    assert ann.channel.counters().outgoing == 1
    assert [message.kind.value for message in sends(ann.tick(100))] == ["content"]
    ann.tick(100)
    assert ann.channel.counters().outgoing == 0
    assert "sync" in [message.kind.value for _ in range(9) for message in sends(ann.tick(100))]
    assert ann.receives(changed(content("m"), bloom_filter=b"invalid")) == [ReceiveResult.DELIVERED]
    assert ann.receives(content("m")) == [ReceiveResult.DUPLICATE]


@pins("channel isolation")
def test_channels_do_not_affect_each_other() -> None:
    log = CausalLog.in_memory()
    here, there = log.channel("here", "ann", SMALL), log.channel("there", "ann", SMALL)
    here.send(b"x", START_MS)
    assert not list(there.log())
    assert not there.outbox()
    assert there.receive(content("m"), START_MS).verdict is ReceiveResult.REFUSED  # it is for CHANNEL
    assert CHANNEL not in log.channel_ids()


@pins("unmet dep -> outgoing repair buffer")
def test_repairs_are_requested_with_the_next_message() -> None:
    bob = Member("bob", REPAIRS)
    bob.receives(content("z", *"abcde", at=9))
    bob.receives(content("a"))
    bob.channel.met(["b"])
    bob.now_ms += 4_000
    asked = [len(opened(bob.says("x")).repair_request) for _ in range(2)]
    assert asked == [3, 0]


@pins("incoming request only answered from delivered history")
def test_only_logged_messages_are_sent_as_answers() -> None:
    bob = Member("bob", REPAIRS)
    entries = tuple(HistoryEntry(name, None, "eve") for name in ("logged", "waits"))
    bob.receives(content("logged"), content("waits", "nothing"), changed(content("ask"), repair_request=entries))
    assert bob.channel.counters().answers == 1
    bob.receives(content("logged"))
    assert bob.channel.counters().answers == 0


@pins("empty participantId disables repair")
def test_repairs_are_not_requested_or_answered_if_disabled() -> None:
    """A sender's id that a request omits is known from the log."""
    off, on = Member("bob", replace(REPAIRS, repair=None)), Member("bob", REPAIRS)
    for member, answers in ((off, 0), (on, 1)):
        member.receives(content("m"), content("z", "a", at=1))
        member.receives(changed(content("ask"), repair_request=(HistoryEntry("m"), HistoryEntry("m", None, ""))))
        assert member.channel.counters().answers == answers
        member.now_ms += 4_000
        assert len(opened(member.says("x")).repair_request) == answers


@pins("persistence: outgoing, lamport")
def test_all_buffers_and_timers_survive_a_restart() -> None:
    ann = Member("ann", REPAIRS)
    ann.says("own")
    ann.receives(content("m", at=50), content("waits", "a", at=60))
    ann.receives(changed(content("ask"), repair_request=(HistoryEntry("m"),)))
    ann.effects()
    again = ann.reopened()
    assert again.channel.counters() == ann.channel.counters()
    assert again.channel.due_ms() == ann.channel.due_ms()
    assert list(again.channel.missing()) == list(ann.channel.missing())
    for member in (ann, again):
        member.now_ms += 4_000
    assert [e.reason for e in again.tick() if isinstance(e, Send)]
    again.receives(content("a", at=55))
    assert delivered(again.effects()) == ["a", "waits"]


@pins("L in the future by 1000")
def test_the_lamport_time_follows_a_message_ahead_of_the_clock() -> None:
    assert _lamports(1_000) == [START_MS + 1_001]


@pins("L in the past -> now")
def test_the_lamport_time_ignores_a_message_behind_the_clock() -> None:
    assert _lamports(-1_000) == [START_MS]


@pins("L == now")
def test_the_lamport_time_follows_a_message_of_the_current_time() -> None:
    assert _lamports(0) == [START_MS + 1]


@pins("strictly increasing over 5 calls")
def test_lamport_times_increase() -> None:
    assert _lamports(0, 5) == [START_MS + i for i in range(1, 6)]


@pins("2^53*1000")
def test_lamport_times_may_exceed_the_integers_of_javascript() -> None:
    """Numbers of that size are sent. Received ones are accepted only if the clock is near them."""
    ann = Member("ann")
    ann.now_ms = 2**53 * 1_000
    ann.says("1")
    assert opened(ann.says("2")).lamport_ms == 2**53 * 1_000 + 1


@pins("1000 -> now")
def test_the_lamport_time_ignores_a_very_old_message() -> None:
    assert _lamports(1_000 - START_MS) == [START_MS]


def _lamports(ahead_ms: int, number: int = 1) -> list[int | None]:
    ann = Member("ann")
    ann.receives(content("m", at=ahead_ms))
    return [opened(ann.says(str(i))).lamport_ms for i in range(number)]


@pins("outgoing: sorted by T_req")
def test_requests_are_sent_in_the_order_of_their_first_times() -> None:
    """A full buffer evicts nothing: both waiting messages and their dependencies are limited."""
    bob = Member("bob", replace(REPAIRS, repairs_per_message=1))
    bob.receives(content("z", *"abc", at=9))
    bob.now_ms += 500
    bob.receives(content("y", *"abc", at=8))
    due = [bob.channel.due_ms()]
    bob.now_ms = START_MS + 4_000
    asked = [opened(bob.says("x")).repair_request[0].message_id for _ in range(3)]
    assert sorted(asked) == ["a", "b", "c"]
    assert due[0] is not None
    assert due[0] < START_MS + 4_000  # counted from when it was first missing
    assert len(list(bob.channel.missing())) == 3  # until they arrive
    bob.receives(content(asked[0]))
    assert len(list(bob.channel.missing())) == 2


@pins("incoming: same")
def test_an_answer_is_sent_once() -> None:
    bob = Member("bob", Settings(filter=SMALL.filter, sync_interval_ms=None))
    bob.receives(content("m"), changed(content("ask"), repair_request=(HistoryEntry("m"),)))
    bob.effects()
    answers = [m.message_id for _ in range(150) for m in sends(bob.tick(1_000))]
    assert answers == ["m"]


def test_messages_of_equal_times_are_sorted_by_bytes() -> None:
    wanted = VECTORS["ordering_tests"]["spec_byte_order"]
    bob = Member("bob")
    bob.receives(*(content(message_id) for message_id in VECTORS["ordering_tests"]["same_lamport_ids"]))
    assert bob.ids() == wanted
    assert wanted != VECTORS["ordering_tests"]["js_log_order"]
