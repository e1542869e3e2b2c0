"""User info: what users say of themselves.

    !user!info!<pubkey>!<mono-ts>  -> hash of the post/info
    !user!latest!info!<pubkey>     -> moment (8 bytes of timestamp, 32 of hash) | msgpack list of [key, value] (fold)

The latest post/info is the whole truth about its author (wire.md 6.2.4): there is no row a property, as the seed has,
because a property that the latest leaves out is back at its default, whatever earlier ones said.
"""

from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.latest import ORDER_KEY_SIZE_BYTES, order_key
from cablestore.index.packing import pack, unpack
from cablestore.index.reader import Reader
from cablestore.index.view import Fold, View
from cablestore.protocol.body import INFO, Info
from cablestore.protocol.post import Post

PREFIX: Final = b"!user!info!"
LATEST_PREFIX: Final = b"!user!latest!info!"


def rows(post: Post) -> list[Row]:
    """Return the row of a post/info."""
    return [(b"!user!info!%b!%b" % (post.author_hex, post.sort_time), post.hash)]


def parts(post: Post) -> list[Row]:
    """Return what a post/info says."""
    pairs = post.body.pairs if isinstance(post.body, Info) else ()
    return [(LATEST_PREFIX + post.author_hex, order_key(post.timestamp_ms, post.hash) + pack(pairs))]


def refold(reader: Reader, key: bytes) -> bytes | None:
    """Find the latest post/info that is left."""
    row = reader.last(PREFIX + key[len(LATEST_PREFIX) :] + b"!")
    post = None if row is None else reader.post(row[1])
    return None if post is None else parts(post)[0][1]


def latest(reader: Reader, author: bytes) -> tuple[Info, bytes] | None:
    """Return what a user says of itself and the hash of the post/info that says it, None where none does."""
    value = reader.get(LATEST_PREFIX + author.hex().encode())
    if value is None:
        return None
    try:
        info = Info(tuple((str(key), bytes(data)) for key, data in unpack(value[ORDER_KEY_SIZE_BYTES:])))
    except (TypeError, ValueError):
        raise CorruptStoreError(f"the info of {author.hex()} is damaged. Run `cablestore rebuild`") from None
    return info, value[8:ORDER_KEY_SIZE_BYTES]


def latest_hash(reader: Reader, author: bytes) -> bytes | None:
    """Return the hash of a user's latest post/info, None without one."""
    value = reader.get(LATEST_PREFIX + author.hex().encode())
    return None if value is None else value[8:ORDER_KEY_SIZE_BYTES]


def accepts_roles(reader: Reader, author: bytes) -> bool:
    """Tell whether a user lets others give it roles, as all do who say nothing of it (moderation.md 4.2.4)."""
    said = latest(reader, author)
    return said is None or said[0].accepts_role


VIEW: Final = View(
    name="user_info",
    version=1,
    prefixes=(PREFIX, LATEST_PREFIX),
    answers="Channel State Request (infos); Moderation State Request (who takes roles); names",
    types=frozenset({INFO}),
    rows=rows,
    folds=(Fold(prefix=LATEST_PREFIX, types=frozenset({INFO}), parts=parts, refold=refold),),
)
