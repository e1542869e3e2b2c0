"""Posts that a conversation sends to its peer: in batches, with at most MAX_TALK_BATCHES unconfirmed, deletions last.

Deletions wait until both sides have all other posts. Otherwise a deletion could remove a post before it was sent, and
the tombstones of the two sides would differ. The unconfirmed batches together are as large as the link transfers in
about a second (`protocol.flow_window`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cablestore.limits import (
    MAX_TALK_BATCHES,
    MAX_TALK_UNSENT,
    TALK_BATCH_SIZE_BYTES,
    TALK_FIRST_PAYLOAD_SIZE_BYTES,
    TALK_LEAST_BATCH_SIZE_BYTES,
)
from cablestore.protocol.body import DELETE
from cablestore.protocol.flow_window import BatchStart, FlowWindow
from cablestore.protocol.post import Post
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import SyncID
from cablestore.reconcile.messages import PostsFrame
from cablestore.reconcile.transfer import encode_post

_POST_SIZE_BYTES: Final = 256
"""Approximate size of a post."""
_FIRST_BATCH_SIZE_BYTES: Final = 2_048
"""Maximum size of a batch before the peer has stored a batch."""
_IDS_SHARE: Final = 4
"""Ratio of the size of a short post to the size of its id."""


class OutgoingPosts:
    """Posts for the peer: unsent posts, unconfirmed posts, and waiting deletions.

    `read` returns a post of the present store, or None.
    """

    def __init__(self, read: Callable[[bytes], Post | None]) -> None:
        self._read = read
        self._unsent: deque[bytes] = deque()
        self._deletions: deque[bytes] = deque()
        self.is_deleting = False
        """True if the deletions are sent too."""
        self._on_the_way: dict[int, tuple[BatchStart, int]] = {}
        self._flow = FlowWindow(MAX_TALK_BATCHES * TALK_BATCH_SIZE_BYTES)
        self._batches = self._stored_size_bytes = 0

    @property
    def is_behind(self) -> bool:
        """True if more posts wait than the link transfers in about a second, or more than MAX_TALK_UNSENT.

        The comparison pauses then.
        """
        fitting = self._flow.window_size_bytes / _POST_SIZE_BYTES
        return len(self._unsent) > min(fitting, MAX_TALK_UNSENT)

    def payload_size_bytes(self, most_size_bytes: float) -> int:
        """Return the maximum size of a payload: `most_size_bytes`, or less while posts wait, which ids would delay."""
        if self.is_idle:
            return int(most_size_bytes)
        return int(min(most_size_bytes, max(TALK_FIRST_PAYLOAD_SIZE_BYTES, self._flow.window_size_bytes / _IDS_SHARE)))

    @property
    def is_idle(self) -> bool:
        """True if the peer has stored all posts that may be sent now."""
        return not self._unsent and not self._on_the_way

    def add(self, ids: Iterable[SyncID]) -> None:
        """Queue these posts for sending. Posts that are no longer stored at their turn are omitted."""
        self._unsent.extend(sync_id.hash for sync_id in ids)

    def turn_to_deletions(self) -> None:
        """Queue the deletions too, once both sides have all other posts."""
        self.is_deleting = True
        self._unsent += self._deletions
        self._deletions.clear()

    def batches(self, at_s: float) -> Iterator[PostsFrame]:
        """Yield the batches that may be sent at this time."""
        while self._unsent and len(self._on_the_way) < MAX_TALK_BATCHES:
            most = max(TALK_LEAST_BATCH_SIZE_BYTES, self._flow.window_size_bytes / MAX_TALK_BATCHES)
            # A link that breaks loses a batch. This limits the loss to an eighth of the transferred bytes.
            most = min(most, TALK_BATCH_SIZE_BYTES, max(_FIRST_BATCH_SIZE_BYTES, self._stored_size_bytes / 8))
            if self._on_the_way and self._flow.room_size_bytes < most:
                return
            contents = self._next_contents(most)
            if contents:
                size_bytes = sum(map(len, contents))
                self._on_the_way[self._batches] = self._flow.began(size_bytes, at_s), size_bytes
                yield PostsFrame(self._batches, contents)
                self._batches += 1

    def _next_contents(self, most_size_bytes: float) -> tuple[bytes, ...]:
        contents, size_bytes = [], 0
        while self._unsent and size_bytes < most_size_bytes:
            digest = self._unsent.popleft()
            post = self._read(digest)
            if post is None or post.is_local_only:
                continue
            if post.type == DELETE and not self.is_deleting:
                self._deletions.append(digest)
                continue
            contents.append(encode_post(post))
            size_bytes += len(contents[-1])
        return tuple(contents)

    def stored(self, batch: int, at_s: float) -> None:
        """Record that the peer has stored a batch. Raises ReconcileError if the batch is not in transit."""
        if batch not in self._on_the_way:
            raise ReconcileError(f"the peer confirmed batch {batch}, which is not in transit")
        start, size_bytes = self._on_the_way.pop(batch)
        self._stored_size_bytes += size_bytes
        self._flow.arrived(size_bytes)
        self._flow.ended(start, size_bytes, at_s)
