"""The memory of rejected posts."""

from __future__ import annotations

from cablestore.peers.rejected_posts import RejectedPosts, RejectionReason


def test_the_oldest_are_forgotten_first_and_a_reason_can_be_forgotten() -> None:
    rejected = RejectedPosts(max_posts=3)
    assert not rejected.forget()
    for number in range(5):
        reason = RejectionReason.QUOTA if number % 2 else RejectionReason.AUTHOR
        rejected.add(bytes([number]), reason)
    assert len(rejected) == 3
    assert [rejected.reason(bytes([number])) for number in range(5)] == [None, None, "author", "quota", "author"]
    assert rejected.forget(RejectionReason.QUOTA)
    assert (rejected.reason(b"\x03"), rejected.reason(b"\x04")) == (None, RejectionReason.AUTHOR)
    assert rejected.forget()
    assert not rejected.forget()
    assert len(rejected) == 0
