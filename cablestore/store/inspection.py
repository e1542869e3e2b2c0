"""Read methods for programs that inspect a store: raw rows, posts by time, the graph of a channel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice

from cablestore import limits
from cablestore.arguments import Time, check, check_given, check_id, checked_each, checked_window
from cablestore.index.database import Row
from cablestore.index.reader import Reader, record_key, target_key, tombstone_key
from cablestore.index.view import REVERSE_PREFIX, reverse_keys
from cablestore.protocol.body import ALL_TYPES
from cablestore.protocol.keys import SORT_TIME_SIZE_BYTES, TIME_DIGITS, escape, time_floor
from cablestore.protocol.post import Post
from cablestore.store.channel_graph import ChannelGraph, GraphNode, absent_node, channel_graph
from cablestore.views import CATALOG, links, messages, sync
from cablestore.views import author as author_view

_AFTER_KEYS = b"\xff"


class Inspection(ABC):
    """Read methods for programs that inspect a store. `Queries` inherits them."""

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Reader]:
        """Return a reader of one state, open within the context."""

    def rows(self, prefix: bytes = b"", limit: int = 100, *, after_key: bytes | None = None) -> list[Row]:
        """Return up to `limit` rows whose keys begin with `prefix`, in key order, starting after `after_key`.

        The rows include the arrival log and local rows, which `dump` leaves out.
        """
        check(prefix=prefix, limit=limit)
        check_given(after_key=after_key)
        start = prefix if after_key is None else max(prefix, after_key + b"\x00")
        with self._reading() as reader:
            found = reader.scan(start, _AFTER_KEYS, at_once=min(limit, limits.MAX_ITEMS_AHEAD))
            return [row for row in islice(found, limit) if row[0].startswith(prefix)]

    def rows_of(self, digest: bytes) -> list[Row]:
        """Return the rows of a stored or deleted post.

        * the post's rows in the views, and its row in the reverse hash map;
        * its tombstones, and the row that marks it as their target;
        * the folds and tallies of cablestore's own views that merge values of the post.
        """
        check_id("digest", digest)
        with self._reading() as reader:
            post = reader.post(digest)
            keys = [] if post is None else _keys_of(reader, post)
            keys.append(target_key(digest.hex().encode()))
            for stone in reader.tombstones(digest):
                keys.append(tombstone_key(stone.target_hex, stone.author.hex().encode()))
                keys += [key for key, _ in CATALOG.dead_rows(stone)]
            found = ((key, reader.get(key)) for key in dict.fromkeys(keys))
            return [(key, value) for key, value in found if value is not None]

    def graph_nodes(self, hashes: Iterable[bytes]) -> list[GraphNode]:
        """Return a node for each post, in the same order. The posts may be stored, deleted, dropped or missing."""
        digests = checked_each("hashes", hashes, check_id)
        with self._reading() as reader:
            return [_node(reader, digest) for digest in digests]

    def channel_graph(
        self,
        channel: str,
        limit: int = limits.MAX_GRAPH_POSTS,
        *,
        after_ms: Time | None = None,
        before_ms: Time | None = None,
    ) -> ChannelGraph:
        """Return the newest `limit` posts of a channel in a period, and the absent posts to which they link.

        The period is `after_ms` <= time < `before_ms`, in milliseconds since 1970 or as datetimes with a time zone. The
        graph contains the types of posts that link to others: texts, topics, joins and leaves.
        """
        check(channel=channel, limit=limit)
        start_ms, end_ms = checked_window(after_ms, before_ms)
        with self._reading() as reader:
            name, last_ms = reader.dialect.channel_id(channel), limits.MAX_TIMESTAMP_MS + 1
            return channel_graph(reader, name, limit, start_ms, last_ms if end_ms is None else min(end_ms, last_ms))

    def post_counts(
        self,
        step_ms: int,
        *,
        channel: str | None = None,
        author: bytes | None = None,
        after_ms: Time | None = None,
        before_ms: Time | None = None,
    ) -> list[tuple[int, int]]:
        """Return (start in milliseconds, number of posts) for each interval of `step_ms` that contains posts.

        Counts the posts of an author, of a channel, or of the whole store; with `author`, `channel` is ignored. The
        posts themselves are not read: a million posts take about a second. Local-only posts are counted only with
        `author`.
        """
        check(step_ms=step_ms)
        check_given(author=author, channel=channel)
        start_ms, end_ms = checked_window(after_ms, before_ms)
        last_ms = limits.MAX_TIMESTAMP_MS + 1
        start, stop = (
            time_floor(min(start_ms, last_ms)),
            time_floor(last_ms if end_ms is None else min(end_ms, last_ms)),
        )
        counts: Counter[int] = Counter()
        with self._reading() as reader:
            for group in _groups(reader, channel, author):
                for moments in _times(reader, group, start, stop):
                    counts.update(at_ms // step_ms for at_ms in moments)
        return [(step * step_ms, posts) for step, posts in sorted(counts.items())]


def _keys_of(reader: Reader, post: Post) -> list[bytes]:
    own = [record_key(post), REVERSE_PREFIX + post.hash_hex]
    merged = [key for _, key in CATALOG.fold_keys(post)] + [tally.key(post) for tally in CATALOG.tallies[post.type]]
    return [*own, *(reverse_keys(reader, post) or ()), *merged]


def _node(reader: Reader, digest: bytes) -> GraphNode:
    post = reader.post(digest)
    if post is None:
        return absent_node(reader, digest)
    is_head = post.is_linkable and links.is_head(reader, post)
    return GraphNode(digest, "stored", is_head, post.author, post.type, post.timestamp_ms, post.links)


def _groups(reader: Reader, channel: str | None, author: bytes | None) -> list[bytes]:
    """Return the prefixes of rows that list the posts of `author`, of `channel` or of the store by time."""
    if author is not None:
        return [author_view.prefix_of(author, number) for number in sorted(ALL_TYPES)]
    if channel is not None:
        name = escape(reader.dialect.channel_id(channel))
        return [prefix + name + b"!" for prefix in (messages.PREFIX, sync.ID_PREFIX)]
    return [sync.ID_PREFIX + b"!"]


def _times(reader: Reader, group: bytes, start: bytes, stop: bytes) -> Iterator[list[int]]:
    """Yield, in batches, the times in the keys from `start` to `stop` under the prefix `group`.

    They end early if the database is damaged: `check` reports that.
    """
    at, size = len(group), len(group) + SORT_TIME_SIZE_BYTES
    for block in reader.blocks(group + start, group + stop):
        yield [int(key[at : at + TIME_DIGITS]) for key, _ in block if len(key) == size]  # deletions have longer keys
