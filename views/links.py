"""Links: the posts that link to a post, and the heads of every channel.

    !link!<linked hash>!<channel>!<linking hash>          -> empty, for post/text, post/topic, post/join and post/leave
    !link!<linked hash>!<channel>!<linking hash>!<author> -> empty, for such posts that their author deleted
    !head!<channel>!<hash>                                -> one byte, a sum: 1 if stored or deleted, 2 if linked to, 4 if deleted (fold)

A head is a post to which no post of its channel links (wire.md 5.1.2.1). Links from other channels do not count.
Otherwise posts outside a channel could remove its heads.

The fold keeps a row for unsettled posts: heads (1), missing posts that are linked to (2), and dead posts (5, 7). The
links of dead posts are kept, because histories depend on them. A stored post that is linked to is settled and has no
row. Most posts are settled. The links of a dead post have its author in the key, because other stores may claim several
authors.
"""

from binascii import hexlify
from collections.abc import Iterator
from itertools import islice
from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.local import DROPPED_HEAD, DROPPED_LINK, local_key
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Tombstone
from cablestore.index.view import Fold, View
from cablestore.protocol.body import LINKABLE_TYPES
from cablestore.protocol.keys import after_prefix, escape, unhex
from cablestore.protocol.post import Post

LINK_PREFIX: Final = b"!link!"
HEAD_PREFIX: Final = b"!head!"

_HERE = 1
_LINKED = 2
_DEAD = 4
_BYTE = tuple(bytes((bits,)) for bits in range(8))
_BITS = {byte: bits for bits, byte in enumerate(_BYTE)}
_MERGED = {a: {b: _BYTE[a[0] | b[0]] for b in _BYTE} for a in _BYTE}
_SETTLED = _BYTE[_HERE | _LINKED]


def rows(post: Post) -> list[Row]:
    """Return a row for each post to which a post links."""
    return _link_rows(post.links, post.channel_key, post.hash_hex)


def dead_rows(tombstone: Tombstone) -> list[Row]:
    """Return a row for each post to which a deleted post linked."""
    bones = tombstone.skeleton
    if bones is None or not bones.is_linkable:
        return []
    linking = b"%b!%b" % (tombstone.target_hex, hexlify(tombstone.author))
    return _link_rows(bones.links, tombstone.channel_key, linking)


def _link_rows(links: tuple[bytes, ...], channel_key: bytes, linking: bytes) -> list[Row]:
    rest = b"!%b!%b" % (channel_key, linking)
    return [(LINK_PREFIX + hexlify(linked) + rest, b"") for linked in dict.fromkeys(links)]


def parts(post: Post) -> list[Row]:
    """Return the parts that mark a post as stored, and the targets of its links as linked to."""
    return _parts(post.links, post.channel_key, post.hash_hex, _BYTE[_HERE])


def dead_parts(tombstone: Tombstone) -> list[Row]:
    """Return the parts that mark a post as deleted, and the targets of its links as linked to."""
    bones = tombstone.skeleton
    if bones is None or not bones.is_linkable:
        return []
    return _parts(bones.links, tombstone.channel_key, tombstone.target_hex, _BYTE[_HERE | _DEAD])


def _parts(links: tuple[bytes, ...], channel_key: bytes, hash_hex: bytes, own: bytes) -> list[Row]:
    prefix = HEAD_PREFIX + channel_key + b"!"
    found = [(prefix + hexlify(linked), _BYTE[_LINKED]) for linked in links]
    found.append((prefix + hash_hex, own))
    return found


def merge(a: bytes, b: bytes) -> bytes:
    """Return the union of the bits of two parts."""
    try:
        return _MERGED[a][b]
    except KeyError:
        raise _damaged() from None


def _bits(part: bytes) -> int:
    try:
        return _BITS[part]
    except KeyError:
        raise _damaged() from None


def _damaged() -> CorruptStoreError:
    return CorruptStoreError("a row of heads is damaged. Run `cablestore rebuild`")


def stored_value(part: bytes) -> bytes | None:
    """Return the part, or None if the post is settled."""
    return None if part == _SETTLED else part


def absent_part(reader: Reader, key: bytes, part: bytes) -> bytes | None:
    """Return the present value of a post without a row: settled if the post is stored in the channel, otherwise None.

    `part` will be merged into this value. If it contains the bit of a stored or deleted post, the post is new, and
    the value is None.
    """
    if part[0] & _HERE:
        return None
    channel_key, digest = _split(key)
    post = reader.post(digest)
    is_here = post is not None and post.is_linkable and post.channel_key == channel_key
    return _SETTLED if is_here else None


def refold(reader: Reader, key: bytes) -> bytes | None:
    """Compute the part again from the post, the links to it, and its tombstones. Return None if none of these exist."""
    channel_key, digest = _split(key)
    bits = 0
    if next(reader.prefix(LINK_PREFIX + digest.hex().encode() + b"!" + channel_key + b"!"), None) is not None:
        bits |= _LINKED
    post = reader.post(digest)
    if post is not None:
        bits |= _HERE if post.is_linkable and post.channel_key == channel_key else 0
    elif any(dead_parts(stone) and stone.channel_key == channel_key for stone in reader.tombstones(digest)):
        bits |= _HERE | _DEAD
    return _BYTE[bits] if bits else None


def _split(key: bytes) -> tuple[bytes, bytes]:
    channel_key, hash_hex = key[len(HEAD_PREFIX) :].split(b"!")
    return channel_key, unhex(hash_hex)


def unsettled_group(channel: str) -> bytes:
    """Return the prefix of the keys of unsettled posts in a channel, which include its heads."""
    return HEAD_PREFIX + escape(channel) + b"!"


def heads(reader: Reader, channel: str, *, with_dropped: bool = True) -> Iterator[bytes]:
    """Yield the hashes of a channel's heads, in order of hashes, then the hashes of dropped heads.

    A deleted or dropped head remains a head until a post links to it. Posts linked to by dropped posts are not heads.
    Without `with_dropped`, dropped posts are not read, because the caller knows that the store remembers none.
    """
    channel_key = escape(channel)
    has_dropped = with_dropped and next(reader.prefix(local_key(DROPPED_LINK, channel_key + b"!")), None) is not None
    for digest, bits in _unsettled(reader, channel):
        is_head = bits & _HERE and not bits & _LINKED
        if is_head and not (has_dropped and _is_linked_by_dropped(reader, channel_key, digest)):
            yield digest
    for key, _ in reader.prefix(local_key(DROPPED_HEAD, channel_key + b"!")) if with_dropped else ():
        digest_hex = key.rsplit(b"!", 1)[1]
        digest = unhex(digest_hex)
        is_linked = next(reader.prefix(LINK_PREFIX + digest_hex + b"!" + channel_key + b"!"), None) is not None
        if not is_linked and not _is_linked_by_dropped(reader, channel_key, digest):
            yield digest


def _is_linked_by_dropped(reader: Reader, channel_key: bytes, digest: bytes) -> bool:
    key = b"!".join((channel_key, digest.hex().encode(), b""))
    return next(reader.prefix(local_key(DROPPED_LINK, key)), None) is not None


def is_head(reader: Reader, post: Post) -> bool:
    """Return True if a stored post is a head of its channel."""
    return reader.get(b"%b%b!%b" % (HEAD_PREFIX, post.channel_key, post.hash_hex)) == _BYTE[_HERE]


def is_missing(reader: Reader, post: Post) -> bool:
    """Return True if the store has never had a post, but posts of the post's channel link to it."""
    return reader.get(b"%b%b!%b" % (HEAD_PREFIX, post.channel_key, post.hash_hex)) == _BYTE[_LINKED]


def missing(reader: Reader, channel: str) -> Iterator[bytes]:
    """Yield each hash to which posts of the channel link, if this store never had its post in the channel."""
    for digest, bits in _unsettled(reader, channel):
        if bits == _LINKED:
            yield digest


def _unsettled(reader: Reader, channel: str) -> Iterator[tuple[bytes, int]]:
    prefix = unsettled_group(channel)
    for key, value in reader.prefix(prefix):
        yield unhex(key[len(prefix) :]), _bits(value)


def ends(reader: Reader, channel: str, limit: int) -> list[bytes] | None:
    """Return the hashes of the channel's stored and deleted posts without a link from a post of the channel.

    Return None if the channel has more than `limit` unsettled posts, which would all be read.
    """
    prefix = unsettled_group(channel)
    rows = list(islice(reader.scan(prefix, after_prefix(prefix), at_once=limit + 1), limit + 1))
    if len(rows) > limit:
        return None
    return [unhex(key[len(prefix) :]) for key, value in rows if _bits(value) & (_HERE | _LINKED) == _HERE]


def linking(reader: Reader, digest: bytes) -> Iterator[bytes]:
    """Yield the hashes of the posts, even deleted posts, that link to a post."""
    prefix = LINK_PREFIX + digest.hex().encode() + b"!"
    found = (key[len(prefix) :].split(b"!")[1] for key, _ in reader.prefix(prefix))
    for linking_hex in dict.fromkeys(found):
        yield unhex(linking_hex)


VIEW: Final = View(
    name="links",
    version=2,
    prefixes=(LINK_PREFIX, HEAD_PREFIX),
    answers="links of new posts; causal order; missing posts",
    types=LINKABLE_TYPES,
    rows=rows,
    dead_rows=dead_rows,
    folds=(
        Fold(
            prefix=HEAD_PREFIX,
            types=LINKABLE_TYPES,
            parts=parts,
            refold=refold,
            merge=merge,
            dead_parts=dead_parts,
            stored_value=stored_value,
            absent_part=absent_part,
        ),
    ),
)
