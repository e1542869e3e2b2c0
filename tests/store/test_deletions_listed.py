"""A channel's history lists all deletions of a post (wire.md 6.3.2.3), up to MAX_DELETIONS_LISTED of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from people import ANN, BOB, START_MS, raws

from cablestore import CableStore, Post, limits
from cablestore.index.packing import pack
from cablestore.index.tombstone import Skeleton, Tombstone
from cablestore.peers.live_changes import Subject, changes_of
from cablestore.protocol.body import TEXT
from cablestore.store import answers


def listed(store: CableStore, channel: str = "default") -> list[bytes]:
    with store.snapshot() as state:
        return list(answers.channel_time_range(state.reader, channel, 0, 0))


def repeated(count: int) -> tuple[Post, list[Post]]:
    """Return a text and `count` deletions of it, some with equal timestamps."""
    text = ANN.text("default", "x", at=START_MS)
    return text, [ANN.delete(text, ANN.text("else", f"{n}"), at=START_MS + 1 + n // 2) for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, limits.MAX_DELETIONS_LISTED, 3 * limits.MAX_DELETIONS_LISTED])
def test_each_deletion_is_listed_in_any_order(tmp_path: Path, count: int) -> None:
    """In every order and batch size, and after rebuild and import, the first deletions by (time, hash) are listed."""
    rng = random.Random(f"deletions are listed {count}")
    text, deletions = repeated(count)
    others = [BOB.delete(text, at=START_MS), BOB.text("default", "y", at=START_MS - 1)]
    posts = [text, *deletions, *others]
    due = sorted(deletions, key=lambda post: (post.timestamp_ms, post.hash))[: limits.MAX_DELETIONS_LISTED]
    dumps = set()
    for number in range(6):
        rng.shuffle(posts)
        with CableStore.open(tmp_path / f"{number}") as store:
            store.ingest(raws(*posts), batch_posts=rng.choice([1, 3, 100]))
            assert listed(store) == [*(post.hash for post in reversed(due)), others[1].hash]
            assert store.check().is_clean
            dumps.add(store.dump_digest())
            store.rebuild()
            dumps.add(store.dump_digest())
            store.export(tmp_path / f"export {number}")
        with CableStore.open(tmp_path / f"again {number}") as store:
            store.import_exports([tmp_path / f"export {number}"])
            assert store.check().is_clean
            dumps.add(store.dump_digest())
    assert len(dumps) == 1


def test_a_later_deletion_is_reported_live(tmp_path: Path) -> None:
    text, deletions = repeated(3)
    with CableStore.open(tmp_path) as store:
        store.ingest(raws(text, deletions[0]))
        for deletion in deletions[1:]:
            last = store.last_sequence
            store.ingest(raws(deletion))
            with store.snapshot() as state:
                changes, _ = changes_of(state.reader, last, frozenset())
            assert [item.hash for item in changes if item.subject is Subject.CHAT] == [deletion.hash]
    with CableStore.open(tmp_path / "target last") as store:
        store.ingest(raws(*deletions))
        last = store.last_sequence
        store.ingest(raws(text))
        with store.snapshot() as state:
            changes, _ = changes_of(state.reader, last, frozenset())
        assert {item.hash for item in changes} == {deletion.hash for deletion in deletions}


moments = st.tuples(st.integers(0, 3), st.integers(0, 20).map(lambda number: bytes([number]) * 32))


@given(st.lists(moments, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_tombstones_merge_in_any_order(deletions: list[tuple[int, bytes]], rng: random.Random) -> None:
    """A merge keeps the earliest deletions, and the skeleton with the smallest encoding."""
    due = tuple(sorted(set(deletions))[: limits.MAX_DELETIONS_LISTED])
    claimed = [
        rng.choice([None, Skeleton(TEXT, at_ms, "c", ())]) for at_ms in rng.choices(range(300), k=len(deletions))
    ]
    stones = [
        Tombstone(bytes(32), bytes(32), at_ms, digest, skeleton)
        for (at_ms, digest), skeleton in zip(deletions, claimed, strict=True)
    ]
    stones += stones[:5]
    while len(stones) > 1:
        one, other = (stones.pop(rng.randrange(len(stones))) for _ in range(2))
        assert one.merge(other) == other.merge(one)
        stones.append(one.merge(other).merge(one))
    [merged] = stones
    assert merged.deletions == due
    skeletons = [skeleton for skeleton in claimed if skeleton is not None]
    assert merged.skeleton == min(skeletons, key=lambda skeleton: pack(skeleton.fields()), default=None)
    assert Tombstone.decode(merged.target, merged.author, merged.encode()) == merged
    assert Tombstone.read([merged.target, merged.author, merged.for_export().encode()]) == merged.for_export()
    if merged.later:
        with pytest.raises(ValueError, match="invalid tombstone"):
            Tombstone.read([merged.target, merged.author, merged.encode()])
