"""Reading order of a channel: by time, but each message follows the messages that it links to.

Texts are compared by

1. effective time: the greatest timestamp among the text and the texts of the channel that it reaches by links,
2. steps: the length of the longest chain of links to posts of that effective time,
3. timestamp, then hash.

If clocks agree, this is the order by (timestamp, hash). A text whose effective time is later than its own timestamp is
*moved*. It is skipped at its row in the view `messages`, and found by links at its effective time. Joins, topics and
removed posts count only by their links. Posts of other channels do not count.

A page that begins at an end of the channel knows all moved texts. `store.frontier` finds the texts that are alone at
their effective time from the posts that the page reads. For other texts, the posts that link to them are looked up.

In a page from the middle, links are followed to a depth of `limits.MAX_LINKS_FOLLOWED`. A later text beyond this depth
does not move a text that reaches it, unless it was read before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

from cablestore import limits
from cablestore.index.reader import Reader
from cablestore.protocol.keys import AFTER_SORT_TIMES, TIME_DIGITS, time_of
from cablestore.store.channel_nodes import ChannelNodes, LinkedPost
from cablestore.store.frontier import Descent, Frontier, RowBlock, TextRow
from cablestore.store.known_positions import KnownPositions, ReadingPosition
from cablestore.views import messages


class MessageOrder:
    """Order of one channel in one state of a store."""

    def __init__(self, reader: Reader, channel: str, known: KnownPositions) -> None:
        self._reader = reader
        self._channel = channel
        self._known = known
        self._nodes = ChannelNodes(reader, channel)
        self.post: Final = self._nodes.post
        """Returns a post, None if it is not stored. A post that was read for its links is not read again."""
        self._reached: dict[bytes, tuple[int, int]] = {}
        """For each post: the latest time that it reaches by links, and the depth to which links were followed."""

    def texts(
        self,
        cursor: bytes | None,
        *,
        newest_first: bool,
        start_ms: int = 0,
        end_ms: int | None = None,
        at_once: int = 0,
    ) -> Iterator[TextRow]:
        """Yield (sort time, hash) of the texts that follow the text with the sort time `cursor`.

        Only texts with start <= effective time < end are yielded. The first `at_once` rows are read in one batch.
        """
        self._known.note_latest(self._reader, self._channel)
        bound = None if cursor is None else self._place_at(cursor)
        if bound is not None and newest_first:
            end_ms = bound.effective_ms + 1 if end_ms is None else min(end_ms, bound.effective_ms + 1)
        elif bound is not None:
            start_ms = max(start_ms, bound.effective_ms)
        rows = messages.texts(
            self._reader,
            self._channel,
            newest_first=newest_first,
            start_ms=start_ms,
            end_ms=end_ms,
            at_once=at_once,
        )
        if not newest_first:
            yield from self._rising(rows, start_ms, bound)
            return
        frontier = self._frontier(end_ms)
        if frontier is None:
            yield from self._by_time(rows, limits.MAX_LINKS_FOLLOWED, bound, newest_first=True)
            return
        below = list[TextRow]()
        above = _up_to(rows, lambda row: row[0] < frontier.sort_time, below)
        yield from self._by_time(above, 0, bound, newest_first=True)
        yield from self._below(frontier, chain(below, rows), to_the_end=start_ms == 0)

    def _frontier(self, end_ms: int | None) -> Frontier | None:
        """Return the frontier of the channel for a page of texts before `end_ms` (None: from the newest text).

        Returns None if the page begins below the frontier, or if no frontier is known for a page with an `end_ms`.
        """
        frontier = self._known.frontiers.get(self._channel)
        if end_ms is None and frontier is None:
            heads = self._nodes.heads()
            return Frontier(AFTER_SORT_TIMES, None if heads is None else frozenset(heads))
        if frontier is None or (end_ms is not None and end_ms <= time_of(frontier.sort_time)):
            return None
        return frontier

    def _below(self, frontier: Frontier, rows: Iterable[TextRow], *, to_the_end: bool) -> Iterator[TextRow]:
        """Yield the texts in `rows`, which are below `frontier`, newest first. Remember the new frontier.

        `to_the_end` is True if the rows go down to the oldest text of the channel.
        """
        known, descent = self._known, Descent(self._nodes, frontier)
        for block in descent.blocks(rows, known.moved, to_the_end=to_the_end):
            texts = block.rows
            if block.are_alone:
                known.alone.update([digest for _, digest in texts])
            else:
                texts = self._looked_up(block, descent)
            try:
                yield from texts
            except GeneratorExit:  # the page is full
                known.frontiers[self._channel] = descent.frontier
                raise
        if descent.frontier.sort_time < frontier.sort_time:
            known.frontiers[self._channel] = descent.frontier

    def _looked_up(self, block: RowBlock, descent: Descent) -> list[TextRow]:
        """Return the texts with the effective times of a block, newest first, including texts that are moved there."""
        texts = list(self._by_time(block.rows, 0, None, newest_first=True))
        here = {digest for _, digest in block.rows}
        for _, digest in texts:
            if digest not in here:
                descent.add_moved(digest)
        return texts

    def _rising(self, rows: Iterator[TextRow], start_ms: int, bound: ReadingPosition | None) -> Iterator[TextRow]:
        """Yield the texts in `rows` after the position `bound` (None: all), oldest first.

        If all texts before `start_ms` were read, a text that links only to older texts is in order of time. For other
        texts, the posts that link to them are looked up.
        """
        known, risen = self._known, self._known.risen.get(self._channel, b"")
        if start_ms > (time_of(risen) if risen else 0):
            yield from self._by_time(rows, limits.MAX_LINKS_FOLLOWED, bound, newest_first=False)
            return
        same, above, previous = list[TextRow](), list[TextRow](), b""
        read = _up_to(rows, lambda row: row[0] > risen, above)
        yield from self._by_time(read, limits.MAX_LINKS_FOLLOWED, bound, newest_first=False)
        row = next(iter(above), None)
        while row is not None:
            following = next(rows, None)
            same.append(row)
            if following is None or following[0][:TIME_DIGITS] != row[0][:TIME_DIGITS]:
                texts = same
                if len(same) == 1 and self._links_to_older(row, previous):
                    known.alone.add(row[1])
                else:
                    texts = list(self._by_time(same, limits.MAX_LINKS_FOLLOWED, None, newest_first=False))
                known.risen[self._channel] = row[0]
                yield from texts
                same, previous = [], row[1]
            row = following

    def _links_to_older(self, row: TextRow, previous: bytes) -> bool:
        """Return True if the text is in order of time: all texts that it links to are older.

        Returns False if one of these texts is moved, if another text is moved to the time of this text, or if too many
        links must be followed. `previous` is the text before this one, or b"".
        """
        sort_time, digest = row
        moved = self._known.moved
        texts = self._nodes.texts_before(digest, previous)
        if texts is None or digest in moved or (self._channel, time_of(sort_time)) in self._known.targets:
            return False
        return all(text not in moved and (text == previous or self._is_older(text, sort_time)) for text in texts)

    def _is_older(self, text: bytes, sort_time: bytes) -> bool:
        node = self._nodes.node(text)
        return node is not None and node.sort_time is not None and node.sort_time < sort_time

    def _by_time(
        self, rows: Iterable[TextRow], depth: int, bound: ReadingPosition | None, *, newest_first: bool
    ) -> Iterator[TextRow]:
        """Yield the texts of `rows`, and the texts that are moved to their times and found by links, in order.

        `rows` are in order of timestamps. Only texts after the position `bound` are yielded, if it is given. `depth` is
        the number of links to follow in a chain.
        """
        alone = self._known.alone
        same: list[TextRow] = []
        for row in rows:
            if row[1] in self._known.moved:
                continue
            is_alone = bound is None and row[1] in alone
            if same and (is_alone or row[0][:TIME_DIGITS] != same[0][0][:TIME_DIGITS]):
                yield from self._read_time(same, depth, bound, newest_first=newest_first)
                same, bound = [], None  # only texts with the first timestamp can be on both sides of `bound`
            if is_alone:
                yield row
            else:
                same.append(row)
        if same:
            yield from self._read_time(same, depth, bound, newest_first=newest_first)

    def _read_time(
        self, rows: list[TextRow], depth: int, bound: ReadingPosition | None, *, newest_first: bool
    ) -> Iterator[TextRow]:
        """Yield the texts of one effective time, the timestamp of `rows`, after the position `bound` (None: all)."""
        found = self._group(time_of(rows[0][0]), rows, depth)
        for place, digest in reversed(found) if newest_first else found:
            if bound is None or (place < bound if newest_first else place > bound):
                yield place.sort_time, digest

    def _place_at(self, sort_time: bytes) -> ReadingPosition:
        """Return the position of the text with a sort time. The position of a removed text is its sort time."""
        time_ms = time_of(sort_time)
        rows = self._rows_of(time_ms)
        digest = next((digest for at, digest in rows if at == sort_time), None)
        if digest is not None and digest not in self._known.alone:
            depth = limits.MAX_LINKS_FOLLOWED
            effective_ms = self._effective_ms(digest, depth)
            rows = rows if effective_ms == time_ms else self._rows_of(effective_ms)
            for place, each in self._group(effective_ms, rows, depth):
                if each == digest:
                    return place
        return ReadingPosition(time_ms, 0, sort_time)

    def _rows_of(self, time_ms: int) -> list[TextRow]:
        """Return (sort time, hash) of the texts with the timestamp `time_ms`."""
        return list(
            messages.texts(self._reader, self._channel, newest_first=False, start_ms=time_ms, end_ms=time_ms + 1)
        )

    # --- the texts of one effective time -------------------------------------------------------

    def _group(self, time_ms: int, rows: list[TextRow], depth: int) -> list[tuple[ReadingPosition, bytes]]:
        """Return (position, hash) of the texts with the effective time `time_ms`, in reading order.

        `rows` are the texts with this timestamp. Those that are moved to a later time are left out.
        """
        rows = sorted(rows)
        if len(rows) == 1 and rows[0][1] in self._known.alone:
            return [(ReadingPosition(time_ms, 0, rows[0][0]), rows[0][1])]
        known = self._known.groups.get((self._channel, time_ms))
        if known is not None:
            return known
        moved = self._known.moved
        is_here = [(self._effective_ms(d, depth) if depth else moved.get(d, time_ms)) <= time_ms for _, d in rows]
        members = self._members(time_ms, [row[1] for row, here in zip(rows, is_here, strict=True) if here], depth)
        if len(rows) == 1 and len(members) == 1:
            self._known.alone.add(rows[0][1])
            return [(ReadingPosition(time_ms, 0, rows[0][0]), rows[0][1])]
        found = self._in_order(time_ms, members)
        self._known.groups[self._channel, time_ms] = found
        return found

    def _members(self, time_ms: int, first: list[bytes], depth: int) -> list[bytes]:
        """Return the posts of the effective time `time_ms`: `first`, and earlier posts that reach them by links.

        Texts among these that have an earlier timestamp are recorded as moved.
        """
        members = dict.fromkeys(first)
        upcoming = deque(first)
        while upcoming:
            for digest in self._nodes.linking(upcoming.popleft()):
                if digest in members or digest in self._known.alone:
                    continue
                node = self._nodes.node(digest)
                if node is None or node.timestamp_ms > time_ms or self._reaches_later(digest, node, time_ms, depth):
                    continue
                members[digest] = None
                if node.timestamp_ms < time_ms:
                    self._known.move(self._channel, digest, time_ms)
                upcoming.append(digest)
        return list(members)

    def _in_order(self, time_ms: int, members: Iterable[bytes]) -> list[tuple[ReadingPosition, bytes]]:
        """Return (position, hash) of the texts in `members`, which have one effective time, in reading order."""
        steps: dict[bytes, int] = {}
        entered: set[bytes] = set()  # unsigned skeletons of deleted posts may contain cycles
        inside = dict.fromkeys(members)
        stack = list(inside)
        while stack:
            digest = stack[-1]
            node = self._nodes.node(digest)
            before = [] if node is None else [link for link in node.links if link in inside]
            waiting = [link for link in before if link not in entered]
            entered.add(digest)
            if waiting:
                stack += waiting
                continue
            steps[digest] = max((steps[link] + 1 for link in before if link in steps), default=0)
            stack.pop()
        nodes = ((self._nodes.node(digest), digest) for digest in inside)
        return sorted(
            (ReadingPosition(time_ms, steps[digest], node.sort_time), digest)
            for node, digest in nodes
            if node is not None and node.sort_time is not None
        )

    # --- links ---------------------------------------------------------------------------------

    def _reaches_later(self, digest: bytes, node: LinkedPost, time_ms: int, depth: int) -> bool:
        """Return True if the post `digest` reaches a time after `time_ms` by chains of up to `depth` links.

        A `depth` of 0 compares only the known times of the posts that `node` links to.
        """
        if depth:
            return self._effective_ms(digest, depth) > time_ms
        return any(self._claimed_ms(link) > time_ms for link in node.links)

    def _effective_ms(self, digest: bytes, depth: int) -> int:
        """Return the effective time of a text, following chains of up to `depth` links. Record a moved text."""
        found = self._reached_ms(digest, depth)
        node = self._nodes.node(digest)
        if node is not None and found > node.timestamp_ms >= 0:
            self._known.move(self._channel, digest, found)
        return found

    def _claimed_ms(self, digest: bytes) -> int:
        """Return the effective time of a text if it is known to be moved, otherwise its timestamp. Other posts: -1."""
        moved_ms = self._known.moved.get(digest)
        if moved_ms is not None:
            return moved_ms
        node = self._nodes.node(digest)
        return -1 if node is None else node.timestamp_ms

    def _reached_ms(self, digest: bytes, depth: int) -> int:
        """Return the latest time among a post and the posts that it reaches in `depth` links.

        An earlier result is used again if it followed at least `depth` links or half of MAX_LINKS_FOLLOWED.
        """
        found, followed = self._reached.get(digest, (-1, -1))
        if followed >= min(depth, limits.MAX_LINKS_FOLLOWED // 2):
            return found
        found, node = self._claimed_ms(digest), self._nodes.node(digest)
        if node is not None and depth and digest not in self._known.alone:
            found = max(found, *(self._reached_ms(link, depth - 1) for link in node.links), -1)
        self._reached[digest] = found, depth
        return found


def _up_to(rows: Iterator[TextRow], is_beyond: Callable[[TextRow], bool], beyond: list[TextRow]) -> Iterator[TextRow]:
    """Yield `rows` until `is_beyond` returns True for a row. Append this row to the list `beyond`, and end."""
    for row in rows:
        if is_beyond(row):
            beyond.append(row)
            return
        yield row
