"""Pending hashes and the peers that they are requested from, compared with a simple model."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cablestore import limits
from cablestore.peers.pending_hashes import PendingHashes

HASHES = [bytes((number,)) * 32 for number in range(12)]
PEERS = st.sampled_from("abcdef")
SOME = st.lists(st.sampled_from(HASHES), max_size=8)
MOST = 5


class Life(RuleBasedStateMachine):
    """Peers that connect, offer, deliver, fail and disconnect.

    The model has for each hash the peers with it. The hash is requested from the first of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wanted: PendingHashes[str] = PendingHashes(MOST)
        self.lines: dict[bytes, list[str]] = {}
        self.queues: dict[str, list[bytes]] = {}
        self.asked: dict[str, list[bytes]] = {}

    def load(self, peer: str) -> int:
        return len(self.queues.get(peer, [])) + len(self.asked.get(peer, []))

    def forget(self, digest: bytes) -> None:
        for table in (self.queues, self.asked):
            for known in table.values():
                if digest in known:
                    known.remove(digest)

    def move_on(self, digests: list[bytes]) -> tuple[set[str], list[bytes]]:
        """Request each hash from its next peer with capacity. Return the hashes without such a peer."""
        busier, lost = set(), []
        for digest in digests:
            self.forget(digest)
            line = self.lines[digest][1:]
            while line and self.load(line[0]) >= MOST:
                line.pop(0)
            if line:
                self.lines[digest] = line
                self.queues.setdefault(line[0], []).append(digest)
                busier.add(line[0])
            else:
                del self.lines[digest]
                lost.append(digest)
        return busier, lost

    @rule(peer=PEERS, hashes=SOME)
    def offer(self, peer: str, hashes: list[bytes]) -> None:
        refused = []
        for digest in hashes:
            line = self.lines.get(digest)
            if line is None:
                if self.load(peer) >= MOST:
                    refused.append(digest)
                else:
                    self.lines[digest] = [peer]
                    self.queues.setdefault(peer, []).append(digest)
            elif peer not in line and len(line) <= limits.OFFERS_REMEMBERED:
                line.append(peer)
        assert self.wanted.offer(peer, iter(hashes)) == refused

    @rule(peer=PEERS, count=st.integers(0, 4))
    def take(self, peer: str, count: int) -> None:
        taken = self.wanted.take(peer, count)
        queue = self.queues.get(peer, [])
        assert taken == queue[:count]
        del queue[:count]
        self.asked.setdefault(peer, []).extend(taken)

    @rule(digest=st.sampled_from(HASHES))
    def arrived(self, digest: bytes) -> None:
        self.wanted.arrived(digest)
        self.forget(digest)
        self.lines.pop(digest, None)

    @rule(peer=PEERS, hashes=SOME)
    def failed(self, peer: str, hashes: list[bytes]) -> None:
        """Only hashes that are requested from this peer, or wait for it, move on, regardless of the named hashes."""
        mine = [digest for digest in dict.fromkeys(hashes) if self.lines.get(digest, [""])[0] == peer]
        assert self.wanted.failed(peer, iter(hashes)) == self.move_on(mine)

    @precondition(lambda self: self.lines)
    @rule(data=st.data())
    def answered_in_part(self, data: st.DataObject) -> None:
        """Simulate the normal case: some of the requested posts arrive, the rest fails."""
        peers = [peer for peer, asked in self.asked.items() if asked]
        if peers:
            peer = data.draw(st.sampled_from(peers))
            for digest in data.draw(st.lists(st.sampled_from(self.asked[peer]), unique=True)):
                self.arrived(digest)
            self.failed(peer, list(self.asked[peer]))

    @rule(peer=PEERS)
    def lose(self, peer: str) -> None:
        for line in self.lines.values():
            if peer in line[1:]:
                line.remove(peer)
        found = self.wanted.lose(peer)
        assert found == self.move_on([*self.asked.get(peer, []), *self.queues.get(peer, [])])
        assert peer not in found[0]
        assert self.wanted.take(peer, 99) == []
        assert all(peer not in line for line in self.lines.values())

    @invariant()
    def is_as_the_model(self) -> None:
        assert len(self.wanted) == len(self.lines)
        assert [digest for digest in HASHES if digest in self.wanted] == [d for d in HASHES if d in self.lines]
        for peer in "abcdef":
            assert self.wanted.waiting(peer) == len(self.queues.get(peer, []))
            assert self.wanted.outstanding(peer) == len(self.asked.get(peer, []))

    @invariant()
    def bounds_hold(self) -> None:
        for peer in "abcdef":
            assert self.wanted.waiting(peer) + self.wanted.outstanding(peer) <= MOST
        assert all(len(others) <= limits.OFFERS_REMEMBERED for others in self.wanted._others.values())

    @invariant()
    def each_hash_is_asked_of_one_peer(self) -> None:
        asked = [digest for table in (self.asked, self.queues) for known in table.values() for digest in known]
        assert sorted(asked) == sorted(self.lines)

    def teardown(self) -> None:
        for peer in "abcdef":
            self.lose(peer)
        assert len(self.wanted) == 0
        for peer in "abcdef":
            self.is_as_the_model()
            assert self.wanted.failed(peer, HASHES) == (set(), [])
        for digest in HASHES:
            self.wanted.arrived(digest)
        kept = [self.wanted._holder, self.wanted._others, self.wanted._queued, self.wanted._requested]
        assert not any(kept), "no state of lost peers may be kept"


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=settings().max_examples, stateful_step_count=40)


@given(st.lists(PEERS, min_size=1, max_size=6, unique=True))
def test_a_hash_is_requested_from_its_offerers_in_order(peers: list[str]) -> None:
    wanted: PendingHashes[str] = PendingHashes()
    for peer in peers:
        assert wanted.offer(peer, HASHES[:1]) == []
    kept = peers[: 1 + limits.OFFERS_REMEMBERED]
    for peer, following in itertools.pairwise(kept):
        assert wanted.take(peer, 1) == HASHES[:1]
        assert wanted.failed(peer, HASHES[:1]) == ({following}, [])
        assert wanted.failed(peer, HASHES[:1]) == (set(), []), (
            "a failed hash must not be requested from the same peer again"
        )
    assert wanted.take(kept[-1], 1) == HASHES[:1]
    assert wanted.failed(kept[-1], HASHES[:1]) == (set(), HASHES[:1])
    assert wanted.offer(peers[0], HASHES[:1]) == []
    assert wanted.take(peers[0], 1) == HASHES[:1]


def test_peers_that_leave_one_after_the_other_do_not_fill_the_last() -> None:
    """Each peer offers the same as the last one and disconnects."""
    wanted: PendingHashes[str] = PendingHashes(3)
    for number, peer in enumerate("abcd"):
        own = HASHES[3 * number : 3 * number + 3]
        assert wanted.offer(peer, own) == []
        assert wanted.offer("last", own) == []
        busier, lost = wanted.lose(peer)
        assert (busier, lost) == (({"last"}, []) if number == 0 else (set(), own))
    assert wanted.waiting("last") == 3


def test_the_default_limit_on_pending_hashes_applies() -> None:
    wanted: PendingHashes[str] = PendingHashes()
    hashes = [number.to_bytes(32, "big") for number in range(limits.MAX_PENDING_HASHES_PER_PEER + 2)]
    assert wanted.offer("a", hashes) == hashes[-2:]
    assert wanted.take("a", 10) == hashes[:10]
    assert wanted.offer("a", hashes[-2:]) == hashes[-2:], "requested hashes count too"
