"""Attending: what a user does with the texts of others: read them up to a mark, and look for those that name it."""

from __future__ import annotations

from contextlib import suppress

from cablestore.errors import MissingViewError
from cablestore.index.batches import Progress, no_progress
from cablestore.index.engine import Engine
from cablestore.protocol.keys import escape
from cablestore.store.attention import Attention
from cablestore.store.judge import Judge
from cablestore.store.key_file import StoreIdentity
from cablestore.store.queries import Page, Queries, place_of


class Attending(Queries):
    """Read marks of an open store, and mentions of its user."""

    _engine: Engine
    _identity: StoreIdentity
    _judge: Judge
    _attention: Attention

    def mark_read(self, channel: str, upto: str | None = None, *, sync: bool = False) -> None:
        """Mark a channel as read, up to a message and with it, or up to its latest one.

        `upto` is the `cursor` of a message. An earlier one than at the last time marks what follows as unread again.
        The mark is the user's own: it never leaves this store. Raises CursorError for a text that is no cursor.
        """
        place = None if upto is None else place_of(upto)
        with self._engine.transaction() as transaction:
            plan = self._judge.plan(transaction)
            self._attention.mark(plan, escape(self._engine.dialect.channel_id(channel)), place)
            self._judge.commit(transaction, plan, sync=sync)

    def mentions(self, limit: int = 50, *, cursor: str | None = None, channel: str | None = None) -> Page:
        """Return up to `limit` messages of others that name the user, newest first: of all channels, or of one.

        See `Queries.mentions`. All texts are searched at the first call, see `find_mentions`.
        """
        with suppress(MissingViewError):  # a store may be open to be read only
            self.find_mentions()
        return super().mentions(limit, cursor=cursor, channel=channel)

    def find_mentions(self, progress: Progress = no_progress) -> None:
        """Search the stored texts that were not searched for mentions yet. `progress` counts texts.

        Mentions are looked for in a store from the first call of this, `mentions` or `mark_read` on. The first search
        reads all texts, in many writes; it can be interrupted and goes on where it was. From then on each text is
        searched when it is stored.
        """
        while True:
            with self._engine.transaction() as transaction:
                if self._attention.has_searched():
                    return
                plan = self._judge.plan(transaction)
                done = self._attention.search(plan)
                self._judge.commit(transaction, plan, sync=False)
            progress(done)

    def _own_key(self) -> bytes | None:
        return self._identity.known_key
