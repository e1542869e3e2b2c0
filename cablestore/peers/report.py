"""Counts of a sync or a reconciliation."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SyncReport:
    """Counts of a sync. Sizes are in bytes on the wire."""

    channels: int = 0
    posts: int = 0
    refused: int = 0
    early: int = 0
    """The rejected posts that are dated too far ahead."""
    missing: int = 0
    """Posts that the peer offered and did not deliver."""
    unstored: int = 0
    """Received posts that could not be stored."""
    received_size_bytes: int = 0
    sent_size_bytes: int = 0
    seconds: float = 0.0

    def add(self, other: SyncReport) -> None:
        """Add the counts of another part of the same sync."""
        self.channels += other.channels
        self.posts += other.posts
        self.refused += other.refused
        self.early += other.early
        self.missing += other.missing
        self.unstored += other.unstored


@dataclass(slots=True)
class ReconcileReport:
    """Counts of a reconciliation, in one or several conversations.

    Sizes are in bytes of frames before encryption.
    """

    talks: int = 0
    posts_sent: int = 0
    posts_received: int = 0
    """New posts, which are now stored."""
    refused: int = 0
    """Received posts that this store rejected, except for deleted posts and posts that moderation rejected."""
    missing: int = 0
    """Posts that the peer has and did not send."""
    unasked: int = 0
    """Received posts that were not requested."""
    unstored: int = 0
    """Received posts that could not be stored."""
    here_only: int = 0
    there_only: int = 0
    """Posts that only this store had, and posts that only the peer had."""
    rounds: int = 0
    """Payloads of the peer that were compared."""
    sent_comparing_size_bytes: int = 0
    received_comparing_size_bytes: int = 0
    sent_posts_size_bytes: int = 0
    received_posts_size_bytes: int = 0
    differing_ms: list[tuple[int, int]] = field(default_factory=list)
    """Half-open time ranges in milliseconds in which an audit found differences that no reconciliation finds."""
    is_by_design: bool = False
    """True if posts in these time ranges were forged to make their XOR equal."""
    seconds: float = 0.0

    @property
    def moved(self) -> int:
        """The number of posts transferred in both directions."""
        return self.posts_sent + self.posts_received
