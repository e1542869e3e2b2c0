"""The order in which people read a channel: by time, and no message before one that it links to.

A text's place is

1. its effective time: the greatest timestamp among the text and the texts of the channel that it reaches by links,
2. its steps from there: 0 if it reaches no other text of that time, else one more than the furthest that it links to,
3. its timestamp, and its hash.

Where clocks agree, this is the order by (timestamp, hash). A text with a greater effective time than its own is moved:
it is left out where the view `messages` has its row, and found by links where it belongs. Joins, topics and removed
posts count by their links alone, posts of other channels do not count.

A page from an end of the channel knows all texts that are moved. `store.frontier` finds the texts that are alone at
their effective time from the posts that the page reads; for the others it is looked up who links to them. In a page in
the middle, a text is moved by one that it reaches in at most `limits.MAX_LINKS_FOLLOWED` links, or that was read before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from cablestore import limits
from cablestore.index.reader import Reader
from cablestore.protocol.keys import AFTER_SORT_TIMES, TIME_DIGITS, time_of
from cablestore.protocol.post import Post
from cablestore.store.channel_nodes import ChannelNodes, LinkedPost
from cablestore.store.frontier import Descent, Frontier, RowBlock, TextRow
from cablestore.store.known_places import KnownPlaces, ReadingPlace
from cablestore.views import messages


class MessageOrder:
    """Order of one channel in one state of a store."""

    def __init__(self, reader: Reader, channel: str, known: KnownPlaces) -> None:
        self._reader = reader
        self._channel = channel
        self._known = known
        self._nodes = ChannelNodes(reader, channel)
        self._reached: dict[bytes, tuple[int, int]] = {}
        """The latest time that posts reach, and in how many links."""

    def post(self, digest: bytes) -> Post | None:
        """Return a post that was read, or read it."""
        return self._nodes.post(digest)

    def texts(
        self,
        cursor: bytes | None,
        *,
        newest_first: bool,
        start_ms: int = 0,
        end_ms: int | None = None,
        at_once: int = 0,
    ) -> Iterator[TextRow]:
        """Yield (sort time, hash) of the texts after a text in the order, given by its sort time.

        Only texts with start <= effective time < end are yielded. The rows of the first `at_once` are read in one go.
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
        """Return the frontier of what was read without a gap from the newest text on, None if there is a gap."""
        frontier = self._known.frontiers.get(self._channel)
        if end_ms is None and frontier is None:
            heads = self._nodes.heads()
            return Frontier(AFTER_SORT_TIMES, None if heads is None else frozenset(heads))
        if frontier is None or (end_ms is not None and end_ms <= time_of(frontier.sort_time)):
            return None
        return frontier

    def _below(self, frontier: Frontier, rows: Iterable[TextRow], *, to_the_end: bool) -> Iterator[TextRow]:
        """Yield the texts below a frontier, from the newest on."""
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
        """Return the texts where a block is, with those that are moved there."""
        texts = list(self._by_time(block.rows, 0, None, newest_first=True))
        here = {digest for _, digest in block.rows}
        for _, digest in texts:
            if digest not in here:
                descent.add_moved(digest)
        return texts

    def _rising(self, rows: Iterator[TextRow], start_ms: int, bound: ReadingPlace | None) -> Iterator[TextRow]:
        """Yield the texts after a place from the oldest on.

        If all older ones were read, those that link to older ones alone are in order of time. The others are moved, and
        it is known where they belong.
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
        """Return True if a text and all that it links to keep their places, and nothing is moved to its time."""
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
        self, rows: Iterable[TextRow], depth: int, bound: ReadingPlace | None, *, newest_first: bool
    ) -> Iterator[TextRow]:
        """Yield the texts after a place, given the rows of the texts that claim their times. It looks up who links."""
        alone = self._known.alone
        same: list[TextRow] = []
        for row in rows:
            if row[1] in self._known.moved:
                continue
            is_alone = bound is None and row[1] in alone
            if same and (is_alone or row[0][:TIME_DIGITS] != same[0][0][:TIME_DIGITS]):
                yield from self._read_time(same, depth, bound, newest_first=newest_first)
                same, bound = [], None  # only the first time may be that of the cursor
            if is_alone:
                yield row
            else:
                same.append(row)
        if same:
            yield from self._read_time(same, depth, bound, newest_first=newest_first)

    def _read_time(
        self, rows: list[TextRow], depth: int, bound: ReadingPlace | None, *, newest_first: bool
    ) -> Iterator[TextRow]:
        """Yield the texts of one effective time after a place."""
        found = self._group(time_of(rows[0][0]), rows, depth)
        for place, digest in reversed(found) if newest_first else found:
            if bound is None or (place < bound if newest_first else place > bound):
                yield place.sort_time, digest

    def _place_at(self, sort_time: bytes) -> ReadingPlace:
        """Return the place of the text with a sort time. One that is gone has the place that its time says."""
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
        return ReadingPlace(time_ms, 0, sort_time)

    def _rows_of(self, time_ms: int) -> list[TextRow]:
        """Return (sort time, hash) of the texts that claim a time."""
        return list(
            messages.texts(self._reader, self._channel, newest_first=False, start_ms=time_ms, end_ms=time_ms + 1)
        )

    # --- the texts of one time -----------------------------------------------------------------

    def _group(self, time_ms: int, rows: list[TextRow], depth: int) -> list[tuple[ReadingPlace, bytes]]:
        """Return the texts of an effective time in order, given the rows of the texts that claim it."""
        rows = sorted(rows)
        if len(rows) == 1 and rows[0][1] in self._known.alone:
            return [(ReadingPlace(time_ms, 0, rows[0][0]), rows[0][1])]
        known = self._known.groups.get((self._channel, time_ms))
        if known is not None:
            return known
        moved = self._known.moved
        is_here = [(self._effective_ms(d, depth) if depth else moved.get(d, time_ms)) <= time_ms for _, d in rows]
        members = self._members(time_ms, [row[1] for row, here in zip(rows, is_here, strict=True) if here], depth)
        if len(rows) == 1 and len(members) == 1:
            self._known.alone.add(rows[0][1])
            return [(ReadingPlace(time_ms, 0, rows[0][0]), rows[0][1])]
        found = self._in_order(time_ms, members)
        self._known.groups[self._channel, time_ms] = found
        return found

    def _members(self, time_ms: int, first: list[bytes], depth: int) -> list[bytes]:
        """Return posts of an effective time: these, and those that link to them and claim no later time."""
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

    def _in_order(self, time_ms: int, members: Iterable[bytes]) -> list[tuple[ReadingPlace, bytes]]:
        """Return the texts among the posts of one effective time, by steps, time and hash."""
        steps: dict[bytes, int] = {}
        entered: set[bytes] = set()  # what others say of deleted posts may have cycles
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
            (ReadingPlace(time_ms, steps[digest], node.sort_time), digest)
            for node, digest in nodes
            if node is not None and node.sort_time is not None
        )

    # --- links ---------------------------------------------------------------------------------

    def _reaches_later(self, digest: bytes, node: LinkedPost, time_ms: int, depth: int) -> bool:
        """Return True if a post reaches a later time. Without a depth all later times are known."""
        if depth:
            return self._effective_ms(digest, depth) > time_ms
        return any(self._claimed_ms(link) > time_ms for link in node.links)

    def _effective_ms(self, digest: bytes, depth: int) -> int:
        """Return the effective time of a text, following links to a depth."""
        if depth == 0:
            return self._claimed_ms(digest)
        found = self._reached_ms(digest, depth)
        node = self._nodes.node(digest)
        if node is not None and found > node.timestamp_ms >= 0:
            self._known.move(self._channel, digest, found)
        return found

    def _claimed_ms(self, digest: bytes) -> int:
        """Return the time of a post, or the later one that it is known to have."""
        moved_ms = self._known.moved.get(digest)
        if moved_ms is not None:
            return moved_ms
        node = self._nodes.node(digest)
        return -1 if node is None else node.timestamp_ms

    def _reached_ms(self, digest: bytes, depth: int) -> int:
        """Return the latest time among a post and what it reaches in this many links, or half as many."""
        found, followed = self._reached.get(digest, (-1, -1))
        if followed >= min(depth, limits.MAX_LINKS_FOLLOWED // 2):
            return found
        found, node = self._claimed_ms(digest), self._nodes.node(digest)
        if node is not None and depth and digest not in self._known.alone:
            found = max(found, *(self._reached_ms(link, depth - 1) for link in node.links), -1)
        self._reached[digest] = found, depth
        return found


def _up_to(rows: Iterator[TextRow], is_beyond: Callable[[TextRow], bool], beyond: list[TextRow]) -> Iterator[TextRow]:
    """Yield the rows before the first one beyond a place, which is put into `beyond`."""
    for row in rows:
        if is_beyond(row):
            beyond.append(row)
            return
        yield row
