"""Channel membership: the present members of a channel (fold over channel state).

    !channel!member!<channel>!<pubkey> -> moment, type byte | moment, type byte
    !channel!members!<channel>         -> u64, number of members (census)

A moment is 8 bytes of timestamp and 32 of hash, big-endian, so that the greater bytes are the later post. The first
pair is the latest of the user's joins, leaves, texts and topics in the channel. Only a leave ends membership. The
second pair is the latest join or leave, for channel state answers, or zeros if neither exists.

cable-core stores 1 or 0, and the last arrival counts. Because the value contains the moment, the newest post counts, in
any order of arrival.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.latest import ORDER_KEY_SIZE_BYTES, order_key, order_key_of_row
from cablestore.index.reader import Reader
from cablestore.index.view import Census, Fold, View, decode_number
from cablestore.protocol.body import JOIN, LEAVE, MEMBERSHIP_TYPES
from cablestore.protocol.keys import escape, unhex
from cablestore.protocol.post import Post
from cablestore.reprs import hex_repr
from cablestore.views import channel_state

PREFIX: Final = b"!channel!member!"
COUNT_PREFIX: Final = b"!channel!members!"
_SIZE = ORDER_KEY_SIZE_BYTES + 1
_NO_ANNOUNCEMENT = bytes(_SIZE)
_TYPE = {post_type: bytes((post_type,)) for post_type in MEMBERSHIP_TYPES}
_LEFT = _TYPE[LEAVE]


@dataclass(frozen=True, slots=True)
class Membership:
    """Relation of a user to a channel.

    `announced_by` is the hash of the latest post/join or post/leave, if any. `has_joined` is true if it is a post/join.
    """

    author: bytes
    is_member: bool
    announced_by: bytes | None
    has_joined: bool

    __repr__ = hex_repr


def parts(post: Post) -> list[Row]:
    """Return the part of a post for its author's membership."""
    part = _part(post.type, order_key(post.timestamp_ms, post.hash))
    return [(b"!channel!member!%b!%b" % (post.channel_key, post.author_hex), part)]


def merge(a: bytes, b: bytes) -> bytes:
    """Return the later of the two first pairs, then the later of the two second pairs."""
    return max(a[:_SIZE], b[:_SIZE]) + max(a[_SIZE:], b[_SIZE:])


def refold(reader: Reader, key: bytes) -> bytes | None:
    """Merge the parts of the latest remaining post of each type. Return None if no posts remain."""
    found = None
    for post_type, row in channel_state.latest_of_types(reader, key[len(PREFIX) :]):
        part = _part(post_type, order_key_of_row(row))
        found = part if found is None else merge(found, part)
    return found


def _part(post_type: int, when: bytes) -> bytes:
    says = when + _TYPE[post_type]
    return says + (says if post_type in (JOIN, LEAVE) else _NO_ANNOUNCEMENT)


def is_member(value: bytes) -> bool:
    """Return True if the row with this value describes a member: the user's latest post is not a post/leave."""
    return value[_SIZE - 1 : _SIZE] != _LEFT


def _decode(author: bytes, value: bytes) -> Membership:
    if len(value) != 2 * _SIZE:
        raise CorruptStoreError(f"the membership of {author.hex()} is damaged. Run `cablestore rebuild`")
    announced = value[_SIZE:]
    return Membership(
        author=author,
        is_member=is_member(value),
        announced_by=None if announced == _NO_ANNOUNCEMENT else announced[8:ORDER_KEY_SIZE_BYTES],
        has_joined=announced != _NO_ANNOUNCEMENT and announced[-1:] == _TYPE[JOIN],
    )


def of_channel(reader: Reader, channel: str) -> Iterator[Membership]:
    """Yield the membership of each user that ever joined, wrote to or left the channel, in order of public keys."""
    prefix = PREFIX + escape(channel) + b"!"
    for key, value in reader.prefix(prefix):
        yield _decode(unhex(key[len(prefix) :]), value)


def of_user(reader: Reader, channel: str, author: bytes) -> Membership | None:
    """Return the membership of one user, None if it never joined, wrote to or left the channel."""
    value = reader.get(PREFIX + escape(channel) + b"!" + author.hex().encode())
    return None if value is None else _decode(author, value)


def latest_ms(reader: Reader, channel: str, author: bytes) -> int | None:
    """Return the time of a user's latest post in a channel, None without such a post."""
    value = reader.get(PREFIX + escape(channel) + b"!" + author.hex().encode())
    return None if value is None else int.from_bytes(value[:8])


def count_in_order(reader: Reader) -> Callable[[str], int]:
    """Return a function that counts the members of a channel. Pass channels in the order of their names' bytes."""
    value = reader.in_order(COUNT_PREFIX)
    return lambda channel: decode_number(value(escape(channel)))


VIEW: Final = View(
    name="membership",
    version=2,
    prefixes=(PREFIX, COUNT_PREFIX),
    answers="Channel State Request (joins and leaves); members and their number; joined channels",
    folds=(
        Fold(
            prefix=PREFIX,
            types=MEMBERSHIP_TYPES,
            parts=parts,
            refold=refold,
            merge=merge,
            census=Census(prefix=COUNT_PREFIX, counts=is_member),
        ),
    ),
)
