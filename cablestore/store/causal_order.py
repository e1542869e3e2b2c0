"""Causal order: no message comes before one that it answers, even if clocks of authors are wrong. Computed when read.

The pairwise rule of wire.md 5.1.3 is not transitive, so it is not an order (A links to B, times A=1, B=10, C=5:
A > B > C > A). The order here is transitive and agrees with every link. A post's place is

1. its effective time: the greatest timestamp among the post and all that it reaches by links,
2. its steps from there: 0 if its own timestamp is that time, else one more than the furthest link of that time,
3. its hash.

If clocks agree, this is the order by (timestamp, hash).

Ancestors are followed back to `skew_ms` before the window. The order is exact unless a post's ancestor claims a time
after the post's own and can be reached only through posts that claim to be older than the followed range.
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
    """Return `hashes`, posts of one window that begins at `start_ms`, in causal order, oldest first.

    At most `limits.MAX_CAUSAL_POSTS` posts and ancestors are kept in memory; further ancestors count as unknown.
    """
    nodes = _history(reader, hashes, start_ms - skew_ms)
    places: dict[bytes, tuple[int, int]] = {}
    for digest in hashes:
        _place(digest, nodes, places)
    return sorted(hashes, key=lambda digest: (*places.get(digest, (0, 0)), digest))


def _history(reader: Reader, hashes: list[bytes], oldest_ms: int) -> dict[bytes, Skeleton]:
    """Load the posts, then what they reach, back to `oldest_ms`, deleted posts included."""
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
    """Return the type, time, channel and links of a post that is stored, deleted or dropped, None if it is unknown."""
    post = reader.post(digest)
    if post is not None:
        return Skeleton.of(post)
    stone = reader.burial(digest)
    if stone is not None:
        return stone.skeleton
    dropped = dropped_post(reader, digest)
    return None if dropped is None else dropped.skeleton


def _place(digest: bytes, nodes: dict[bytes, Skeleton], places: dict[bytes, tuple[int, int]]) -> None:
    """Compute (effective time, steps) of a post, after those of all that it links to. Without recursion."""
    stack, entered = [digest], set[bytes]()  # what others say of deleted posts may have cycles
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
