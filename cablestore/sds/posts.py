"""Causal log whose messages are posts of a store. The id of a message is the post's hash in hex.

The hash of a post does not depend on the sender, so any member that has the post may send it as a repair. The other
parts of a message (its place in the log, its history) are not signed. So the members of a channel must trust each other
not to change these parts.

A member that was away for a long time gets the posts by reconciliation or from archives. Then it gets their places in
the log from any member, as *outlines*: messages without their posts. Posts are not broadcast again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from cablestore.errors import OpenError, SdsError
from cablestore.limits import MAX_SDS_BATCH, MAX_SDS_EFFECTS_READ
from cablestore.protocol.body import JOIN, TEXT, TOPIC
from cablestore.protocol.crypto import HASH_SIZE_BYTES, post_hash
from cablestore.protocol.post import Post
from cablestore.sds.codec import decode, encode
from cablestore.sds.delivery import Received, ReceiveResult
from cablestore.sds.effects import Deliver, Effect, Missing, Retrieve
from cablestore.sds.log import CausalLog, ChannelStatus, LogChannel
from cablestore.sds.message import HistoryEntry, SdsMessage
from cablestore.sds.settings import Settings
from cablestore.store.store import CableStore

_DEFAULT: Final = Settings()


def causal_log(store: CableStore) -> CausalLog:
    """Open the causal logs of an open store: in its folder, or in memory for a store in memory.

    Close them before the store. Raises StoreLockedError if they are already open.
    """
    return CausalLog.in_memory() if store.path is None else CausalLog.open(store.path)


def channel_status(store: CableStore) -> list[ChannelStatus]:
    """Return the status of each channel of a store's causal logs.

    Raises OpenError if the logs do not exist, and StoreLockedError if another process has them open.
    """
    if store.path is None:
        raise OpenError("a store in memory does not have causal logs. Use a store in a folder")
    opened = CausalLog.open_here(store.path)
    if opened is not None:
        return opened.status()
    with CausalLog.open(store.path, create=False) as log:
        return log.status()


class OutlinesResult(NamedTuple):
    """Result of processing outlines: the number of accepted messages, and of outlines without a stored post."""

    taken: int
    without_post: int


def check_post(message: SdsMessage) -> str | None:
    """Return the problem of a message whose id must be the hash of its post, or None if it is valid."""
    digest = post_hash(message.content or b"").hex()
    return (
        None
        if digest == message.message_id
        else f"its id {message.message_id!r} differs from the hash of its post, {digest}"
    )


class PostChannel:
    """Channel whose messages are posts of a store. The application handles and confirms the effects of `outbox`."""

    def __init__(
        self, store: CableStore, log: CausalLog, channel_id: str, sender_id: str, settings: Settings = _DEFAULT
    ) -> None:
        """Open the channel. `check_post` replaces `settings.check`."""
        self._store = store
        self._log = log
        self.channel: Final[LogChannel] = log.channel(channel_id, sender_id, replace(settings, check=check_post))

    def send(self, post: Post, now_ms: int, *, retrieval_hint: bytes | None = None) -> bool:
        """Send a post of the store. Return False if it is in the log, so that an interrupted send can be repeated.

        A text or topic links to the post/join of its author. If the log does not have the join, it is sent first, in
        the same write. Raises SdsError for a local-only post.
        """
        if post.is_local_only:
            raise SdsError(f"cannot send post {post.hash.hex()}: it is local-only")
        if self.channel.message(post.hash.hex()) is not None:
            return False
        joins = self._unsent_joins(post)
        with self._log.batch():
            for join in joins:
                self.channel.send(join.raw, now_ms, message_id=join.hash.hex())
            self.channel.send(post.raw, now_ms, message_id=post.hash.hex(), retrieval_hint=retrieval_hint)
        return True

    def _unsent_joins(self, post: Post) -> list[Post]:
        """Return the author's joins that `post`, a text or topic, links to and that are not in the log."""
        linked = [self._store.get(digest) for digest in post.links] if post.type in (TEXT, TOPIC) else []
        joins = [each for each in linked if each is not None and each.type == JOIN and each.author == post.author]
        return [join for join in joins if self.channel.message(join.hash.hex()) is None]

    def receive(self, data: bytes, now_ms: int) -> Received:
        """Process received bytes. A message whose id is not the hash of its post is rejected."""
        return self.channel.receive(data, now_ms)

    def outbox(self, most: int = MAX_SDS_EFFECTS_READ) -> list[tuple[int, Effect]]:
        """Store the delivered posts, and return the effects as `LogChannel.outbox` does.

        The posts are in the store, on disk, before their effects are confirmed. After a crash in between, they are
        stored again, which changes nothing. A missing message is treated as met if its post is already in the store,
        from a reconciliation or an archive. Members then need not send it again.
        """
        effects = self.channel.outbox(most=most)
        posts = [effect.message.content or b"" for _, effect in effects if isinstance(effect, Deliver)]
        if posts:
            self._store.ingest(posts, sync=True)
        self._meet(effect.entry for _, effect in effects if isinstance(effect, Missing | Retrieve))
        return effects

    def confirm(self, sequence: int) -> None:
        """Remove the effects up to number `sequence` from the outbox. Call this after they were handled."""
        self.channel.confirm(sequence)

    def meet_stored(self) -> int:
        """Treat missing messages as met if the store has their posts. Return their number.

        Call this after a reconciliation or the import of an archive.
        """
        return self._meet(self.channel.missing())

    def _meet(self, missing: Iterable[HistoryEntry]) -> int:
        here = [entry.message_id for entry in missing if self._post(entry.message_id) is not None]
        if here:
            self.channel.met(here)
        return len(here)

    def outlines(self, from_ms: int = 0, after: bytes | None = None, most: int = MAX_SDS_BATCH) -> list[bytes]:
        """Return messages of the log without their posts, in order, for a member that has most of the posts.

        They begin at Lamport time `from_ms`, or after `after`, the last outline of the previous page. Each
        outline is an encoded message in the channel's dialect, without content and filter.
        """
        dialect = self.channel.settings.dialect
        found = self.channel.log_from(from_ms) if after is None else self.channel.log(decode(after, dialect))
        return [encode(replace(message, content=None), dialect) for message in islice(found, most)]

    def add_outlines(self, outlines: Iterable[bytes], now_ms: int) -> OutlinesResult:
        """Add posts of the store to the log at the places in a member's outlines, up to a thousand in one write.

        Messages that are already in the log or waiting are not changed. Outlines without a stored post are left out.
        The log requests their messages when another message lists them. Raises SdsError for a malformed outline, before
        its page is written.
        """
        taken = without_post = 0
        pending = iter(outlines)
        while page := list(islice(pending, MAX_SDS_BATCH)):
            whole = [self._with_post(each) for each in page]
            with self._log.batch():
                for data in whole:
                    if data is None:
                        without_post += 1
                    else:
                        verdict = self.channel.retrieved(data, now_ms).verdict
                        taken += verdict in {ReceiveResult.DELIVERED, ReceiveResult.WAITING}
        return OutlinesResult(taken, without_post)

    def _with_post(self, outline: bytes) -> bytes | None:
        dialect = self.channel.settings.dialect
        message = decode(outline, dialect)
        post = self._post(message.message_id)
        return None if post is None else encode(replace(message, content=post.raw), dialect)

    def answer(self, message_id: str) -> bytes | None:
        """Return the message with this id for a member that retrieves it, or None if it is not in the log."""
        return self.channel.encoded(message_id)

    def retrieve(self, message_id: str, ask: Callable[[str], bytes | None], now_ms: int) -> Received | None:
        """Retrieve a missing message with `ask`, the `answer` of another member. Return None if `ask` returns None.

        The answer is checked like all received messages.
        """
        data = ask(message_id)
        return None if data is None else self.channel.retrieved(data, now_ms)

    def _post(self, message_id: str) -> Post | None:
        try:
            digest = bytes.fromhex(message_id)
        except ValueError:
            return None
        return self._store.get(digest) if len(digest) == HASH_SIZE_BYTES else None
