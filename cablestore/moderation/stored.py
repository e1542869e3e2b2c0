"""Acts of moderation as the rows of a store hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cablestore.index.reader import Reader
from cablestore.moderation.acts import Consent, ModerationAct


class StoredActs:
    """Acts that a reader finds in its rows, and the private acts of the own user, which have no rows.

    Use it while the reader's snapshot is open. `private` are acts of unsealed posts: rows say nothing of them.
    """

    def __init__(self, reader: Reader, private: Iterable[ModerationAct] = ()) -> None:
        raise NotImplementedError

    def by_author(self, author: bytes) -> Iterator[ModerationAct]:
        """Yield the acts of one author."""
        raise NotImplementedError

    def consents_of(self, user: bytes) -> Iterator[Consent]:
        """Yield what a user ever said of taking roles."""
        raise NotImplementedError

    def blocks_on(self, user: bytes) -> Iterator[ModerationAct]:
        """Yield each post/block and post/unblock by which anybody blocks or unblocks this user."""
        raise NotImplementedError
