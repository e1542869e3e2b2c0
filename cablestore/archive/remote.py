"""The interface of all ways to fetch archives: first the index, then the wanted archives, one by one.

A torrent names an archive by its place in `data`, a `Span`; a content store names it by a content id. The importer
takes any `Remote` and passes to it the places that the index has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

PlaceT = TypeVar("PlaceT")
"""The name of an archive in an engine's index: `Span` for torrents, a content id as text otherwise."""

ByteProgress = Callable[[int, int], None]
"""Called with the wanted bytes that are here and all wanted bytes, both with padding."""


class Span(NamedTuple):
    """The place of an archive in `data`, with its padding."""

    offset_bytes: int
    size_bytes: int


class Remote(Protocol[PlaceT]):
    """The archives of one community on other nodes.

    Calls block and come from one thread at a time; `cancel` from any.
    """

    def index(self) -> bytes:
        """Fetch the index alone and return its published bytes. Raises ArchiveError."""
        ...

    def fetch(self, places: Sequence[PlaceT], progress: ByteProgress | None = None) -> Iterator[tuple[PlaceT, bytes]]:
        """Yield the bytes of these archives, each as soon as it and those before it are whole.

        They are fetched in the given order: give the newest first. What is here already is not fetched again, even
        after a kill. Fetching ends when the caller stops iterating. The caller must verify the bytes. Raises
        ArchiveError: at once for impossible places, later if the peers stop sending.
        """
        ...

    def cancel(self) -> None:
        """End running and later calls with ArchiveError. What was fetched stays for the next time."""
        ...

    def close(self) -> None:
        """Close connections and files."""
        ...
