"""Judgement: decisions for the user of a store, and what they mean for the posts that come and for those that are here.

It is made from what a reader finds: posts of moderation, the local-only ones too, post/infos, the seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

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
    user_key,
)
from cablestore.index.local import ACT, CONSENT, SEED, local_key
from cablestore.index.packing import pack, unpack
from cablestore.index.reader import Reader
from cablestore.index.verdict import Verdict
from cablestore.moderation.decisions import Decisions
from cablestore.moderation.seed import Seed
from cablestore.moderation.stored import StoredActs
from cablestore.protocol.acts import Action, Consent, ModerationAct, act_of
from cablestore.protocol.body import BLOCK, MODERATION, ROLE, TEXT, TOPIC, UNBLOCK, Delete, Unblock
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import time_of, unescape
from cablestore.protocol.post import Post
from cablestore.views.acts import act_in


class HeldHere(StoredActs):
    """Acts that a reader finds, those of dropped users, and what users said of roles in dropped post/infos."""

    def __init__(self, reader: Reader, own_key: bytes) -> None:
        super().__init__(reader, own_key)
        self._rows = reader

    def roles_of(self, author: bytes) -> Iterator[ModerationAct]:
        """Yield each post/role of one author."""
        yield from super().roles_of(author)
        yield from (act_in(record) for record in self._remembered(author) if act_in(record).type == ROLE)

    def actions_of(self, author: bytes) -> Iterator[bytes]:
        """Yield the records of one author's other acts."""
        yield from super().actions_of(author)
        yield from (record for record in self._remembered(author) if act_in(record).type != ROLE)

    def blocks_on(self, user: bytes) -> Iterator[ModerationAct]:
        """Yield each post/block and post/unblock by which anybody blocks or unblocks this user."""
        yield from super().blocks_on(user)
        acts = (act_in(record) for record in self._remembered())
        yield from (act for act in acts if act.type in (BLOCK, UNBLOCK) and user in act.targets)

    def _remembered(self, author: bytes | None = None) -> Iterator[bytes]:
        """Yield the records of the acts of a dropped user, or of all, that are not stored."""
        part = b"" if author is None else author.hex().encode() + b"!"
        for _, record in self._rows.prefix(local_key(ACT, part)):
            if self._rows.post(act_in(record).hash) is None:
                yield record

    def consents_of(self, user: bytes) -> Iterator[Consent]:
        """Yield what a user ever said of taking roles."""
        held = list(super().consents_of(user))
        yield from held
        known = {consent.hash for consent in held}
        yield from (consent for consent in remembered_consents(self._rows, user) if consent.hash not in known)


class HiddenUser(NamedTuple):
    """A user, and the channels where it is hidden; None for all."""

    public_key: bytes
    channels: frozenset[str] | None

    def is_hidden_in(self, channel: str) -> bool:
        """Tell whether the user may be hidden in a channel."""
        return self.channels is None or channel in self.channels


@dataclass(frozen=True)  # without slots, so that it can keep what is asked of it for each channel and each write
class Judgement:
    """Decisions, and what goes with them. It never changes."""

    own_key: bytes
    decisions: Decisions
    seed: Seed | None
    drops: dict[bytes, Drop]
    """The drops in local rows, by their keys after the name."""
    remembers: bool
    """Whether the store remembers dropped posts."""
    is_comparing: bool
    """Whether remembered posts must be compared with the drops, because some may be welcome again."""
    must_be_stored: bool
    """Whether the local rows of drops may differ from what the decisions say."""

    @property
    def is_sweeping(self) -> bool:
        """Whether posts must still be removed, or remembered ones compared."""
        return self.is_comparing or self._is_removing

    @property
    def is_swept(self) -> bool:
        """Whether the posts of all drops are removed, or nothing is dropped."""
        return not self._is_removing

    @cached_property
    def _is_removing(self) -> bool:
        return any(drop.place is not None for drop in self.drops.values())

    @cached_property
    def hidden_users(self) -> tuple[HiddenUser, ...]:
        """The users some of whose texts are hidden or dropped, without those of whom no post is left here."""
        return tuple(HiddenUser(*each) for each in self.decisions.hidden_users().items() if not self._is_gone(each[0]))

    def _is_gone(self, user: bytes) -> bool:
        drop = self.drops.get(user_key(user))
        return drop is not None and drop.place is None and drop.until_ms is None and drop.spared != user

    def refusal(self, post: Post) -> tuple[Verdict, ModerationAct] | None:
        """Return why a post is not stored, and the act that this follows from; None if it may be stored."""
        block, since_ms = self._blocking(post)
        if block is not None and post.type in KEPT_TYPES and post.timestamp_ms > since_ms:
            return Verdict.BLOCKED, block
        act = self.dropping(post)
        if act is not None:
            return Verdict.DROPPED, act
        return None if block is None or post.type in KEPT_TYPES else (Verdict.BLOCKED, block)

    def _blocking(self, post: Post) -> tuple[ModerationAct | None, int]:
        """Return the block for which posts of an author are not stored, and its time (4.6, 4.6.1).

        An unblock of the own user ends a block on it, so it is stored.
        """
        if post.author == self.own_key:
            return None, 0
        if self.decisions.is_acted_on(post.author):
            state = self.decisions.blocks_of(post.author)
            if state.block is not None and state.since_ms is not None:
                return state.block, state.since_ms
        block = self.decisions.blocks_own_user(post.author)
        if block is None or (isinstance(post.body, Unblock) and self.own_key in post.body.recipients):
            return None, 0
        if isinstance(post.body, Delete) and block.hash in post.body.hashes:
            return None, 0
        return block, block.timestamp_ms

    def dropping(self, post: Post) -> ModerationAct | None:
        """Return the act for which a post is not stored, or is removed. Own posts are removed by own acts alone."""
        act = self._dropped_by(post)
        return act if act is None or self.own_key != post.author or act.author == self.own_key else None

    def _dropped_by(self, post: Post) -> ModerationAct | None:
        decisions, channel = self.decisions, post.channel or ""
        if is_kept(post):
            return None
        drop = decisions.user_dropped(post.author) if decisions.is_acted_on(post.author) else None
        if drop is not None and drop.covers(post.timestamp_ms):
            return drop.act
        act = decisions.channel_dropped_by(channel) if post.is_linkable and decisions.is_acted_on(channel) else None
        if act is None and post.type in (TEXT, TOPIC) and decisions.is_acted_on(post.hash):
            act = decisions.post_dropped_by(post.hash, post.author, channel)
        return act

    def due(self, key: bytes, reader: Reader) -> Drop | None:
        """Return the drop that the local row of a user, channel or post must hold, None if there must be none.

        A post has a row only if it is stored or remembered.
        """
        until_ms = None
        if key.startswith(USER):
            drop = self.decisions.user_dropped(bytes.fromhex(key[len(USER) :].decode()))
            act, until_ms = (None, None) if drop is None else drop
        elif key.startswith(CHANNEL):
            act = self.decisions.channel_dropped_by(unescape(key[len(CHANNEL) :]))
        else:
            act = self._post_dropped_by(bytes.fromhex(key[len(POST) :].decode()), reader)
        if act is None:
            return None
        return Drop(act.hash, None if act.author == self.own_key else self.own_key, until_ms)

    def _post_dropped_by(self, digest: bytes, reader: Reader) -> ModerationAct | None:
        post = reader.post(digest)
        if post is not None:
            of_type = post.type in (TEXT, TOPIC)
            return self.decisions.post_dropped_by(digest, post.author, post.channel or "") if of_type else None
        known = dropped_post(reader, digest)
        if known is None:
            return None
        return self.decisions.post_dropped_by(digest, known.author, known.skeleton.channel or "")

    def drop_keys(self) -> set[bytes]:
        """Return the keys of all drops that there are or may be."""
        return drop_keys_of(self.decisions.acts()) | self.drops.keys()


class Place(NamedTuple):
    """A place between two writes: the decisions there, None in a store without moderation, and the latest event."""

    judgement: Judgement | None
    sequence: int


def drop_keys_of(acts: Iterable[ModerationAct]) -> set[bytes]:
    """Return the keys of the drops that some actions can make or undo."""
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
    """Return what is remembered of a dropped moderation post, None for other posts: all but the reason."""
    act = act_of(post)
    return None if act is None else act._replace(reason="")


def act_key(post: Post) -> bytes:
    """Return the key of the local row of a moderation post of a dropped user, after the name."""
    return post.author_hex + b"!" + post.sort_time


def consent_key(consent: Consent, post: Post) -> bytes:
    """Return the key of the local row of what a post/info says of roles, after the name."""
    return consent.user.hex().encode() + b"!" + post.sort_time


def consent_value(consent: Consent) -> bytes:
    """Return the value of that row."""
    return consent.hash + bytes((consent.accepts,))


def remembered_consents(reader: Reader, user: bytes) -> Iterator[Consent]:
    """Yield what the refused and dropped post/infos of a user say of roles."""
    prefix = user.hex().encode() + b"!"
    for key, value in reader.prefix(local_key(CONSENT, prefix)):
        digest, accepts = value[:HASH_SIZE_BYTES], value[HASH_SIZE_BYTES:]
        yield Consent(user, digest, time_of(key.rsplit(b"!", 1)[1]), accepts == b"\x01")


def seed_of(reader: Reader) -> Seed | None:
    """Return the moderation seed of a store, None if it joined without."""
    value = reader.local(SEED, b"")
    if value is None:
        return None
    match unpack(value):
        case [bytes() as data, int() as given_at_ms, int() | None as revoked_at_ms]:
            seed = Seed.read(data, given_at_ms)
            return seed if revoked_at_ms is None else seed.revoked(revoked_at_ms)
    raise CorruptStoreError("the local row of the moderation seed is damaged. Give the seed again")


def seed_value(seed: Seed) -> bytes:
    """Return the value of the seed's local row."""
    return pack([seed.write(), seed.given_at_ms, seed.revoked_at_ms])
