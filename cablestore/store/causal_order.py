"""Causal order: a message follows all messages that it links to, even if clocks are wrong. Computed when read.

The pairwise rule of wire.md 5.1.3 is not transitive, so it is not an order (A links to B, times A=1, B=10, C=5:
A > B > C > A). The order here is transitive and agrees with every link. It compares posts by

1. effective time: the greatest timestamp among the post and all posts that it reaches by links,
2. steps: 0 if its timestamp is later than the effective times of all its links, otherwise one more than the maximum
   steps of the links with the latest effective time,
3. hash.

If clocks agree, this is the order by (timestamp, hash).

Links are followed back to `skew_ms` before the window. An ancestor that is reached only through posts older than that
is not seen. The order is exact unless such an ancestor claims a later time than its descendant in the window.
"""

from __future__ import annotations

from collections import deque

from cablestore import limits
from cablestore.index.drops import dropped_post
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Skeleton


def causal_order(
    reader: Reader, hashes: list[bytes], start_ms: int, skew_ms: int = limits.CAUSAL_SKEW_MS
) -> list[bytes]:
    """Sort the hashes of posts in causal order, oldest first. `start_ms` is the start of the time window of the posts.

    At most `limits.MAX_CAUSAL_POSTS` posts and ancestors are kept in memory; further ancestors are unknown.
    """
    nodes = _history(reader, hashes, start_ms - skew_ms)
    places: dict[bytes, tuple[int, int]] = {}
    for digest in hashes:
        _place(digest, nodes, places)
    return sorted(hashes, key=lambda digest: (*places.get(digest, (0, 0)), digest))


def _history(reader: Reader, hashes: list[bytes], oldest_ms: int) -> dict[bytes, Skeleton]:
    """Load the posts and their ancestors back to `oldest_ms`, deleted posts included."""
    nodes: dict[bytes, Skeleton] = {}
    upcoming = deque(hashes)
    while upcoming and len(nodes) < limits.MAX_CAUSAL_POSTS:
        digest = upcoming.popleft()
        if digest not in nodes and (node := known_skeleton(reader, digest)) is not None:
            nodes[digest] = node
            if node.timestamp_ms >= oldest_ms:
                upcoming += node.links
    return nodes


def known_skeleton(reader: Reader, digest: bytes) -> Skeleton | None:
    """Return the type, time, channel and links of a stored, deleted or dropped post. None if it is unknown."""
    post = reader.post(digest)
    if post is not None:
        return Skeleton.of(post)
    stone = reader.burial(digest)
    if stone is not None:
        return stone.skeleton
    dropped = dropped_post(reader, digest)
    return None if dropped is None else dropped.skeleton


def _place(digest: bytes, nodes: dict[bytes, Skeleton], places: dict[bytes, tuple[int, int]]) -> None:
    """Add (effective time, steps) to `places` for a post and for all posts in `nodes` that it reaches by links.

    Iterative, because chains of links may be longer than Python's stack.
    """
    stack, entered = [digest], set[bytes]()  # unsigned skeletons of deleted posts may contain cycles
    while stack:
        current = stack[-1]
        if current in places or current not in nodes:
            stack.pop()
            continue
        links = [link for link in nodes[current].links if link in nodes]
        waiting = [link for link in links if link not in places and link not in entered]
        entered.add(current)
        if waiting:
            stack += waiting
            continue
        own_ms = nodes[current].timestamp_ms
        time_ms, steps = max((places[link] for link in links if link in places), default=(-1, -1))
        places[current] = (own_ms, 0) if own_ms > time_ms else (time_ms, steps + 1)
        stack.pop()
