"""Outcomes of adding a post to a store: one of a fixed set of verdicts, never an exception."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from cablestore.reprs import hex_repr


class Verdict(Enum):
    """Verdict on a post that was added or discarded."""

    __hash__ = object.__hash__  # Enum's own is a Python function, which each post would call

    ACCEPTED = "accepted"
    """Stored and indexed."""
    DUPLICATE = "duplicate"
    """Already stored."""
    DELETED = "deleted"
    """Deleted by its author; its bytes are not stored."""
    MALFORMED = "malformed"
    """Not a post of this store's dialect."""
    UNKNOWN_TYPE = "unknown type"
    """A post of a type that the dialect does not define (wire.md 5.1.4)."""
    BAD_SIGNATURE = "bad signature"
    """Not signed by its author."""
    TOO_FAR_AHEAD = "too far in the future"
    """Dated a week or more ahead of now (wire.md 5.1.4)."""
    LOCAL_ONLY = "local-only"
    """A private post of another user, which should never leave that user's store (moderation.md 4.5)."""
    DROPPED = "dropped"
    """Not stored, because moderation drops it: the post, its author or its channel (moderation.md 4.4.6)."""
    BLOCKED = "blocked"
    """Not stored, because the local user blocks its author, or the author blocks the local user (moderation.md 4.6)."""
    REJECTED = "rejected"
    """Not stored, because the policy or the quota of the node rejects it."""
    POSTPONED = "postponed"
    """Not stored now, because its author sends too many posts, or because the policy command failed."""
    DISCARDED = "discarded"
    """Removed without a tombstone."""
    KEPT = "kept"
    """A post/delete. It is never discarded, because it proves its tombstones (wire.md 5.1.5)."""
    UNKNOWN = "unknown"
    """Not in the store, so it cannot be discarded."""


FALSE_CLAIMS: Final = frozenset({Verdict.MALFORMED, Verdict.BAD_SIGNATURE})
"""Verdicts on posts that an honest peer never forwards, because it verifies them first."""


class Outcome(NamedTuple):
    """Outcome for one post. `reason` contains details about the verdict."""

    hash: bytes
    verdict: Verdict
    reason: str = ""

    def __repr__(self) -> str:
        return hex_repr(self)


def too_far_ahead(timestamp_ms: int, newest_ms: int) -> str:
    """Return the reason of TOO_FAR_AHEAD for a post dated `timestamp_ms`. `newest_ms` is the first rejected time."""
    return f"it is dated {timestamp_ms} ms. Posts must be dated before {newest_ms} ms since 1970"
