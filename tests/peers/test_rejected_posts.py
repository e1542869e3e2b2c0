"""The memory of rejected posts."""

from __future__ import annotations

from cablestore import limits
from cablestore.peers.rejected_posts import RejectedPosts, RejectionReason


def test_the_number_of_remembered_posts_is_limited() -> None:
    """MAX_REJECTIONS_REMEMBERED: the oldest are forgotten, and a change of the policy still matters for them."""
    rejected = RejectedPosts()
    for number in range(limits.MAX_REJECTIONS_REMEMBERED + 10):
        rejected.add(number.to_bytes(4), RejectionReason.AUTHOR)
    assert len(rejected) == limits.MAX_REJECTIONS_REMEMBERED
    assert rejected.reason((9).to_bytes(4)) is None
    assert rejected.reason((10).to_bytes(4)) is RejectionReason.AUTHOR
    assert rejected.forget(RejectionReason.QUOTA)


def test_the_oldest_posts_are_removed_first_and_a_reason_can_be_removed() -> None:
    rejected = RejectedPosts(max_posts=3)
    epochs = [rejected.epoch]
    assert not rejected.forget()
    epochs.append(rejected.epoch)
    for number in range(5):
        reason = RejectionReason.QUOTA if number % 2 else RejectionReason.AUTHOR
        rejected.add(bytes([number]), reason)
    assert len(rejected) == 3
    assert [rejected.reason(bytes([number])) for number in range(5)] == [None, None, "author", "quota", "author"]
    assert rejected.forget(RejectionReason.QUOTA)
    assert (rejected.reason(b"\x03"), rejected.reason(b"\x04")) == (None, RejectionReason.AUTHOR)
    assert rejected.forget()
    epochs.append(rejected.epoch)
    assert not rejected.forget()
    assert len(rejected) == 0
    assert epochs == sorted(set(epochs))  # a judgement from before any of these changes is outdated
