"""Errors that this package distinguishes. Programs catch ArchiveError."""

from __future__ import annotations

from cablestore.errors import ArchiveError


class IncompleteError(ArchiveError):
    """A folder of archives cannot be seeded: archives of its index are missing or damaged."""


class NoSuchContentError(ArchiveError):
    """The content store or the node does not have the dataset with this content id."""


class NoRoomError(ArchiveError):
    """A dataset exceeds the quota, the free disk space, or another limit."""


class UnreachableError(ArchiveError):
    """A node does not answer, or stopped during a transfer. Received data is kept. Try again, or use another node."""
