"""Moderation: the roles, actions and blocks for requests of peers.

    !moderation!block!<mono-ts>                                   -> hash of the post/block or post/unblock
    !moderation!state!<channel>!<mono-ts>!<pubkey>!<act>          -> hash of the post/role or post/moderation, then its targets
    !moderation!about!<channel>!<pubkey>!<act>!<target>!<mono-ts> -> empty, for the same posts, one row per target

An empty channel is the whole cabal (moderation.md 4.1). `<act>` is the digit of the action, or `r` for a role. A target
is the 32-byte key of a user or the hash of a post. It is empty if the action is on the channel itself.

The rows of the first two kinds are in order of time, so that all actions since a time are one range. The rows of the
third kind show in one step whether a post is still relevant. A role is relevant until its author gives the recipient
another role in that channel (4.2.3). An action is relevant until its author undoes it (4.4.2).

Local-only posts (4.5) have no rows, so they are not sent to peers. An action that a local-only post undoes for its
author remains relevant for other users. If the action were missing, peers could infer the local-only post.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.index.view import View
from cablestore.limits import MAX_TIMESTAMP_MS
from cablestore.protocol.body import MODERATION_TYPES, Block, Moderation, Role, Unblock
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import after_prefix, escape, time_floor
from cablestore.protocol.post import Post
from cablestore.views.acts import has_declined

BLOCK_PREFIX: Final = b"!moderation!block!"
STATE_PREFIX: Final = b"!moderation!state!"
ABOUT_PREFIX: Final = b"!moderation!about!"

_ROLE = b"r"
_UNDONE_BY = {_ROLE: _ROLE} | {b"%d" % action: b"%d" % (action ^ 1) for action in range(8)}
_FIRST_ON_CHANNELS = 6
_PARTS_OF_ACT = 3
_CHANNEL_ITSELF = (b"",)


@dataclass(frozen=True, slots=True)
class Act:
    """Action of a post/role or post/moderation: the post's hash, and the data that decides its relevance."""

    hash: bytes
    channel_key: bytes
    sort_time: bytes
    author_hex: bytes
    kind: bytes
    targets: tuple[bytes, ...]


def act_of(post: Post) -> Act | None:
    """Return the action of a post/role or post/moderation, None for other posts and for local-only posts."""
    if post.is_local_only:
        return None
    targets: tuple[bytes, ...] = ()
    match post.body:
        case Role(recipient=recipient):
            kind, targets = _ROLE, (recipient,)
        case Moderation(action=action, recipients=recipients):
            kind = b"%d" % action
            if action < _FIRST_ON_CHANNELS:
                targets = tuple(dict.fromkeys(recipients))
        case _:
            return None
    return Act(post.hash, post.channel_key, post.sort_time, post.author_hex, kind, targets or _CHANNEL_ITSELF)


def rows(post: Post) -> list[Row]:
    """Return one row for a post/block or post/unblock, several rows for a post/role or post/moderation.

    Local-only posts have no rows.
    """
    if isinstance(post.body, Block | Unblock) and not post.is_local_only:
        return [(BLOCK_PREFIX + post.sort_time, post.hash)]
    act = act_of(post)
    if act is None:
        return []
    state = STATE_PREFIX + b"!".join((act.channel_key, act.sort_time, act.author_hex, act.kind))
    about = [(_about(act, act.kind, target) + act.sort_time, b"") for target in act.targets]
    return [(state, act.hash + b"".join(act.targets)), *about]


def _about(act: Act, kind: bytes, target: bytes) -> bytes:
    return ABOUT_PREFIX + b"!".join((act.channel_key, act.author_hex, kind, target.hex().encode(), b""))


def blocks(reader: Reader) -> Iterator[bytes]:
    """Yield the hashes of every post/block and post/unblock, oldest first."""
    for _, digest in reader.prefix(BLOCK_PREFIX):
        yield digest


def acts(reader: Reader, channel: str, oldest_ms: int = 0) -> Iterator[Act]:
    """Yield the actions in a channel with timestamp >= oldest, oldest first. The channel "" means the whole cabal."""
    prefix = STATE_PREFIX + escape(channel) + b"!"
    start = prefix + time_floor(min(oldest_ms, MAX_TIMESTAMP_MS + 1))
    for key, value in reader.scan(start, after_prefix(prefix)):
        parts = key[len(prefix) :].split(b"!")
        if len(parts) != _PARTS_OF_ACT or parts[-1] not in _UNDONE_BY or not value or len(value) % HASH_SIZE_BYTES:
            raise CorruptStoreError("a row of moderation is damaged. Run `cablestore rebuild`")
        sort_time, author_hex, kind = parts
        digest, *targets = (value[at : at + HASH_SIZE_BYTES] for at in range(0, len(value), HASH_SIZE_BYTES))
        yield Act(digest, escape(channel), sort_time, author_hex, kind, tuple(targets) or _CHANNEL_ITSELF)


def is_relevant(reader: Reader, act: Act) -> bool:
    """Return True if an action is relevant for any of its targets. A role requires that its recipient accepts roles."""
    if act.kind == _ROLE and has_declined(reader, act.targets[0]):
        return False
    return not all(_is_undone(reader, act, target) for target in act.targets)


def _is_undone(reader: Reader, act: Act, target: bytes) -> bool:
    latest = reader.last(_about(act, _UNDONE_BY[act.kind], target))
    return latest is not None and latest[0].rsplit(b"!", 1)[1] > act.sort_time


VIEW: Final = View(
    name="moderation",
    version=1,
    prefixes=(BLOCK_PREFIX, STATE_PREFIX, ABOUT_PREFIX),
    answers="Moderation State Request",
    types=MODERATION_TYPES,
    rows=rows,
)
