"""User info: the properties that users set for themselves.

    !user!info!<pubkey>!<mono-ts>  -> hash of the post/info
    !user!latest!info!<pubkey>     -> moment (timestamp u64, hash u8[32]) | msgpack list of [key, value] (fold)

The latest post/info replaces all earlier post/infos (wire.md 6.2.4). A property that it omits has its default again. So
properties do not have separate rows, unlike in cable-core.
"""

from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.packing import pack, unpack
from cablestore.index.reader import Reader
from cablestore.index.view import View, latest_fold, split_latest
from cablestore.protocol.body import INFO, Info
from cablestore.protocol.post import Post

PREFIX: Final = b"!user!info!"
LATEST_PREFIX: Final = b"!user!latest!info!"


def rows(post: Post) -> list[Row]:
    """Return the row of a post/info."""
    return [(b"!user!info!%b!%b" % (post.author_hex, post.sort_time), post.hash)]


def author_of(post: Post) -> bytes:
    """Return the post's author as a key part."""
    return post.author_hex


def info_of(post: Post) -> bytes:
    """Return the encoded properties of a post/info."""
    return pack(post.body.pairs if isinstance(post.body, Info) else ())


def latest(reader: Reader, author: bytes) -> tuple[Info, bytes] | None:
    """Return the latest properties of a user and the hash of their post/info, None if the user has no post/info."""
    value = reader.get(LATEST_PREFIX + author.hex().encode())
    if value is None:
        return None
    digest, packed = split_latest(value)
    try:
        info = Info(tuple((str(key), bytes(data)) for key, data in unpack(packed)))
    except (TypeError, ValueError):
        raise CorruptStoreError(f"the info of {author.hex()} is damaged. Run `cablestore rebuild`") from None
    return info, digest


def latest_hash(reader: Reader, author: bytes) -> bytes | None:
    """Return the hash of a user's latest post/info, None if the user has no post/info."""
    value = reader.get(LATEST_PREFIX + author.hex().encode())
    return None if value is None else split_latest(value)[0]


VIEW: Final = View(
    name="user_info",
    version=1,
    prefixes=(PREFIX, LATEST_PREFIX),
    answers="Channel State Request (infos); names",
    types=frozenset({INFO}),
    rows=rows,
    folds=(latest_fold(prefix=LATEST_PREFIX, types=frozenset({INFO}), group=author_of, says=info_of, rows=PREFIX),),
)
