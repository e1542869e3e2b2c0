"""Display: posts and users with their names and moderation state, as chat clients show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from cablestore import limits
from cablestore.errors import CorruptStoreError
from cablestore.index.reader import Reader
from cablestore.moderation.applied import AppliedModeration
from cablestore.moderation.decisions import Decisions
from cablestore.protocol.acts import ModerationAct, UserRole
from cablestore.protocol.body import Info, Text
from cablestore.protocol.post import Post
from cablestore.reprs import hex_repr
from cablestore.store.cursor import MessageCursor
from cablestore.store.emotes import emote_of
from cablestore.store.naming import shown_name
from cablestore.store.topics import topic_of
from cablestore.views import activity, channel_topic, membership, messages, user_info

Hidden = Literal["omit", "mark", "show"]
"""How hidden messages are returned: left out, without their text, or unchanged."""


@dataclass(frozen=True, slots=True)
class Message:
    """A post/text with the name of its author: the chosen name, or the public key in hex.

    `cursor` is the message's position in its channel; pass it to `messages` to continue from here. `hidden_by` is the
    action that hides the message, with its author, time and reason (moderation.md 4.3). A message with `hidden_by` must
    not be displayed.
    """

    hash: bytes
    channel: str
    author: bytes
    name: str
    timestamp_ms: int
    text: str
    links: tuple[bytes, ...]
    cursor: MessageCursor
    hidden_by: ModerationAct | None = None

    __repr__ = hex_repr

    @property
    def is_hidden(self) -> bool:
        """True if the message must not be displayed."""
        return self.hidden_by is not None

    @property
    def emote(self) -> str | None:
        """The action in an emote (`/me waves`), such as `waves`. None for other texts."""
        return emote_of(self.text)


@dataclass(frozen=True, slots=True)
class User:
    """A user: 32-byte public key, name (the public key in hex if none was chosen), and the latest post/info.

    `hidden_by`, `blocked_by` and `dropped_by` are the actions that hide, block and drop the user. `role` and
    `hidden_by` apply in the requested context, a channel or the whole cabal; the others apply in the whole cabal.
    `is_member` is True if the user joined the requested channel or wrote to it, and did not leave it since. The name of
    a dropped user is the public key, and the info is empty.
    """

    public_key: bytes
    name: str
    info: Info
    role: UserRole = UserRole.USER
    hidden_by: ModerationAct | None = None
    blocked_by: ModerationAct | None = None
    dropped_by: ModerationAct | None = None
    is_member: bool = False

    __repr__ = hex_repr

    @property
    def is_hidden(self) -> bool:
        """True if the user's messages must not be displayed."""
        return self.hidden_by is not None or self.is_dropped

    @property
    def is_blocked(self) -> bool:
        """True if the user's new posts are not stored."""
        return self.blocked_by is not None

    @property
    def is_dropped(self) -> bool:
        """True if the user's posts are removed."""
        return self.dropped_by is not None


class Display:
    """Users, channels and messages of one state of a store, as clients show them. Names of authors are cached."""

    def __init__(self, reader: Reader, moderation: AppliedModeration | None) -> None:
        self._reader = reader
        self._moderation = moderation
        self._decisions = moderation.decisions if moderation is not None and moderation.decisions.has_actions else None
        self._names: dict[bytes, str] = {}

    # --- users ---------------------------------------------------------------------------------

    def user(self, public_key: bytes, channel: str | None = None) -> User:
        """Return a user in the context of a channel or of the whole cabal."""
        return self._user(public_key, channel, is_member=channel is not None and self.is_member(public_key, channel))

    def _user(self, public_key: bytes, channel: str | None, *, is_member: bool) -> User:
        found = user_info.latest(self._reader, public_key)
        info = found[0] if found else Info(())
        user = User(public_key, shown_name(info.name, public_key), info, is_member=is_member)
        if self._moderation is None:
            return user
        decisions = self._moderation.decisions
        drop = decisions.user_dropped(public_key)
        judged = replace(
            user,
            role=decisions.role(public_key, channel),
            hidden_by=decisions.user_hidden_by(public_key, channel),
            blocked_by=decisions.blocked_by(public_key),
            dropped_by=drop.act if drop is not None and drop.until_ms is None else None,
        )
        return replace(judged, name=public_key.hex(), info=Info(())) if judged.is_dropped else judged

    def _name(self, public_key: bytes) -> str:
        """Return the name that `user` returns for this key, with fewer look-ups."""
        if self._decisions is not None and self._decisions.is_acted_on(public_key):
            return self.user(public_key).name
        found = user_info.latest(self._reader, public_key)
        return shown_name(found[0].name if found else None, public_key)

    def members(self, channel: str) -> Iterator[User]:
        """Yield the members of a channel, sorted by public key."""
        for member in membership.of_channel(self._reader, channel):
            if member.is_member and not self.is_gone(member.author, channel):
                yield self._user(member.author, channel, is_member=True)

    def is_member(self, public_key: bytes, channel: str) -> bool:
        """Return True if a user is a member of a channel. Dropped users are not members."""
        found = membership.of_user(self._reader, channel, public_key)
        return found is not None and found.is_member and not self.is_gone(public_key, channel)

    def is_gone(self, public_key: bytes, channel: str | None = None) -> bool:
        """Return True if all posts of a user are dropped, in the whole cabal or in `channel`."""
        moderation = self._moderation
        if moderation is None:
            return False
        drop = moderation.decisions.user_dropped(public_key)
        if drop is not None and drop.until_ms is None:
            return True
        act = None if channel is None else moderation.decisions.channel_dropped_by(channel)
        return act is not None and (public_key != moderation.own_key or act.author == moderation.own_key)

    # --- channels ------------------------------------------------------------------------------

    def is_dropped(self, channel: str) -> bool:
        """Return True if an action drops the channel."""
        return self._decisions is not None and self._decisions.channel_dropped_by(channel) is not None

    def channels(self, member: bytes | None = None) -> Iterator[tuple[str, str, int, list[int]]]:
        """Yield (name, topic, number of members, counts by type) of each channel that is not dropped, sorted by name.

        With `member`, yields only channels of which this user is a member.
        """
        latest_topic, count = channel_topic.latest_in_order(self._reader), membership.count_in_order(self._reader)
        for name, posts in activity.channels(self._reader):
            if not self.is_dropped(name) and (member is None or self.is_member(member, name)):
                members = sum(1 for _ in self.members(name)) if self._is_sweeping else count(name)
                yield name, self._kept_topic(name, latest_topic(name)), members, posts

    def topic(self, channel: str) -> str:
        """Return a channel's topic, "" if it has none."""
        return self._kept_topic(channel, channel_topic.latest(self._reader, channel))

    def _kept_topic(self, channel: str, latest: tuple[str, bytes] | None) -> str:
        if latest is None or self._moderation is None or self._decisions is None:
            return latest[0] if latest else ""
        return topic_of(self._reader, self._moderation, channel)

    # --- posts ---------------------------------------------------------------------------------

    def is_here(self, post: Post) -> bool:
        """Return True if a stored post is not dropped. Dropped posts remain stored until they are removed."""
        moderation = self._moderation
        return moderation is None or not moderation.is_sweeping or moderation.dropping(post) is None

    @property
    def _is_sweeping(self) -> bool:
        return self._moderation is not None and self._moderation.is_sweeping

    def shown(self, post: Post, hidden: Hidden) -> Message | None:
        """Return a post/text as clients show it. None if it is dropped, or hidden and `hidden` is "omit"."""
        message = self.message(post)
        if message.hidden_by is None:
            return message
        if hidden == "omit" or not self.is_here(post):
            return None
        return message if hidden == "show" else replace(message, text="")

    def last_message(self, channel: str) -> Message | None:
        """Return the latest message of a channel that is not hidden.

        Returns None if the latest `limits.MAX_PAGE_ROWS_READ` messages are all hidden, or the channel has no messages.
        """
        newest = messages.texts(self._reader, channel, newest_first=True, at_once=1)
        for _, digest in islice(newest, limits.MAX_PAGE_ROWS_READ):
            post = self._reader.post(digest)
            message = None if post is None else self.shown(post, "omit")
            if message is not None:
                return message
        return None

    def message(self, post: Post) -> Message:
        """Return a post/text as a message, with its author's current name."""
        if not isinstance(post.body, Text):
            raise CorruptStoreError(
                f"a view lists the post {post.hash.hex()} as a message, but it is a post/{post.type_name}. Run "
                "`cablestore check`, then `cablestore rebuild`"
            )
        name = self._names.get(post.author)
        if name is None:
            name = self._names[post.author] = self._name(post.author)
        return Message(
            hash=post.hash,
            channel=post.channel or "",
            author=post.author,
            name=name,
            timestamp_ms=post.timestamp_ms,
            text=post.body.text,
            links=post.links,
            cursor=MessageCursor(post.sort_time.decode()),
            hidden_by=None if self._decisions is None else _hiding(self._decisions, post),
        )


def _hiding(decisions: Decisions, post: Post) -> ModerationAct | None:
    return decisions.text_hidden_by(post.hash, post.author, post.channel or "", post.timestamp_ms)
