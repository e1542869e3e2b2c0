"""Which messages a control node leaves out of its archives: those that it and its authorities hid or dropped in public.

Private acts do not count. Members would see from an archive what its author keeps to itself (moderation.md 4.5).
"""

from __future__ import annotations

from typing import Final

from cablestore.export.writer import HASH_AT, POST_AT, TYPE_AT
from cablestore.index.reader import Reader
from cablestore.moderation import Decisions
from cablestore.protocol.body import TEXT
from cablestore.protocol.post import decode_post
from cablestore.store.judgement import HeldHere, seed_of

_NOBODY: Final = b""
"""Key of nobody: no act by it is found, so none is unsealed."""


class HiddenMessages:
    """The messages of one state of a store that its archives leave out. Posts of other types are never hidden."""

    def __init__(self, reader: Reader, own_key: bytes) -> None:
        self._reader = reader
        self._decisions = Decisions.read(HeldHere(reader, _NOBODY), own_key, seed_of(reader))

    def without(self, records: list[bytes]) -> list[bytes]:
        """Return the records (`export.writer`) without those of hidden messages."""
        return [record for record in records if record[TYPE_AT] != TEXT or not self._is_hidden(record)]

    def _is_hidden(self, record: bytes) -> bool:
        post = decode_post(record[POST_AT:], self._reader.dialect, record[HASH_AT:TYPE_AT])
        channel, decisions = post.channel or "", self._decisions
        return decisions.text_hidden_by(post.hash, post.author, channel, post.timestamp_ms) is not None
