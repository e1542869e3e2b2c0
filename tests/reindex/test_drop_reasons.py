"""Posts that a reindexing drops, with the reason in its report."""

from __future__ import annotations

from people import ANN, BOB, START_MS

from cablestore.reindex.job import Drops


def test_each_dropped_post_has_a_reason_and_deletions_are_kept() -> None:
    drops = Drops(frozenset([BOB.key]), frozenset(["spam"]), START_MS)
    kept, old = ANN.text("default", "kept", at=START_MS), ANN.text("default", "old", at=START_MS - 1)
    spam, named = ANN.text("spam", "buy", at=START_MS), ANN.named("ann", at=START_MS)
    found = {post: drops.reason(post) for post in (kept, named, old, spam, BOB.text("default", "x"))}
    assert list(found.values())[:2] == [None, None]
    assert found[old] == "dated before the time to keep"
    assert found[spam] == "in a channel to drop"
    assert list(found.values())[4] == "by an author to drop"
    assert drops.reason(BOB.delete(spam, at=START_MS - 1)) is None
    assert not Drops()
    assert all((Drops(authors=frozenset([BOB.key])), Drops(channels=frozenset(["spam"])), Drops(before_ms=1)))
