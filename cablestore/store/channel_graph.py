"""The graph of a channel: its posts, and the earlier posts to which they link, including absent posts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Literal

from cablestore.index.database import Row
from cablestore.index.drops import dropped_post
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Skeleton
from cablestore.protocol.keys import escape, time_floor
from cablestore.reprs import hex_repr
from cablestore.views import links, messages, sync

NodeState = Literal["stored", "deleted", "dropped", "missing"]
"""State of a post in a graph. If it is "missing", the store knows only the hash of the post."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """Post in the graph of a channel. `author`, `type` and `timestamp_ms` are None if they are unknown."""

    hash: bytes
    state: NodeState
    is_head: bool
    author: bytes | None = None
    type: int | None = None
    timestamp_ms: int | None = None
    links: tuple[bytes, ...] = ()

    __repr__ = hex_repr


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """Newest posts of a channel in a period, and the absent posts to which they link, oldest first.

    `is_complete` is False if older posts of the period were left out.
    """

    nodes: list[GraphNode]
    is_complete: bool


def channel_graph(reader: Reader, channel: str, limit: int, start_ms: int, end_ms: int) -> ChannelGraph:
    """Return the newest `limit` posts of a channel with start <= timestamp < end, and absent posts that they link to.

    The graph also contains the absent heads of the period. Absent posts are added until it has 2 * `limit` nodes.
    """
    newest = list(islice(_newest(reader, channel, time_floor(start_ms), time_floor(end_ms)), limit + 1))
    heads = frozenset(links.heads(reader, channel))
    nodes: dict[bytes, GraphNode] = {}
    for digest in newest[:limit]:
        post = reader.post(digest)
        if post is not None:
            is_head = digest in heads
            nodes[digest] = GraphNode(digest, "stored", is_head, post.author, post.type, post.timestamp_ms, post.links)
    ends = (absent_node(reader, digest, is_head=True) for digest in heads if not reader.has(digest.hex().encode()))
    nodes |= {node.hash: node for node in ends if start_ms <= (node.timestamp_ms or 0) < end_ms}
    _add_absent(reader, nodes, heads, 2 * limit, start_ms)
    ordered = sorted(nodes.values(), key=lambda node: (node.timestamp_ms or 0, node.hash))
    return ChannelGraph(ordered, is_complete=len(newest) <= limit)


def _newest(reader: Reader, channel: str, start: bytes, stop: bytes) -> Iterator[bytes]:
    """Yield the hashes of a channel's posts between two positions, newest first, without deletions.

    `start` and `stop` (excluded) are times in key format.
    """
    prefixes = (messages.PREFIX, sync.ID_PREFIX)
    found = [_backwards(reader, prefix + escape(channel) + b"!", start, stop) for prefix in prefixes]
    for place, digest in merge(*found, reverse=True):
        if b"!" not in place:  # the key of a deletion's row contains the target after the time
            yield digest


def _backwards(reader: Reader, group: bytes, start: bytes, stop: bytes) -> Iterator[Row]:
    for key, digest in reader.scan(group + start, group + stop, reverse=True):
        yield key[len(group) :], digest


def _add_absent(
    reader: Reader, nodes: dict[bytes, GraphNode], heads: frozenset[bytes], limit: int, start_ms: int
) -> None:
    """Add the absent posts to which `nodes` link, directly or through other posts, until `nodes` has `limit` entries.

    The links of an absent post that is dated before `start_ms` are not followed.
    """
    waiting = [link for node in nodes.values() for link in node.links]
    while waiting and len(nodes) < limit:
        digest = waiting.pop()
        if digest in nodes or reader.has(digest.hex().encode()):
            continue
        node = nodes[digest] = absent_node(reader, digest, is_head=digest in heads)
        if node.timestamp_ms is not None and node.timestamp_ms >= start_ms:
            waiting += node.links


def absent_node(reader: Reader, digest: bytes, *, is_head: bool = False) -> GraphNode:
    """Return a node with the known values of a post that is not stored."""
    stone = reader.burial(digest)
    if stone is not None:
        return _remains(digest, "deleted", stone.author, stone.skeleton, is_head=is_head)
    dropped = dropped_post(reader, digest)
    if dropped is not None:
        return _remains(digest, "dropped", dropped.author, dropped.skeleton, is_head=is_head)
    return GraphNode(digest, "missing", is_head)


def _remains(digest: bytes, state: NodeState, by: bytes, bones: Skeleton | None, *, is_head: bool) -> GraphNode:
    if bones is None:
        return GraphNode(digest, state, is_head, by)
    return GraphNode(digest, state, is_head, by, bones.type, bones.timestamp_ms, bones.links)
