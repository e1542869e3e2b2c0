"""Interface of all ways to fetch archives: first the index, then the wanted archives, one by one.

A torrent identifies an archive by its position in `data`, a `Span`; a content store by a content id. The importer
accepts any `Remote` and passes the positions from the index to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

PlaceT = TypeVar("PlaceT")
"""Identifier of an archive in an engine's index: `Span` for torrents, otherwise a content id as a string."""

ByteProgress = Callable[[int, int], None]
"""Called with the number of received bytes and of all wanted bytes, both including padding."""


class Span(NamedTuple):
    """Position of an archive in `data`, including its padding."""

    offset_bytes: int
    size_bytes: int


class Remote(Protocol[PlaceT]):
    """Archives of one community on other nodes.

    Calls block and must come from one thread at a time, except `cancel`, which any thread may call.
    """

    def index(self) -> bytes:
        """Fetch only the index and return its published bytes. Raises ArchiveError."""
        ...

    def fetch(self, places: Sequence[PlaceT], progress: ByteProgress | None = None) -> Iterator[tuple[PlaceT, bytes]]:
        """Yield the bytes of these archives, each as soon as it and those before it are complete.

        They are fetched in the given order, so pass the newest first. Received data is not fetched again, even after a
        kill. Fetching ends when the caller stops iterating. The caller must verify the bytes. Raises ArchiveError: at
        once for invalid positions, later if the peers stop sending.
        """
        ...

    def cancel(self) -> None:
        """End running and later calls with ArchiveError. Fetched data stays for the next time."""
        ...

    def close(self) -> None:
        """Close connections and files."""
        ...
