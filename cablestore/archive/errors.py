"""Errors that this package tells apart. Programs catch ArchiveError."""

from __future__ import annotations

from cablestore.errors import ArchiveError


class IncompleteError(ArchiveError):
    """A folder of archives to be shared is incomplete: its files are not the torrent of its index."""


class NoSuchContentError(ArchiveError):
    """The content store, or the requested node, does not have the content of this id."""


class NoRoomError(ArchiveError):
    """A dataset does not fit: it exceeds the quota, the disk, or the size of one dataset."""


class UnreachableError(ArchiveError):
    """A node does not answer, or stopped in the middle. Received data is kept: try again, or try another node."""
