"""Acts of moderation as the rows of a store hold them."""

from __future__ import annotations

from collections.abc import Iterator

from cablestore.index.reader import PRIVATE_PREFIX, Reader
from cablestore.protocol.acts import Consent, ModerationAct, act_of
from cablestore.views import acts


class StoredActs:
    """Acts that a reader finds. Use it while the reader's snapshot is open.

    The own user's acts include the private ones, which the reader must be able to unseal. They have no rows.
    """

    def __init__(self, reader: Reader, own_key: bytes) -> None:
        self._reader = reader
        self._own = own_key

    def by_author(self, author: bytes) -> Iterator[ModerationAct]:
        """Yield the acts of one author."""
        yield from acts.by_author(self._reader, author)
        if author == self._own:
            for _, sealed in self._reader.prefix(PRIVATE_PREFIX):
                act = act_of(self._reader.unseal(sealed))
                if act is not None:
                    yield act

    def consents_of(self, user: bytes) -> Iterator[Consent]:
        """Yield what a user ever said of taking roles."""
        return acts.consents_of(self._reader, user)

    def blocks_on(self, user: bytes) -> Iterator[ModerationAct]:
        """Yield each post/block and post/unblock by which anybody blocks or unblocks this user."""
        return acts.blocks_on(self._reader, user)
