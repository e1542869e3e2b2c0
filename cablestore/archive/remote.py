"""Interface for fetching archives: first the index, then the requested archives, one by one.

A torrent identifies an archive by its position in `data` (a `Span`). A content store identifies it by a content id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

PlaceT = TypeVar("PlaceT")
"""Identifier of an archive in an engine's index: `Span` for torrents, otherwise a content id as a string."""

ByteProgress = Callable[[int, int], None]
"""Function that is called with the numbers of received bytes and of all requested bytes, both including padding."""


class Span(NamedTuple):
    """Position of an archive in `data`, including its padding."""

    offset_bytes: int
    size_bytes: int


class Remote(Protocol[PlaceT]):
    """Archives of one community on other nodes.

    Calls block and must come from one thread at a time, except `cancel`, which any thread may call.
    """

    def index(self) -> bytes:
        """Fetch only the index and return its published bytes. Raises ArchiveError if this fails."""
        ...

    def fetch(self, places: Sequence[PlaceT], progress: ByteProgress | None = None) -> Iterator[tuple[PlaceT, bytes]]:
        """Yield the bytes of these archives, each as soon as it and all earlier archives are complete.

        Archives are fetched in the given order, so pass the newest first. Received data is not fetched again, even
        after the process was killed. Fetching ends when the caller stops iterating. The caller must verify the bytes.
        Raises ArchiveError: at once for invalid positions, later if the peers stop sending.
        """
        ...

    def cancel(self) -> None:
        """Make running and later calls raise ArchiveError. Received data is kept."""
        ...

    def close(self) -> None:
        """Close connections and files."""
        ...
