"""Frontier of a channel that is read from its newest text down. It shows which texts are in order of time.

The frontier contains the unread texts that a read text links to, and the unread texts that no text links to. Every
unread text is in the frontier or is reached by links from it. The texts that were read last form a block. Assume that

* the frontier contains only the next text, and
* the texts of the block link only to other texts of the block or to the next text, not to newer texts.

Then all texts of the block reach the next text, because links between hashes have no cycles. No text below links to a
text of the block: the next text would reach it, and would then reach itself. So the block is in order of time, and no
other text belongs there. This holds in most positions, and needs only posts that a page reads anyway.

Links are followed through joins and deleted posts, as in `store.message_order`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.protocol.keys import TIME_DIGITS
from cablestore.store.channel_nodes import ChannelNodes

TextRow = tuple[bytes, bytes]
"""Sort time and hash of a text."""


class Frontier(NamedTuple):
    """Frontier after reading the text with the sort time `sort_time`. `unread` is None if it is unknown or too large.

    Except for texts that are known to be moved, no text below `sort_time` links to a text above it.
    """

    sort_time: bytes
    unread: frozenset[bytes] | None


class RowBlock(NamedTuple):
    """Texts in descending order of time. With `are_alone`, each is known to be the only text of its effective time."""

    rows: list[TextRow]
    are_alone: bool


class Descent:
    """Iteration over the texts below a frontier, in blocks. The caller must sort the blocks without `are_alone`."""

    def __init__(self, nodes: ChannelNodes, frontier: Frontier) -> None:
        self._nodes: Final = nodes
        self._sort_time = frontier.sort_time
        self._unread = None if frontier.unread is None else set(frontier.unread)

    @property
    def frontier(self) -> Frontier:
        """The frontier after the last block."""
        return Frontier(self._sort_time, None if self._unread is None else frozenset(self._unread))

    def blocks(self, rows: Iterable[TextRow], moved: dict[bytes, int], *, to_the_end: bool) -> Iterator[RowBlock]:
        """Yield the texts in `rows`, which are below the frontier, in blocks, without the texts in `moved`.

        `to_the_end` is True if the rows go down to the oldest text of the channel.
        """
        upcoming = iter(rows)
        block: list[TextRow] = []
        is_orderly, longest = True, limits.MAX_ROWS_AHEAD
        row = next(upcoming, None)
        while row is not None:
            following = next(upcoming, None)
            if row[1] not in moved:
                block.append(row)
                is_orderly = self._read(row, following, block) and is_orderly
            if block and (following is None or following[0][:TIME_DIGITS] != row[0][:TIME_DIGITS]):
                is_single = self._has_only(following, to_the_end=to_the_end)
                if is_single or following is None or len(block) >= longest or self._unread is None:
                    longest = limits.MAX_ROWS_AHEAD if is_single else 1
                    self._sort_time = block[-1][0]
                    yield RowBlock(block, is_single and is_orderly)
                    block, is_orderly = [], True
            elif block:
                is_orderly = False  # the next text has the same timestamp, so links decide the order
            row = following

    def _has_only(self, following: TextRow | None, *, to_the_end: bool) -> bool:
        """Return True if the frontier contains only `following`. Without a following text, it must be empty.

        Returns False if the frontier is unknown, or if the rows end before the oldest text.
        """
        if following is None:
            return to_the_end and not self._unread
        return self._unread is not None and len(self._unread) == 1 and following[1] in self._unread

    def add_moved(self, digest: bytes) -> None:
        """Record that the text `digest` was read with the last block although its own timestamp is earlier."""
        texts = self._nodes.texts_before(digest, b"")
        if texts is None or self._unread is None:
            self._unread = None
            return
        self._unread.discard(digest)
        for text in texts:
            node = self._nodes.node(text)
            if node is not None and node.sort_time is not None and node.sort_time < self._sort_time:
                self._unread.add(text)

    def _read(self, row: TextRow, following: TextRow | None, block: list[TextRow]) -> bool:
        """Record that the text of `row`, the last of `block`, was read. `following` is the next row.

        Return True if the text links to at least one text and to no newer text of the block.
        """
        unread, node = self._unread, self._nodes.node(row[1])
        if unread is None or node is None:
            return False
        if following is not None and node.links == (following[1],):
            unread.discard(row[1])
            unread.add(following[1])
            return True
        texts = self._nodes.texts_before(row[1], b"" if following is None else following[1])
        if texts is None:
            self._unread = None
            return False
        unread.discard(row[1])
        newer = {digest for _, digest in block if digest in texts} if len(block) > 1 else set()
        unread |= texts - newer
        return bool(texts) and not newer
