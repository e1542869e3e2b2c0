"""The posts of one channel as nodes of a graph, whose edges are links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.index.reader import Reader
from cablestore.protocol.body import LINKABLE_TYPES, TEXT
from cablestore.protocol.keys import escape, time_of, unhex
from cablestore.protocol.post import Post
from cablestore.views import links


class LinkedPost(NamedTuple):
    """Post of a channel, and the hashes to which it links. Only a stored text has a sort time; others have None."""

    links: tuple[bytes, ...]
    sort_time: bytes | None

    @property
    def timestamp_ms(self) -> int:
        """The claimed time of a text, -1 for other posts."""
        return -1 if self.sort_time is None else time_of(self.sort_time)


class ChannelNodes:
    """Nodes of a channel in one state of a store. Each post is read once."""

    def __init__(self, reader: Reader, channel: str) -> None:
        self._reader: Final = reader
        self._channel: Final = channel
        self._nodes: Final[dict[bytes, LinkedPost | None]] = {}
        self._posts: Final[dict[bytes, Post]] = {}
        """Posts that `node` has read for their links. `post` returns them without reading them again."""
        self._link_prefix: Final = b"!" + escape(channel) + b"!"

    def post(self, digest: bytes) -> Post | None:
        """Return a post, None if it is not stored. A post that `node` has read is not read again."""
        return self._posts.pop(digest, None) or self._reader.post(digest)

    def node(self, digest: bytes) -> LinkedPost | None:
        """Return the node of a post, None if the post is unknown or in another channel."""
        if digest not in self._nodes:
            self._nodes[digest] = self._read(digest)
        return self._nodes[digest]

    def texts_before(self, digest: bytes, expected: bytes) -> set[bytes] | None:
        """Return the texts that a post links to, directly or through posts other than texts.

        The caller knows that `expected` is the hash of a text (or b""), so that post is not read. Returns None if more
        than MAX_LINKS_FOLLOWED links must be followed.
        """
        node = self.node(digest)
        if node is None or node.links == (expected,):
            return set() if node is None else {expected}
        upcoming, found, followed = list(node.links), set[bytes](), set[bytes]()
        while upcoming:
            link = upcoming.pop()
            linked = None if link == expected else self.node(link)
            if link == expected or (linked is not None and linked.sort_time is not None):
                found.add(link)
            elif linked is not None and link not in followed:
                followed.add(link)
                upcoming += linked.links
            if len(upcoming) + len(found) + len(followed) > limits.MAX_LINKS_FOLLOWED:
                return None
        return found

    def heads(self) -> set[bytes] | None:
        """Return a superset of the texts that no text links to.

        Returns None if more than MAX_ENDS_READ posts must be read, or more than MAX_LINKS_FOLLOWED links followed.
        """
        ends = links.ends(self._reader, self._channel, limits.MAX_ENDS_READ)
        found = set[bytes]()
        for end in ends or ():
            node = self.node(end)
            texts = {end} if node is not None and node.sort_time is not None else self.texts_before(end, b"")
            if texts is None:
                return None
            found |= texts
        return None if ends is None else found

    def linking(self, digest: bytes) -> Iterator[bytes]:
        """Yield the hashes of the channel's posts that link to a post."""
        prefix = links.LINK_PREFIX + digest.hex().encode() + self._link_prefix
        for key, _ in self._reader.prefix(prefix):
            yield unhex(key[len(prefix) :].split(b"!")[0])

    def _read(self, digest: bytes) -> LinkedPost | None:
        post = self._reader.post(digest)
        if post is not None:
            self._posts[digest] = post
            if post.channel != self._channel or post.type not in LINKABLE_TYPES:
                return None
            return LinkedPost(post.links, post.sort_time if post.type == TEXT else None)
        stone = self._reader.burial(digest)
        dead = None if stone is None else stone.skeleton
        is_here = dead is not None and dead.is_linkable and dead.channel == self._channel
        return LinkedPost(dead.links, None) if dead is not None and is_here else None
