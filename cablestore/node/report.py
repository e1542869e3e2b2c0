"""What a sync brought, counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SyncReport:
    """What a sync brought. Sizes are in bytes as they went over the wire."""

    channels: int = 0
    posts: int = 0
    refused: int = 0
    missing: int = 0
    """Posts that the peer offered and did not deliver."""
    unstored: int = 0
    """Posts that came and that the disk refused."""
    received_size_bytes: int = 0
    sent_size_bytes: int = 0
    seconds: float = 0.0
