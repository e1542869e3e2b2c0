"""Moderation of a store: the effect of the decisions on incoming and stored posts.

It is derived from the rows of a store: the moderation posts, including local-only posts, the post/infos, and the seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Self

from cablestore.errors import CorruptStoreError
from cablestore.index.drops import (
    CHANNEL,
    KEPT_TYPES,
    POST,
    USER,
    Drop,
    channel_key,
    dropped_post,
    is_kept,
    post_key,
    stored_drops,
    user_key,
)
from cablestore.index.local import ACT, DECIDED, DROPPED, RULES, SEED, SWEPT, UNDROP
from cablestore.index.packing import pack, unpack
from cablestore.index.reader import Reader
from cablestore.index.verdict import Verdict
from cablestore.moderation.decisions import Decisions
from cablestore.moderation.seed import Seed
from cablestore.moderation.stored import StoredActs
from cablestore.protocol.acts import Action, ModerationAct, act_of
from cablestore.protocol.body import BLOCK, MODERATION, TEXT, TOPIC, UNBLOCK, Delete, Unblock
from cablestore.protocol.keys import unescape, unhex
from cablestore.protocol.post import Post

DROP_RULES: Final = b"1"
"""Version of the rules by which drops follow from posts. Stores without a version were written when the first unblock
did not end a drop.
"""


class HiddenUser(NamedTuple):
    """A user, and the channels in which the user is hidden, None for all channels."""

    public_key: bytes
    channels: frozenset[str] | None

    def is_hidden_in(self, channel: str) -> bool:
        """Return True if the user may be hidden in a channel."""
        return self.channels is None or channel in self.channels


class _Blocking(NamedTuple):
    """A post/block, and the start of the uninterrupted block that it is part of."""

    act: ModerationAct
    since_ms: int


@dataclass(frozen=True)  # without slots, so that it can cache results that each channel and each write needs
class AppliedModeration:
    """Moderation for the user of a store in one state: decisions, and the drops that follow. Immutable."""

    own_key: bytes
    decisions: Decisions
    seed: Seed | None
    drops: dict[bytes, Drop]
    """The drops in local rows, by their keys after the name."""
    remembers: bool
    """True if the store contains remembered fields of dropped posts or their actions."""
    is_comparing: bool
    """True if remembered posts must be compared with the drops, because some may be admitted again."""
    must_be_stored: bool
    """True if the local rows of drops may differ from the decisions."""
    is_stored_swept: bool = False
    """True if the store contains the local row for `is_swept`."""

    @classmethod
    def read(cls, reader: Reader, own_key: bytes, seed: Seed | None = None) -> Self:
        """Read the moderation for a user, by default with the seed of the store."""
        seed = seed or seed_of(reader)
        decisions, drops = Decisions.read(StoredActs(reader, own_key), own_key, seed), dict(stored_drops(reader))
        remembers = any(next(reader.local_rows(name), None) is not None for name in (DROPPED, ACT))
        is_stored = reader.local(DECIDED, b"") == own_key and reader.local(RULES, b"") == DROP_RULES
        must_be_stored = not is_stored and (decisions.has_actions or bool(drops))
        is_comparing, is_stored_swept = (reader.local(name, b"") is not None for name in (UNDROP, SWEPT))
        return cls(own_key, decisions, seed, drops, remembers, is_comparing, must_be_stored, is_stored_swept)

    @cached_property
    def is_sweeping(self) -> bool:
        """True if posts must still be removed, or remembered posts must be compared with the drops."""
        return self.is_comparing or not self.is_swept

    @cached_property
    def is_swept(self) -> bool:
        """True if the posts of all drops are removed, or nothing is dropped."""
        return all(drop.place is None for drop in self.drops.values())

    @cached_property
    def hidden_users(self) -> tuple[HiddenUser, ...]:
        """The users with hidden or dropped texts, except users whose posts are all removed."""
        return tuple(HiddenUser(*each) for each in self.decisions.hidden_users().items() if not self._is_gone(each[0]))

    def _is_gone(self, user: bytes) -> bool:
        drop = self.drops.get(user_key(user))
        return drop is not None and drop.place is None and drop.until_ms is None and drop.exempt != user

    def rejection(self, post: Post) -> tuple[Verdict, ModerationAct] | None:
        """Return the verdict that rejects `post` and the action that causes it, None if the post may be stored."""
        block, is_kept_type = self._blocking(post), post.type in KEPT_TYPES
        if block is not None and is_kept_type and post.timestamp_ms > block.since_ms:
            return Verdict.BLOCKED, block.act
        act = self.dropping(post)
        if act is not None:
            return Verdict.DROPPED, act
        return None if block is None or is_kept_type else (Verdict.BLOCKED, block.act)

    def _blocking(self, post: Post) -> _Blocking | None:
        """Return the block that rejects a post (4.6, 4.6.1), None if no block does.

        A post that ends a block on the local user is not rejected by this block.
        """
        if post.author == self.own_key:
            return None
        if self.decisions.is_acted_on(post.author):
            state = self.decisions.blocks_of(post.author)
            if state.block is not None and state.since_ms is not None:
                return _Blocking(state.block, state.since_ms)
        block = self.decisions.blocks_own_user(post.author)
        if block is None or (isinstance(post.body, Unblock) and self.own_key in post.body.recipients):
            return None
        if isinstance(post.body, Delete) and block.hash in post.body.hashes:
            return None
        return _Blocking(block, block.timestamp_ms)

    def dropping(self, post: Post) -> ModerationAct | None:
        """Return the action that drops `post`: a new post is rejected, a stored post removed. None if no action does.

        Only actions of the local user remove the user's own posts.
        """
        is_own = self.own_key == post.author
        return next((act for act in self._drops_of(post) if not is_own or act.author == self.own_key), None)

    def counts_topic(self, post: Post, *, also_hidden: bool = False) -> bool:
        """Return True if a stored post/topic counts: it is not dropped, and its author is neither blocked nor hidden.

        With `also_hidden`, topics of hidden users count too.
        """
        decisions, user = self.decisions, post.author
        if self.is_sweeping and self.dropping(post) is not None:
            return False
        if user == self.own_key or not decisions.is_acted_on(user):
            return True
        is_hidden = not also_hidden and decisions.user_hidden_by(user, post.channel or "") is not None
        return not is_hidden and decisions.blocked_by(user) is None

    def _drops_of(self, post: Post) -> Iterator[ModerationAct]:
        decisions, channel = self.decisions, post.channel or ""
        if is_kept(post):
            return
        drop = decisions.user_dropped(post.author) if decisions.is_acted_on(post.author) else None
        found = [drop.act if drop is not None and drop.covers(post.timestamp_ms) else None]
        if post.is_linkable and decisions.is_acted_on(channel):
            found.append(decisions.channel_dropped_by(channel))
        if post.type in (TEXT, TOPIC) and decisions.is_acted_on(post.hash):
            found.append(decisions.post_dropped_by(post.hash, post.author, channel))
        yield from filter(None, found)

    def due(self, key: bytes, reader: Reader) -> Drop | None:
        """Return the drop that the local row with the key `key` must contain, None if this row must not exist.

        The key names a user, a channel or a post. A post that is neither stored nor remembered is assumed to be in the
        channel of the action.
        """
        until_ms: int | None = None
        place: bytes | None = b""
        if key.startswith(USER):
            drop = self.decisions.user_dropped(unhex(key[len(USER) :]))
            act, until_ms = (None, None) if drop is None else drop
        elif key.startswith(CHANNEL):
            act = self.decisions.channel_dropped_by(unescape(key[len(CHANNEL) :]))
        else:
            digest = unhex(key[len(POST) :])
            act, place = self._post_dropped_by(digest, reader), b"" if reader.post(digest) else None
        if act is None:
            return None
        return Drop(act.hash, None if act.author == self.own_key else self.own_key, until_ms, place)

    def _post_dropped_by(self, digest: bytes, reader: Reader) -> ModerationAct | None:
        post = reader.post(digest)
        if post is not None:
            of_type = post.type in (TEXT, TOPIC)
            return self.decisions.post_dropped_by(digest, post.author, post.channel or "") if of_type else None
        known = dropped_post(reader, digest)
        if known is None:
            return self.decisions.unseen_post_dropped_by(digest)
        return self.decisions.post_dropped_by(digest, known.author, known.skeleton.channel or "")

    def drop_keys(self) -> set[bytes]:
        """Return the keys of the drops in local rows, and of all drops that known actions can create."""
        return drop_keys_of(self.decisions.acts()) | self.drops.keys()


def drop_keys_of(acts: Iterable[ModerationAct]) -> set[bytes]:
    """Return the keys of the drops that these actions can create or undo."""
    keys: set[bytes] = set()
    for act in acts:
        if act.type in (BLOCK, UNBLOCK):
            keys.update(map(user_key, act.targets))
        elif act.type == MODERATION and act.what >= Action.DROP_CHANNEL and act.channel:
            keys.add(channel_key(act.channel))
        elif act.type == MODERATION and act.what >= Action.DROP_POST:
            keys.update(map(post_key, act.targets))
    return keys


def remembered_act(post: Post) -> ModerationAct | None:
    """Return the action of a dropped moderation post, without its reason. None for other posts."""
    act = act_of(post)
    return None if act is None else act._replace(reason="")


def act_key(post: Post) -> bytes:
    """Return the key, without the name, of the local row that remembers the action of a dropped user's post."""
    return post.author_hex + b"!" + post.sort_time


def seed_of(reader: Reader) -> Seed | None:
    """Return the moderation seed of a store, None if it joined without a seed."""
    value = reader.local(SEED, b"")
    if value is None:
        return None
    match unpack(value):
        case [bytes() as data, int() as given_at_ms, int() | None as revoked_at_ms, *kept]:
            seed = Seed.read(data, given_at_ms)
            return seed if revoked_at_ms is None else seed.revoked(revoked_at_ms, kept)
    raise CorruptStoreError("the stored moderation seed is damaged. Set the seed again")


def seed_value(seed: Seed) -> bytes:
    """Return the value of the seed's local row."""
    return pack([seed.write(), seed.given_at_ms, seed.revoked_at_ms, *sorted(seed.kept)])
