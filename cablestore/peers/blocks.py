"""The network blocks that a node keeps to, as of the state of the store that was read last (moderation.md 4.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cablestore.index.reader import Reader
from cablestore.peers.audience import EVERYONE, Audience, BlockBook
from cablestore.peers.news import News, Subject
from cablestore.peers.threads import ReadThread
from cablestore.protocol.body import Block, Unblock
from cablestore.store.store import CableStore
from cablestore.views import moderation


class NetworkBlocks:
    """Who blocks whom. On the loop; any thread may ask for an audience."""

    def __init__(self, store: CableStore, reads: ReadThread, changed: Callable[[], None], *, is_used: bool) -> None:
        """`changed` is called after each reading. Without handshakes nobody is known, and `is_used` is false."""
        self._store = store
        self._reads = reads
        self._changed = changed
        self._is_used = is_used
        self._book = BlockBook()
        self._is_reading = False
        self._is_stale = False

    def audience(self, static: bytes | None) -> Audience:
        """Return what the peer with this static key may get, None for a peer that is not known."""
        return EVERYONE if static is None else self._book.audience(static)

    async def read(self) -> None:
        """Read the blocks again. A call during a reading makes that one go on with one more."""
        self._is_stale = self._is_used
        if self._is_reading:
            return
        self._is_reading = True
        try:
            while self._is_stale:
                self._is_stale = False
                self._book = await self._reads.call(self._read)
                self._changed()
        finally:
            self._is_reading = False

    def _read(self, reader: Reader) -> BlockBook:
        return read_book(reader, self._store.identity.public_key)


def are_concerned(news: Iterable[News]) -> bool:
    """Tell whether any of these news may change who blocks whom."""
    return any(item.subject in (Subject.MODERATION, Subject.MODERATION_AGAIN) for item in news)


def read_book(reader: Reader, own_key: bytes) -> BlockBook:
    """Read who blocks whom from the post/blocks and post/unblocks: for each pair the latest counts."""
    latest: dict[tuple[bytes, bytes], int | None] = {}
    for digest in moderation.blocks(reader):
        post = reader.post(digest)
        if post is not None and isinstance(post.body, Block | Unblock):
            notify = post.body.notify if isinstance(post.body, Block) else None
            latest |= dict.fromkeys(((post.author, user) for user in post.body.recipients), notify)
    pairs = {pair: notify for pair, notify in latest.items() if notify is not None}
    own = {blocked: bool(notify) for (blocker, blocked), notify in pairs.items() if blocker == own_key}
    return BlockBook(pairs, own)
