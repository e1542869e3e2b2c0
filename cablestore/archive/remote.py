"""What every way of fetching archives offers a member: the index, then the archives it wants, one by one.

A torrent names an archive by where it lies in `data`, a `Span`; a content store names it by a content id. Whoever imports
knows neither: it takes a `Remote` and gives back to it what the index said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

PlaceT = TypeVar("PlaceT")
"""What an engine's index names an archive by: `Span` for torrents."""

ByteProgress = Callable[[int, int], None]
"""Told how many bytes of what is wanted are here, and how many are wanted, both with their padding."""


class Span(NamedTuple):
    """Where an archive lies in `data`: its padding belongs to it."""

    offset_bytes: int
    size_bytes: int


class Remote(Protocol[PlaceT]):
    """The archives of one community, elsewhere. Its calls block; they come from one thread at a time, `cancel` from any."""

    def index(self) -> bytes:
        """Fetch the index alone and return it as it was published. Raises ArchiveError."""
        ...

    def fetch(self, places: Sequence[PlaceT], progress: ByteProgress | None = None) -> Iterator[tuple[PlaceT, bytes]]:
        """Yield the bytes of these archives, each as soon as it and those named before it are whole.

        The first named is fetched first: name the newest first. What is here already is not fetched again, also after a
        kill. Whoever stops iterating stops fetching. Bytes are what was published; whether to believe it is for the caller.
        Raises ArchiveError: at once for places that cannot be, later where the others stop giving.
        """
        ...

    def cancel(self) -> None:
        """End what runs, and what is called later, with ArchiveError. What was fetched stays for the next time."""
        ...

    def close(self) -> None:
        """Let go of the network and the files."""
        ...
