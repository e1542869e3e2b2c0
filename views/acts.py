"""Acts: the moderation actions from which this store decides about roles, hiding, dropping and blocking.

    !acts!role!<pubkey>!<mono-ts>            -> record of a post/role of this author
    !acts!action!<pubkey>!<mono-ts>          -> record of a post/moderation, post/block or post/unblock of this author
    !acts!block!<target>!<mono-ts>!<pubkey>  -> record of a post/block or post/unblock on this user, one row per target
    !acts!consent!<pubkey>!<mono-ts>         -> msgpack [hash, true if its author accepts roles], for each post/info

The rows of the view `moderation` are in order of time, as peers request them. The rows here are in order of authors,
because an opened store only reads the actions of users who may have authority. A record contains all data for a
decision, so posts are not read:

    author u8[32] | timestamp u64 | number of targets u32 | targets u8[32] each |
    msgpack [hash, type, number, channel, reason, true if it is private]

Local-only posts (moderation.md 4.5) have no rows. They are few, and are read from their sealed form.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.consents import remembered_consents
from cablestore.index.database import Row
from cablestore.index.packing import pack, unpack
from cablestore.index.reader import Reader
from cablestore.index.view import View
from cablestore.protocol.acts import Consent, ModerationAct, act_of, consent_of, declines_roles, turning_points
from cablestore.protocol.body import BLOCK, INFO, MODERATION_TYPES, ROLE, UNBLOCK
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import SORT_TIME_SIZE_BYTES, time_of
from cablestore.protocol.post import Post

ROLE_PREFIX: Final = b"!acts!role!"
ACTION_PREFIX: Final = b"!acts!action!"
BLOCK_PREFIX: Final = b"!acts!block!"
CONSENT_PREFIX: Final = b"!acts!consent!"

_HEAD: Final = struct.Struct(">32sQI")
_HEAD_SIZE: Final = _HEAD.size
_COUNT_AT: Final = _HEAD_SIZE - 4
_ONE_END: Final = _HEAD_SIZE + HASH_SIZE_BYTES
"""Offset in a record at which the first target ends. Most actions have only one target."""


def rows(post: Post) -> list[Row]:
    """Return the row of a post/info or of an action, and a row for each user that the action blocks or unblocks.

    Other posts and local-only posts have no rows.
    """
    said = consent_of(post)
    if said is not None:
        return [(CONSENT_PREFIX + post.author_hex + b"!" + post.sort_time, pack((said.hash, said.accepts)))]
    act = act_of(post)
    if act is None or act.is_private:
        return []
    record = record_of(act)
    prefix = ROLE_PREFIX if act.type == ROLE else ACTION_PREFIX
    made = [(prefix + post.author_hex + b"!" + post.sort_time, record)]
    if act.type in (BLOCK, UNBLOCK):
        ending = b"!" + post.sort_time + b"!" + post.author_hex
        made += [(BLOCK_PREFIX + target.hex().encode() + ending, record) for target in act.targets]
    return made


# --- records: actions as bytes ---------------------------------------------------------------------


def record_of(act: ModerationAct) -> bytes:
    """Return the record of an action."""
    head = _HEAD.pack(act.author, act.timestamp_ms, len(act.targets))
    rest = pack((act.hash, act.type, act.what, act.channel, act.reason, act.is_private))
    return b"".join((head, *act.targets, rest))


def act_in(record: bytes) -> ModerationAct:
    """Return the action in a record."""
    try:
        author, timestamp_ms, count = _HEAD.unpack_from(record)
        end = _HEAD_SIZE + count * HASH_SIZE_BYTES
        digest, post_type, what, channel, reason, is_private = unpack(record[end:])
    except (TypeError, ValueError, struct.error):
        raise _damaged() from None
    return ModerationAct(
        author, digest, timestamp_ms, post_type, channel, what, _targets(record, end), reason, is_private
    )


def targets_in(record: bytes) -> tuple[bytes, ...]:
    """Return the targets of the action in a record. This is fast, because opening a store calls it for every action."""
    if len(record) <= _HEAD_SIZE:
        raise _damaged()
    count = int.from_bytes(record[_COUNT_AT:_HEAD_SIZE])
    if count == 1:
        return (record[_HEAD_SIZE:_ONE_END],)
    end = _HEAD_SIZE + count * HASH_SIZE_BYTES
    if end > len(record):
        raise _damaged()
    return _targets(record, end)


def _targets(record: bytes, end: int) -> tuple[bytes, ...]:
    return tuple([record[at : at + HASH_SIZE_BYTES] for at in range(_HEAD_SIZE, end, HASH_SIZE_BYTES)])


def _damaged() -> CorruptStoreError:
    return CorruptStoreError("a row of a moderation action is damaged. Run `cablestore rebuild`")


# --- queries ---------------------------------------------------------------------------------------


def roles_of(reader: Reader, author: bytes) -> Iterator[ModerationAct]:
    """Yield each post/role by an author, oldest first, without local-only posts."""
    for _, record in reader.prefix(ROLE_PREFIX + author.hex().encode() + b"!"):
        yield act_in(record)


def actions_of(reader: Reader, author: bytes) -> Iterator[bytes]:
    """Yield the records of an author's actions, oldest first, without local-only posts."""
    for _, record in reader.prefix(ACTION_PREFIX + author.hex().encode() + b"!"):
        yield record


def blocks_on(reader: Reader, user: bytes) -> Iterator[ModerationAct]:
    """Yield each post/block and post/unblock that targets a user, in order of time, without local-only posts."""
    for _, record in reader.prefix(BLOCK_PREFIX + user.hex().encode() + b"!"):
        yield act_in(record)


def consents_of(reader: Reader, user: bytes) -> Iterator[Consent]:
    """Yield all statements of a user about accepting roles, oldest first."""
    for key, value in reader.prefix(CONSENT_PREFIX + user.hex().encode() + b"!"):
        yield _consent_in(user, key, value)


def _consent_in(user: bytes, key: bytes, value: bytes) -> Consent:
    try:
        digest, accepts = unpack(value)
    except (TypeError, ValueError):
        raise CorruptStoreError("a row of a user's consent to roles is damaged. Run `cablestore rebuild`") from None
    return Consent(user, digest, time_of(key[-SORT_TIME_SIZE_BYTES:]), accepts)


def all_consents_of(reader: Reader, user: bytes) -> Iterator[Consent]:
    """Yield all statements of a user about accepting roles, including statements whose post/infos are not stored."""
    held = {said.hash: said for said in consents_of(reader, user)}
    yield from held.values()
    yield from (said for said in remembered_consents(reader, user) if said.hash not in held)


def has_declined(reader: Reader, user: bytes, remembered: Iterable[Consent] | None = None) -> bool:
    """Return True if a user declines roles now.

    `remembered` contains the user's statements whose post/infos are not stored. If it is None, they are read from the
    store. Stored post/infos are signed, so only the latest of them matters.
    """
    remembered = remembered_consents(reader, user) if remembered is None else remembered
    latest = reader.last(CONSENT_PREFIX + user.hex().encode() + b"!")
    held = [] if latest is None else [_consent_in(user, *latest)]
    return declines_roles([*held, *remembered])


def may_change_roles(reader: Reader, info: Post) -> bool:
    """Return True if a stored post/info may change roles.

    Roles may change if the author starts or stops declining roles with this post/info. Roles may also change if the
    post/info is not the author's latest post/info.
    """
    said = consent_of(info)
    if said is None:
        return False
    prefix = CONSENT_PREFIX + info.author_hex + b"!"
    held = [_consent_in(said.user, *row) for row in islice(reader.prefix(prefix, reverse=True), 2)]
    points = turning_points([*held, *remembered_consents(reader, said.user)])
    return held[0].hash != said.hash or (bool(points) and points[-1].hash == said.hash)


def roles_for(reader: Reader, user: bytes) -> Iterator[ModerationAct]:
    """Yield each post/role that gives a role to a user, without local-only posts. This reads the roles of all users."""
    for _, record in reader.prefix(ROLE_PREFIX):
        if user in targets_in(record):
            yield act_in(record)


VIEW: Final = View(
    name="acts",
    version=1,
    prefixes=(ROLE_PREFIX, ACTION_PREFIX, BLOCK_PREFIX, CONSENT_PREFIX),
    answers="roles; hidden, dropped and blocked users, channels and posts",
    types=MODERATION_TYPES | {INFO},
    rows=rows,
)
