"""Acts: what is decided from in this store about roles, hiding, dropping and blocking.

    !acts!by!<pubkey>!<mono-ts>                  -> msgpack [hash, type, number, channel, reason, targets] of an act of this author
    !acts!block!<target>!<mono-ts>!<pubkey>      -> the same of a post/block or post/unblock on this user, a row a target
    !acts!consent!<pubkey>!<mono-ts>             -> msgpack [hash, whether its author takes roles], for each post/info

The rows of the view `moderation` are in the order in which peers ask. These are by author, because only acts of those
who may have authority count: nobody else's are read when a store is opened. They have all that a decision needs, so no
post is read or decoded.

Local-only posts (moderation.md 4.5) have no rows. There are few, and they are read from where they are sealed.
"""

from collections.abc import Iterator
from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.packing import pack, unpack
from cablestore.index.reader import Reader
from cablestore.index.view import View
from cablestore.protocol.acts import Consent, ModerationAct, act_of, consent_of
from cablestore.protocol.body import BLOCK, INFO, MODERATION_TYPES, UNBLOCK
from cablestore.protocol.crypto import HASH_SIZE_BYTES, KEY_SIZE_BYTES
from cablestore.protocol.keys import SORT_TIME_SIZE_BYTES, TIME_DIGITS
from cablestore.protocol.post import Post

BY_PREFIX: Final = b"!acts!by!"
BLOCK_PREFIX: Final = b"!acts!block!"
CONSENT_PREFIX: Final = b"!acts!consent!"

_AFTER_TIME: Final = TIME_DIGITS - SORT_TIME_SIZE_BYTES
_KEY_DIGITS: Final = 2 * KEY_SIZE_BYTES


def rows(post: Post) -> list[Row]:
    """Return the row of a post/info, or of an act, with one more for each user whom it blocks or unblocks."""
    said = consent_of(post)
    if said is not None:
        return [(CONSENT_PREFIX + post.author_hex + b"!" + post.sort_time, pack((said.hash, said.accepts)))]
    act = act_of(post)
    if act is None or act.is_private:
        return []
    value = pack((act.hash, act.type, act.what, act.channel, act.reason, b"".join(act.targets)))
    made = [(BY_PREFIX + post.author_hex + b"!" + post.sort_time, value)]
    if act.type in (BLOCK, UNBLOCK):
        ending = b"!" + post.sort_time + b"!" + post.author_hex
        made += [(BLOCK_PREFIX + target.hex().encode() + ending, value) for target in act.targets]
    return made


def by_author(reader: Reader, author: bytes) -> Iterator[ModerationAct]:
    """Yield the acts of an author that are not local-only, oldest first."""
    for key, value in reader.prefix(BY_PREFIX + author.hex().encode() + b"!"):
        yield _act(author, key[-SORT_TIME_SIZE_BYTES:_AFTER_TIME], value)


def blocks_on(reader: Reader, user: bytes) -> Iterator[ModerationAct]:
    """Yield each post/block and post/unblock on a user, oldest first."""
    prefix = BLOCK_PREFIX + user.hex().encode() + b"!"
    for key, value in reader.prefix(prefix):
        author = bytes.fromhex(key[-_KEY_DIGITS:].decode())
        yield _act(author, key[len(prefix) : len(prefix) + TIME_DIGITS], value)


def _act(author: bytes, time_digits: bytes, value: bytes) -> ModerationAct:
    try:
        digest, post_type, what, channel, reason, targets = unpack(value)
        if len(targets) <= HASH_SIZE_BYTES:
            each = (targets,) if targets else ()
        else:
            each = tuple(targets[at : at + HASH_SIZE_BYTES] for at in range(0, len(targets), HASH_SIZE_BYTES))
        return ModerationAct(author, digest, int(time_digits), post_type, channel, what, each, reason)
    except (TypeError, ValueError):
        raise CorruptStoreError("a row of an act of moderation is damaged. Run `cablestore rebuild`") from None


def consents_of(reader: Reader, user: bytes) -> Iterator[Consent]:
    """Yield what a user ever said of taking roles, oldest first."""
    for key, value in reader.prefix(CONSENT_PREFIX + user.hex().encode() + b"!"):
        try:
            digest, accepts = unpack(value)
        except (TypeError, ValueError):
            raise CorruptStoreError("a row of who takes roles is damaged. Run `cablestore rebuild`") from None
        yield Consent(user, digest, int(key[-SORT_TIME_SIZE_BYTES:_AFTER_TIME]), accepts)


VIEW: Final = View(
    name="acts",
    version=1,
    prefixes=(BY_PREFIX, BLOCK_PREFIX, CONSENT_PREFIX),
    answers="what is hidden, dropped and blocked here, and who has which role",
    types=MODERATION_TYPES | {INFO},
    rows=rows,
)
