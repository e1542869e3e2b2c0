"""Posts that the policy or the quota rejected: they are not fetched or judged again."""

from __future__ import annotations

from collections import OrderedDict
from enum import StrEnum

from cablestore import limits


class RejectionReason(StrEnum):
    """Why a post is not stored."""

    AUTHOR = "author"
    CHANNEL = "channel"
    SIZE = "size"
    AUTHOR_RATE = "author_rate"
    """The author sends more posts than the policy allows. The post is requested again later."""
    QUOTA = "quota"
    COMMAND = "command"
    """The policy command rejected the post."""
    COMMAND_DROP = "command_drop"
    """The policy command dropped the post. Dropped posts are not logged."""
    COMMAND_FAILURE = "command_failure"
    """The policy command did not answer."""


class RejectedPosts:
    """Hashes of the latest rejected posts with the reasons, at most `max_posts`. The oldest are forgotten first."""

    def __init__(self, max_posts: int = limits.MAX_REJECTIONS_REMEMBERED) -> None:
        self._max_posts = max_posts
        self._reasons: OrderedDict[bytes, RejectionReason] = OrderedDict()
        self._has_forgotten = False
        self.epoch = 0
        """Grows with each call of `forget`. A judgement of an earlier epoch must not be added."""

    def __len__(self) -> int:
        """Return the number of remembered posts."""
        return len(self._reasons)

    def add(self, digest: bytes, reason: RejectionReason) -> None:
        """Remember a post."""
        self._reasons[digest] = reason
        if len(self._reasons) > self._max_posts:
            self._reasons.popitem(last=False)
            self._has_forgotten = True

    def reason(self, digest: bytes) -> RejectionReason | None:
        """Return why a post was rejected, None if it was not, or if it is forgotten."""
        return self._reasons.get(digest)

    def forget(self, reason: RejectionReason | None = None) -> bool:
        """Forget the posts with a reason, or all posts.

        Return True if posts were forgotten now, or earlier at the limit `max_posts`. These posts may be acceptable now.
        """
        gone = [digest for digest, found in self._reasons.items() if reason in (None, found)]
        for digest in gone:
            del self._reasons[digest]
        self.epoch += 1
        had_any, self._has_forgotten = bool(gone) or self._has_forgotten, False
        return had_any
