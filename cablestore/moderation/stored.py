"""Moderation actions in the rows of a store."""

from __future__ import annotations

from collections.abc import Iterator

from cablestore.index.local import ACT, local_key
from cablestore.index.reader import PRIVATE_PREFIX, Reader
from cablestore.protocol.acts import Consent, ModerationAct, act_of
from cablestore.protocol.body import BLOCK, ROLE, UNBLOCK
from cablestore.views import acts


class StoredActs:
    """Actions in the state of a reader, including remembered actions of dropped users.

    Use this object only while the reader's snapshot is open.

    The local user's actions include private actions, which views do not list. The reader must be able to unseal them.
    """

    def __init__(self, reader: Reader, own_key: bytes) -> None:
        self._reader = reader
        self._own = own_key
        self._private: list[ModerationAct] | None = None

    def roles_of(self, author: bytes) -> Iterator[ModerationAct]:
        """Yield each post/role of one author."""
        yield from acts.roles_of(self._reader, author)
        yield from (act for act in self._private_of(author) if act.type == ROLE)
        yield from (act for act in self._remembered(author) if act.type == ROLE)

    def actions_of(self, author: bytes) -> Iterator[bytes]:
        """Yield the records of one author's other actions."""
        yield from acts.actions_of(self._reader, author)
        found = (*self._private_of(author), *self._remembered(author))
        yield from (acts.record_of(act) for act in found if act.type != ROLE)

    def _private_of(self, author: bytes) -> list[ModerationAct]:
        if author != self._own:
            return []
        if self._private is None:
            sealed = (value for _, value in self._reader.prefix(PRIVATE_PREFIX))
            self._private = [act for each in sealed if (act := act_of(self._reader.unseal(each))) is not None]
        return self._private

    def consents_of(self, user: bytes) -> Iterator[Consent]:
        """Yield all statements of a user about accepting roles."""
        return acts.all_consents_of(self._reader, user)

    def blocks_on(self, user: bytes) -> Iterator[ModerationAct]:
        """Yield each post/block and post/unblock that targets this user."""
        yield from acts.blocks_on(self._reader, user)
        blocks = (act for act in self._remembered() if act.type in (BLOCK, UNBLOCK))
        yield from (act for act in blocks if user in act.targets)

    def _remembered(self, author: bytes | None = None) -> Iterator[ModerationAct]:
        """Yield the actions of a dropped user, or of all users, that are remembered and not stored."""
        part = b"" if author is None else author.hex().encode() + b"!"
        remembered = (acts.act_in(record) for _, record in self._reader.prefix(local_key(ACT, part)))
        yield from (act for act in remembered if self._reader.post(act.hash) is None)
