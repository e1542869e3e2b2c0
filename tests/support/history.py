"""Random histories of chat, and a simple model of the answers of a store.

The model uses sets and sorting, without keys, folds or batches: it follows the rules instead of the code.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from hypothesis import strategies as st

from cablestore import DRAFT8, LEGACY, Dialect, Identity, Post, encode_post
from cablestore.limits import MAX_DELETIONS_LISTED
from cablestore.protocol.body import (
    BLOCK,
    DELETE,
    INFO,
    JOIN,
    LEAVE,
    MODERATION,
    ROLE,
    TEXT,
    TOPIC,
    UNBLOCK,
    Block,
    Body,
    Delete,
    Info,
    Join,
    Leave,
    Moderation,
    Role,
    Text,
    Topic,
    Unblock,
)

AUTHORS = tuple(Identity.derive("history", name) for name in ("ann", "bob", "cyd"))
CHANNELS = (
    "default",
    "a",
    "a!b",
    "~",
    "a b",
    "\x00",
    "\x00!",
    '"',
    "ü",
    "日本語",
    "🐈‍⬛",
    "\u202eabc",
    "!",
    "A",
    "zz~",
)
NOW_MS = 1_700_000_000_000
TIMES_MS = (0, 1, 80, NOW_MS, NOW_MS + 1, NOW_MS + 1000, NOW_MS + 604_799_999, 999_999_999_999)


@dataclass(frozen=True)
class Draft:
    """Post before its links and targets have hashes."""

    kind: int
    author: int
    channel: int
    time: int
    word: int
    points_at: tuple[int, ...]


KINDS = (
    TEXT,
    TEXT,
    TEXT,
    DELETE,
    DELETE,
    DELETE,
    INFO,
    TOPIC,
    JOIN,
    LEAVE,
    ROLE,
    MODERATION,
    MODERATION,
    BLOCK,
    UNBLOCK,
)
dialects = st.sampled_from((LEGACY, LEGACY, DRAFT8))


@st.composite
def histories(draw: st.DrawFn, max_posts: int = 24) -> tuple[Dialect, list[Post]]:
    """Draw a dialect and different posts of it. Each can refer to earlier ones."""
    dialect = draw(dialects)
    # Few channels and authors per history, so that posts interact. Many histories cover all of them.
    channels = draw(st.lists(st.integers(0, len(CHANNELS) - 1), min_size=1, max_size=3))
    authors = draw(st.lists(st.integers(0, len(AUTHORS) - 1), min_size=1, max_size=3))
    drafts = st.builds(
        Draft,
        kind=st.sampled_from(KINDS),
        author=st.sampled_from(authors),
        channel=st.sampled_from(channels),
        time=st.integers(0, len(TIMES_MS) - 1),
        word=st.integers(0, 3),
        points_at=st.lists(st.integers(0, 40), max_size=3).map(tuple),
    )
    size = draw(st.integers(1, max_posts))
    return dialect, build(draw(st.lists(drafts, min_size=size, max_size=size)), dialect)


def build(history: Iterable[Draft], dialect: Dialect) -> list[Post]:
    """Sign the drafts. Deletions may name anything: posts of others, deletions, unknown hashes."""
    posts: dict[bytes, Post] = {}
    for draft in history:
        known = list(posts)
        targets = tuple(known[i % len(known)] if known and i < 35 else bytes([i]) * 32 for i in draft.points_at)
        post = _signed(_body(draft, targets), () if draft.kind in (DELETE, INFO) else targets, draft, dialect)
        posts[post.hash] = post
    return list(posts.values())


def long_history(rng: random.Random, posts: int, dialect: Dialect = LEGACY) -> list[Post]:
    """Return posts of all types by three people in few channels and at few times."""
    channels = rng.sample(range(len(CHANNELS)), 4)
    drafts = [
        Draft(
            kind=rng.choice(KINDS),
            author=rng.randrange(3),
            channel=rng.choice(channels),
            time=rng.randrange(len(TIMES_MS)),
            word=rng.randrange(4),
            points_at=tuple(rng.randrange(40) for _ in range(rng.randrange(4))),
        )
        for _ in range(posts)
    ]
    return build(drafts, dialect)


@lru_cache(maxsize=20_000)
def _signed(body: Body, links: tuple[bytes, ...], draft: Draft, dialect: Dialect) -> Post:
    return encode_post(
        body, links=links, timestamp_ms=TIMES_MS[draft.time], identity=AUTHORS[draft.author], dialect=dialect
    )


def _body(draft: Draft, targets: tuple[bytes, ...]) -> Body:
    channel, word = CHANNELS[draft.channel], ("", "x", "hello", "日" * 9)[draft.word]
    match draft.kind:
        case 0:
            return Text(channel, word)
        case 1:
            return Delete(targets)
        case 2:
            return Info.of(name=word or None, accept_role=bool(draft.channel % 2))
        case 3:
            return Topic(channel, word)
        case 4:
            return Join(channel)
        case 5:
            return Leave(channel)
        case 6:
            return Role(word, 0, channel, AUTHORS[draft.time % 3].public_key, draft.word % 3)
        case 7:
            users = tuple(AUTHORS[number % 3].public_key for number in draft.points_at)
            return Moderation(word, 0, channel if draft.word else "", users, draft.time)
        case 9:
            return Unblock(word, 0, (AUTHORS[draft.time % 3].public_key,), draft.word % 2)
    return Block(word, 0, (AUTHORS[draft.time % 3].public_key,), 0, 1)


class Model:
    """Model of a store that was offered all of `posts`, in any order."""

    def __init__(self, posts: Iterable[Post], discarded: frozenset[bytes] = frozenset()) -> None:
        everything = list(posts)
        self.deletes = [post for post in everything if post.type == DELETE]
        self.dead = {post.hash: post for post in everything if self._is_dead(post)}
        self.live = {p.hash: p for p in everything if p.hash not in self.dead and p.hash not in discarded}

    def _is_dead(self, post: Post) -> bool:
        if post.type == DELETE:
            return False
        return any(d.author == post.author and post.hash in _targets(d) for d in self.deletes)

    def in_channel(self, channel: str, *kinds: int) -> list[Post]:
        found = [post for post in self.live.values() if post.channel == channel and post.type in kinds]
        return sorted(found, key=_order)

    def channels(self) -> list[str]:
        names = {p.channel for p in self.live.values() if p.type in (TEXT, TOPIC, JOIN, LEAVE)}
        return sorted((name for name in names if name is not None), key=str.encode)

    def messages(self, channel: str) -> list[bytes]:
        """Return the hashes of the texts of a channel in reading order: a text is after those that it links to."""
        every = (*self.live.values(), *self.dead.values())
        known = {p.hash: p for p in every if p.channel == channel and p.type in (TEXT, TOPIC, JOIN, LEAVE)}

        def place(digest: bytes) -> tuple[int, int] | None:
            """Return the latest time of the texts that a post reaches, and its distance from there.

            None without a text.
            """
            post = known[digest]
            before = [found for link in post.links if link in known and (found := place(link)) is not None]
            own = [post.timestamp_ms] if post.type == TEXT and digest in self.live else []
            time_ms = max([*own, *(at for at, _ in before)], default=None)
            if time_ms is None:
                return None
            return time_ms, max((steps + 1 for at, steps in before if at == time_ms), default=0)

        texts = self.in_channel(channel, TEXT)
        return [p.hash for p in sorted(texts, key=lambda p: (place(p.hash) or (0, 0), _order(p)))]

    def time_range(self, channel: str, start_ms: int, end_ms: int, limit: int) -> list[bytes]:
        rows = set(self.in_channel(channel, TEXT))
        for post in self.dead.values():
            if post.channel == channel:
                own = (d for d in self.deletes if d.author == post.author and post.hash in _targets(d))
                rows.update(sorted(own, key=_order)[:MAX_DELETIONS_LISTED])
        hits = sorted(
            (p for p in rows if start_ms <= p.timestamp_ms and (end_ms == 0 or p.timestamp_ms < end_ms)), key=_order
        )
        newest_first = [post.hash for post in reversed(hits)]
        return newest_first[:limit] if limit else newest_first

    def topic(self, channel: str) -> str:
        topics = self.in_channel(channel, TOPIC)
        return topics[-1].body.topic if topics and isinstance(topics[-1].body, Topic) else ""

    def members(self, channel: str) -> list[bytes]:
        latest = {p.author: p for p in self.in_channel(channel, TEXT, TOPIC, JOIN, LEAVE)}
        return sorted(author for author, post in latest.items() if post.type != LEAVE)

    def info(self, author: bytes) -> Post | None:
        infos = sorted((p for p in self.live.values() if p.type == INFO and p.author == author), key=_order)
        return infos[-1] if infos else None

    def name(self, author: bytes) -> str:
        info = self.info(author)
        return (info.body.name if info and isinstance(info.body, Info) else None) or author.hex()

    def state(self, channel: str) -> set[bytes]:
        topics = self.in_channel(channel, TOPIC)
        announced = {p.author: p.hash for p in self.in_channel(channel, JOIN, LEAVE)}
        infos = [self.info(author) for author in self.members(channel)]
        return {*(p.hash for p in topics[-1:]), *announced.values(), *(p.hash for p in infos if p)}

    def heads(self, channel: str) -> set[bytes]:
        here = [*self.in_channel(channel, TEXT, TOPIC, JOIN, LEAVE)]
        here += [p for p in self.dead.values() if p.channel == channel and p.is_linkable]
        linked = {link for post in here for link in post.links}
        return {post.hash for post in here} - linked

    def moderation(self, channel: str, oldest_ms: int) -> set[bytes]:
        blocks = {post.hash for post in self.live.values() if post.type in (BLOCK, UNBLOCK)}
        acts = [*self.in_channel("", ROLE, MODERATION), *self.in_channel(channel, ROLE, MODERATION)]
        return blocks | {act.hash for act in acts if act.timestamp_ms >= oldest_ms and self._is_relevant(act)}

    def _is_relevant(self, act: Post) -> bool:
        own = [post for post in self.live.values() if (post.author, post.channel) == (act.author, act.channel)]
        newer = [post.body for post in own if _order(post) > _order(act)]
        if isinstance(act.body, Role):
            said = self.info(act.body.recipient)
            if said and isinstance(said.body, Info) and not said.body.accepts_role:
                return False
            return not any(isinstance(body, Role) and body.recipient == act.body.recipient for body in newer)
        assert isinstance(act.body, Moderation)
        undone: set[bytes | None] = set()
        for body in newer:
            if isinstance(body, Moderation) and {body.action, act.body.action} == _pair(act.body.action):
                undone |= _acted_on(body) if body.action != act.body.action else set()
        return not _acted_on(act.body) <= undone

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for post in self.live.values():
            found[post.type_name] = found.get(post.type_name, 0) + 1
        return found


def _targets(post: Post) -> tuple[bytes, ...]:
    return post.body.hashes if isinstance(post.body, Delete) else ()


def _pair(action: int) -> set[int]:
    does = action - action % 2
    return {does, does + 1}


def _acted_on(body: Moderation) -> set[bytes | None]:
    acts_on_channel = body.action in (6, 7) or not body.recipients
    return {None} if acts_on_channel else set(body.recipients)


def _order(post: Post) -> tuple[int, bytes]:
    return post.timestamp_ms, post.hash
