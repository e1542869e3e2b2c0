"""Touched things: the subjects of arrival log entries, and their values in one state of the store.

An entry records an event. Here, it only names things that may have changed: a message, a member, a topic. Their current
values are read from the state. So each thing is reported once, however often it changed, and a repeated read of the
same entries is harmless.

Some things are reported only if they are new, such as a member. Their earlier state is derived from the posts that the
read entries do not name. A later entry that is not read yet may concern the same thing: then the earlier state is in
doubt, and the thing is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from cablestore import limits
from cablestore.index import arrival_log, notes
from cablestore.index.arrival_log import Arrival, EventKind
from cablestore.index.database import Row
from cablestore.index.drops import dropped_post
from cablestore.index.latest import order_key_of_row
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Skeleton
from cablestore.moderation.applied import AppliedModeration
from cablestore.protocol.acts import Action, ModerationAct, act_of
from cablestore.protocol.body import (
    INFO,
    JOIN,
    LEAVE,
    LINKABLE_TYPES,
    MEMBERSHIP_TYPES,
    MODERATION,
    MODERATION_TYPES,
    ROLE,
    TEXT,
    TOPIC,
)
from cablestore.protocol.dialect import RESERVED_CHANNELS
from cablestore.protocol.keys import escape, unescape, unhex
from cablestore.protocol.post import Post
from cablestore.store.changes import (
    Change,
    ChannelAdded,
    ChannelRemoved,
    Joined,
    Left,
    MessageAdded,
    MessageDeleted,
    MessageHidden,
    MessageShown,
    ModerationChanged,
    NameChanged,
    RoleChanged,
    TopicChanged,
    UnreadChanged,
    UserHidden,
    UserShown,
    change_of_local_row,
)
from cablestore.store.cursor import LogPlace, lost_error
from cablestore.store.display import Display
from cablestore.views import activity, channel_state, channel_topic, membership, user_info
from cablestore.views import author as author_view
from cablestore.views.membership import Membership

_Subject = tuple[bytes, str | None]
"""A user, and the context: a channel, or None for the whole cabal."""


def read_changes(
    reader: Reader, moderation: AppliedModeration | None, after: LogPlace
) -> tuple[list[Change], LogPlace, int]:
    """Return the changes that entries after a position caused.

    Also returns the position of the last entry that was read, and the number of the latest entry. Raises CursorError if
    the log has lost entries before the position.
    """
    touched = _Touched(reader, moderation)
    latest = arrival_log.next_sequence(reader) - 1
    if latest < after.sequence:
        raise lost_error(after.sequence)
    _, last, post_entry = after
    for count, entry in enumerate(arrival_log.entries(reader, last), 1):
        touched.add(entry)
        last = entry.sequence
        if entry.kind is not EventKind.LOCAL:
            post_entry = entry
        if count == limits.MAX_EVENTS_READ or touched.size >= limits.MAX_THINGS_CHANGED:
            break
    else:
        last = latest
    for key in notes.touched_keys(reader, after.sequence, last):
        touched.add_row(key)
    return list(touched.changes(latest - last)), LogPlace(after.database, last, post_entry), latest


class _Touched:
    """Things that entries of the arrival log concern, each once, and the changes to report for them."""

    def __init__(self, reader: Reader, moderation: AppliedModeration | None) -> None:
        self._reader = reader
        self._moderation = moderation
        self._display = Display(reader, moderation)
        self._read: set[bytes] = set()
        """Hashes of the posts of the entries that `add` received."""
        self._texts: dict[bytes, Post] = {}
        self._gone: dict[bytes, str | None] = {}
        self._acted_on: dict[bytes, str | None] = {}
        """Posts that are targets of actions that hide, drop or undo, with the channel of the action."""
        self._members: dict[tuple[str, bytes], bool] = {}
        """(channel, user) of memberships that may have changed. False to report them only if the user was no member."""
        self._topics: dict[str, None] = {}
        self._names: dict[bytes, None] = {}
        self._live: Counter[str] = Counter()
        """By channel, the number of posts of the entries that are stored and belong to it."""
        self._channels: dict[str, bool] = {}
        """Channels that may have been removed. True if they may instead have been restored, after a drop."""
        self._removed: set[str] = set()
        """Removed channels. Their topics are not reported."""
        self._roles: dict[_Subject, None] = {}
        self._users: dict[_Subject, None] = {}
        self._contexts: dict[str | None, None] = {}
        """Contexts in which all roles and hidden targets may have changed."""
        self._others: dict[Change, None] = {}
        self._unread: dict[str, None] = {}

    @property
    def size(self) -> int:
        """Number of messages, roles and users that were added, to limit what one read reports."""
        return len(self._texts) + len(self._gone) + len(self._acted_on) + len(self._roles) + len(self._users)

    # --- subjects of entries -------------------------------------------------------------------

    def add(self, entry: Arrival) -> None:
        """Add the subject of an entry."""
        if entry.kind is EventKind.LOCAL:
            key = notes.noted_key(self._reader, entry.hash)
            if key is not None:
                self.add_row(key)
            return
        if entry.hash in self._read:
            return
        self._read.add(entry.hash)
        post = self._reader.post(entry.hash)
        if post is not None and self._display.is_here(post):
            self._add_post(post)
        elif post is not None:
            self._add_dead(post.hash, post.author, Skeleton.of(post))
        else:
            self._add_gone(entry.hash)

    def add_row(self, key: bytes) -> None:
        """Add the subject of the row with the key `key`: a local row that changed, or a row that a discard changed."""
        if key.startswith(membership.PREFIX):
            channel, _, author_hex = key[len(membership.PREFIX) :].partition(b"!")
            self._members[unescape(channel), unhex(author_hex)] = True
        elif key.startswith(channel_topic.PREFIX):
            self._topics[unescape(key[len(channel_topic.PREFIX) :])] = None
        elif key.startswith(user_info.LATEST_PREFIX):
            self._add_info(unhex(key[len(user_info.LATEST_PREFIX) :]))
        elif key.startswith(activity.CHANNEL_PREFIX):
            channel_name = unescape(key[len(activity.CHANNEL_PREFIX) :])
            self._channels.setdefault(channel_name, False)
            self._unread[channel_name] = None
        elif key.startswith(LOCAL_PREFIX):
            name, _, rest = key[len(LOCAL_PREFIX) :].partition(b"!")
            change = change_of_local_row(name, rest)
            if change is not None:
                self._others[change] = None

    def _add_post(self, post: Post) -> None:
        channel = post.channel or ""
        if post.type in LINKABLE_TYPES:
            self._live[channel] += 1
            says = self._members.get((channel, post.author), False)
            self._members[channel, post.author] = says or post.type in (JOIN, LEAVE)
        if post.type == TEXT:
            self._texts[post.hash] = post
        elif post.type == TOPIC:
            self._topics[channel] = None
        elif post.type == INFO:
            self._add_info(post.author)
        else:
            act = act_of(post)
            if act is not None and self._counts(post.author):
                self._add_act(act)

    def _add_info(self, author: bytes) -> None:
        self._names[author] = None
        if self._counts(author) and author != self._own_key:  # the user may now accept or decline roles
            self._roles[author, None] = self._contexts[None] = None

    @property
    def _own_key(self) -> bytes | None:
        return None if self._moderation is None else self._moderation.own_key

    def _counts(self, author: bytes) -> bool:
        """Return True if actions of `author` may have an effect. Other actions are not reported to clients."""
        return self._moderation is not None and self._moderation.decisions.may_have_authority(author)

    def _add_act(self, act: ModerationAct) -> None:
        if act.type == ROLE:
            self._roles[act.targets[0], act.channel] = None
            self._contexts[act.channel] = None
        elif act.type != MODERATION or act.what < Action.HIDE_POST:
            for target in act.targets:
                self._users[target, act.channel] = None
        elif act.what >= Action.DROP_CHANNEL:
            if act.channel is not None:
                self._channels[act.channel] = True
                self._contexts[act.channel] = None
        else:
            for target in act.targets:
                self._acted_on[target] = act.channel

    def _add_gone(self, digest: bytes) -> None:
        author = self._reader.confirmed_author(digest)
        stone = None if author is None else self._reader.tombstone(digest, author)
        if stone is not None and stone.skeleton is not None:
            self._add_dead(digest, stone.author, stone.skeleton)
            return
        dropped = dropped_post(self._reader, digest)
        if dropped is not None:
            self._add_dead(digest, dropped.author, dropped.skeleton)
        else:
            self._gone[digest] = None

    def _add_dead(self, digest: bytes, author: bytes, dead: Skeleton) -> None:
        """Add a removed post, with its skeleton `dead`, and the things that its removal may have changed."""
        channel = dead.channel or ""
        if dead.type in LINKABLE_TYPES:
            says = self._members.get((channel, author), False)
            self._members[channel, author] = says or dead.type == LEAVE
            self._channels.setdefault(channel, False)
        if dead.type == TEXT:
            self._gone[digest] = channel
        elif dead.type == TOPIC:
            self._topics[channel] = None
        elif dead.type == INFO:
            self._add_info(author)
        elif dead.type in MODERATION_TYPES and self._counts(author):
            self._contexts[None] = None  # the skeleton does not contain the target of the action

    # --- changes of subjects -------------------------------------------------------------------

    def changes(self, unread_entries: int) -> Iterator[Change]:
        """Yield the changes of all things. `unread_entries` is the number of log entries after the added entries."""
        yield from self._channel_changes(unread_entries)
        for author in self._names:
            yield NameChanged(self._display.user(author))
        yield from self._member_changes(unread_entries)
        for channel in {**self._topics, **dict.fromkeys(self._topics_of_users())}:
            if channel not in self._removed:
                yield TopicChanged(channel, self._display.topic(channel))
        yield from self._message_changes()
        for user, context in self._roles:
            yield RoleChanged(self._display.user(user, context), context)
        for user, context in self._users:
            found = self._display.user(user, context)
            yield (UserHidden if found.is_hidden else UserShown)(found, context)
        for context in self._contexts:
            yield ModerationChanged(context)
        yield from self._others
        for channel in self._unread:
            yield UnreadChanged(channel)

    def _topics_of_users(self) -> Iterator[str]:
        """Yield the channels whose topic may change because an action concerns a user who set a topic there."""
        for user, context in self._users:
            rows = islice(author_view.newest(self._reader, user, TOPIC), limits.MAX_BATCH_POSTS)
            posts = (self._reader.post(digest) for _, digest in rows)
            for channel in dict.fromkeys(post.channel for post in posts if post is not None):
                if channel is not None and context in (None, channel):
                    yield channel

    def _channel_changes(self, unread_entries: int) -> Iterator[Change]:
        """Yield ChannelRemoved for channels that no longer exist, and ChannelAdded for channels that may be new.

        A channel may be new if all its posts may belong to added entries or to the `unread_entries` later entries.
        """
        for channel in {**self._channels, **self._live}:
            if channel in RESERVED_CHANNELS:
                continue
            posts = sum(activity.of_channel(self._reader, channel))
            if not posts or self._display.is_dropped(channel):
                self._removed.add(channel)
                yield ChannelRemoved(channel)
            elif self._channels.get(channel) or posts <= self._live[channel] + unread_entries:
                yield ChannelAdded(channel)

    def _member_changes(self, unread_entries: int) -> Iterator[Change]:
        for (channel, author), is_said in self._members.items():
            member = membership.of_user(self._reader, channel, author)
            if not is_said and not unread_entries and self._was_member(channel, author, member):
                continue
            is_member = member is not None and member.is_member and not self._display.is_gone(author, channel)
            yield (Joined if is_member else Left)(channel, self._display.user(author, channel))

    def _was_member(self, channel: str, author: bytes, member: Membership | None) -> bool:
        """Return True if `author` was a member of a channel before the posts of the added entries.

        `member` is the present membership, None without one.
        """
        if member is not None and member.has_joined and member.announced_by not in self._read:
            return True
        group = escape(channel) + b"!" + author.hex().encode()
        left = self._newest_before(group, LEAVE)
        for post_type in MEMBERSHIP_TYPES - {LEAVE}:
            row = self._newest_before(group, post_type)
            if row is not None and (left is None or order_key_of_row(row) > order_key_of_row(left)):
                return True
        return False

    def _newest_before(self, group: bytes, post_type: int) -> Row | None:
        """Return the row of a user's newest post of a type in a channel, except posts of added entries.

        `group` is `<channel>!<pubkey>`. Returns None if no such post is left.
        """
        rows = self._reader.prefix(channel_state.prefix_in(group, post_type), reverse=True)
        return next((row for row in rows if row[1] not in self._read), None)

    def _message_changes(self) -> Iterator[Change]:
        for digest, channel in self._acted_on.items():
            if digest not in self._texts:
                post = self._reader.post(digest)
                if post is None or not self._display.is_here(post):
                    self._gone.setdefault(digest, channel)
                elif post.type == TEXT:
                    yield self._message_change(post, MessageShown)
        for digest, channel in self._gone.items():
            if channel is not None:
                self._unread[channel] = None
            yield MessageDeleted(digest, channel)
        for post in self._texts.values():
            yield self._message_change(post, MessageAdded)

    def _message_change(self, post: Post, displayed: type[MessageAdded | MessageShown]) -> Change:
        message = self._display.message(post)
        self._unread[message.channel] = None
        return displayed(message) if message.hidden_by is None else MessageHidden(replace(message, text=""))
