"""Common parts of the tests of reconciliation: ids, vectors, and a conversation between two sides."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from folders import KNOWN_ANSWERS
from hypothesis import strategies as st

from cablestore.reconcile.codec import _PayloadReader
from cablestore.reconcile.dialects import NWAKU_036, NWAKU_037, SPEC, SyncDialect
from cablestore.reconcile.ids import EVERYTHING, Bound, Range, SyncID, bound_between
from cablestore.reconcile.payload import Content, Header, ItemSet, PayloadPart, Shards, Topics
from cablestore.reconcile.session import DEFAULT_LIMITS, DEFAULT_SPLITTING, ReconcileSession, SessionLimits, SessionStep
from cablestore.reconcile.sets import MemorySet
from cablestore.reconcile.splitting import Splitting

VECTORS: dict[str, Any] = json.loads((KNOWN_ANSWERS / "waku_sync.json").read_text())
ALL = (SPEC, NWAKU_036, NWAKU_037)
HEADERS: dict[str, Header] = {
    "spec": Shards(1, (0, 1)),
    "nwaku-0.36": Shards(1, (0, 1)),
    "nwaku-0.37": Topics(("/waku/2/rs/1/0",)),
}
NOW_NS = 1_700_000_000_000_000_000
HOUR_NS = 3_600_000_000_000


def read_item_set(data: bytes, dialect: SyncDialect) -> tuple[ItemSet, int]:
    """Read the item set at the beginning of `data`. Return it and the offset after it."""
    reader = _PayloadReader(data, dialect)
    return reader.item_set(), reader._at


def known_id(timestamp_ns: int, hash_hex: str) -> SyncID:
    return SyncID(timestamp_ns, bytes.fromhex(hash_hex))


def known_parts(described: list[dict[str, Any]], dialect: SyncDialect) -> list[PayloadPart]:
    """Return ranges in the vectors' form, with bounds that are truncated like those of each writer.

    The specification's compares an id with the last one, nwaku's with the first one of all.
    """
    parts: list[PayloadPart] = []
    for part in described:
        first, before, at = known_id(*described[0]["a"]), known_id(*part["a"]), known_id(*part["b"])
        if not dialect.cuts_hashes:
            before = SyncID(before.timestamp_ns, first.hash)
        content: Content = None
        if part["type"] == 1:
            content = bytes.fromhex(part["fp"])
        elif part["type"] == 2:
            content = ItemSet([known_id(*each) for each in part["items"]], part["reconciled"])
        lower = parts[-1].range.upper if parts else Bound(before.timestamp_ns)
        parts.append(PayloadPart(Range(lower, bound_between(before, at)), content))
    return parts


def an_id(name: str, timestamp_ns: int = NOW_NS) -> SyncID:
    return SyncID(timestamp_ns, hashlib.sha256(name.encode()).digest())


def spread(number: int, *, seed: int = 1, over_ns: int = HOUR_NS, from_ns: int = NOW_NS) -> list[SyncID]:
    """Return N ids at random times."""
    rng = random.Random(seed)
    return [SyncID(from_ns + rng.randrange(over_ns), rng.randbytes(32)) for _ in range(number)]


class Side(Protocol):
    """Side of a conversation: it receives a payload and answers."""

    def receive(self, data: bytes, *, at_s: float) -> SessionStep: ...


@dataclass
class Outcome:
    """The found ids of each side, and the payloads."""

    have: list[SyncID] = field(default_factory=list)
    need: list[SyncID] = field(default_factory=list)
    peer_have: list[SyncID] = field(default_factory=list)
    peer_need: list[SyncID] = field(default_factory=list)
    said: list[bytes] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.said))

    def is_exactly(self, here: Iterable[SyncID], there: Iterable[SyncID]) -> bool:
        """Return True if both sides found exactly the ids that only one of them has, each once."""
        ours, theirs = set(here) - set(there), set(there) - set(here)
        found = [sorted(ids) for ids in (self.have, self.peer_need, self.need, self.peer_have)]
        return found == [sorted(ours)] * 2 + [sorted(theirs)] * 2


def converse(initiator: Side, responder: Side, first: bytes, *, most: int | None = None) -> Outcome:
    """Run the conversation of two sides until both are done, or to the payload number `most`."""
    outcome, message, sides = Outcome(), first, [responder, initiator]
    while True:
        outcome.said.append(message)
        if most is not None and len(outcome.said) > most:
            return outcome
        step = sides[0].receive(message, at_s=0.0)
        if sides[0] is initiator:
            outcome.have += step.have
            outcome.need += step.need
        else:
            outcome.peer_have += step.have
            outcome.peer_need += step.need
        if step.reply is None:
            return outcome
        message = step.reply
        sides.reverse()


def session(
    ids: Iterable[SyncID],
    dialect: SyncDialect = SPEC,
    *,
    header: Header | None = None,
    window: Range = EVERYTHING,
    splitting: Splitting = DEFAULT_SPLITTING,
    limits: SessionLimits = DEFAULT_LIMITS,
) -> ReconcileSession:
    """Return a session over these ids."""
    snapshot = MemorySet(ids).snapshot()
    header = HEADERS[dialect.name] if header is None else header
    return ReconcileSession(lambda _: snapshot, dialect, header, window=window, splitting=splitting, limits=limits)


def reconciled(
    here: Iterable[SyncID],
    there: Iterable[SyncID],
    dialect: SyncDialect = SPEC,
    *,
    within: Range = EVERYTHING,
    splitting: Splitting = DEFAULT_SPLITTING,
    most: int | None = None,
) -> Outcome:
    """Return the results of two sessions over these ids."""
    ours, theirs = session(here, dialect, splitting=splitting), session(there, dialect, splitting=splitting)
    outcome = converse(ours, theirs, ours.initiate(within, at_s=0.0), most=most)
    assert most is not None or (ours.is_done and theirs.is_done)
    return outcome


class Pair(tuple[list[SyncID], list[SyncID]]):
    """The ids of two sides. Large ones are not printed completely."""

    __slots__ = ()

    def __repr__(self) -> str:
        if len(self[0]) + len(self[1]) < 50:
            return f"Pair({tuple(self)!r})"
        return f"<{len(set(self[0]) & set(self[1]))} of both, {len(self[0])} here, {len(self[1])} there>"


@st.composite
def sets(draw: st.DrawFn, most: int = 5_000) -> Pair:
    """Draw two sets of up to `most` ids: bursts, shared times, similar hashes; empty, disjoint, equal, nested."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    number = draw(st.one_of(st.integers(0, 40), st.integers(0, most)))
    times = draw(st.sampled_from(["spread", "bursts", "few", "one", "near", "ends"]))
    of_hash = draw(st.sampled_from([32, 32, 16, 10]))  # fewer would have XORs that are accidentally equal
    ids = sorted({_drawn(rng, times, of_hash) for _ in range(number)})
    share = draw(st.sampled_from([0.0, 0.001, 0.02, 0.5, 1.0]))
    kind = draw(st.sampled_from(["mixed", "mixed", "mixed", "superset", "subset", "disjoint", "equal", "empty"]))
    if kind == "disjoint":
        cut = {sync_id for sync_id in ids if rng.random() < 0.5}
        return Pair((sorted(cut), sorted(set(ids) - cut)))
    if kind == "empty":
        return Pair((ids, []))
    here = [i for i in ids if kind in ("equal", "superset") or rng.random() >= share / 2]
    there = [i for i in ids if kind in ("equal", "subset") or rng.random() >= share / 2]
    return Pair((here, there))


def _drawn(rng: random.Random, times: str, of_hash: int) -> SyncID:
    """Return an id. The last N bytes of its hash are random, the others are the same for all."""
    timestamp_ns = {
        "spread": lambda: NOW_NS + rng.randrange(HOUR_NS),
        "bursts": lambda: NOW_NS + rng.randrange(5) * 10**12 + int(rng.expovariate(1e-4)),
        "few": lambda: NOW_NS + rng.randrange(3),
        "one": lambda: NOW_NS,
        "near": lambda: NOW_NS + int(rng.expovariate(0.1)),
        "ends": lambda: rng.choice([0, 1, 2**63 - 2, 2**63 - 3]),
    }[times]()
    return SyncID(timestamp_ns, bytes(range(32 - of_hash)) + rng.randbytes(of_hash))
