"""Simple model of unread texts and mentions of the user: lists and sorting over the reads and events of a store."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from cablestore import CableStore, Info, Message, Post, limits
from cablestore.index.arrival_log import EventKind
from cablestore.protocol.body import INFO

Moment = tuple[int, bytes]


def moment_of(post: Post | Message) -> Moment:
    return post.timestamp_ms, post.hash


def _arrived(store: CableStore) -> dict[bytes, int]:
    return {event.hash: event.sequence for event in store.events(timeout_s=0) if event.kind is EventKind.ACCEPTED}


@dataclass
class UnreadModel:
    """Model of the read texts of a user: hashes by channel, with the log number of the arrival of each."""

    own_key: bytes
    read: dict[str, dict[bytes, int]] = field(default_factory=dict)
    marks: dict[str, Moment] = field(default_factory=dict)
    """Position up to which channels are read, except late messages."""

    def mark(self, store: CableStore, channel: str, upto: Message | None) -> None:
        held = store.messages(channel, 1000, hidden="show").messages
        moment = moment_of(upto) if upto else max(map(moment_of, held), default=(-1, b""))
        arrived = _arrived(store)
        self.read[channel] = {message.hash: arrived[message.hash] for message in held if moment_of(message) <= moment}
        self.marks[channel] = moment

    def see(self, store: CableStore, channel: str, seen: list[Message], upto: Message | None) -> None:
        held = store.messages(channel, 1000, hidden="show").messages
        mark = self.marks.get(channel, (-1, b""))
        passed = [message for message in held if upto and mark < moment_of(message) <= moment_of(upto)]
        arrived = _arrived(store)
        self.read.setdefault(channel, {}).update({message.hash: arrived[message.hash] for message in [*passed, *seen]})
        self.marks[channel] = max([mark, *map(moment_of, [*passed, *seen])])

    def unread(self, store: CableStore, channel: str) -> list[Message]:
        arrived, read = _arrived(store), self.read.get(channel, {})
        return [
            message
            for message in store.messages(channel, 1000).messages
            if message.author != self.own_key and read.get(message.hash) != arrived[message.hash]
        ]

    def names_user(self, store: CableStore, message: Message) -> bool:
        linked = [post for post in map(store.get, message.links) if post and post.channel == message.channel]
        times = [message.timestamp_ms]
        times += [t for t in (post.timestamp_ms for post in linked) if t - times[0] < limits.MAX_FUTURE_MS]
        names = {name.casefold() for time_ms in times for name in self.names_near(store, time_ms)}
        words = re.findall(r"\w+", message.text.casefold())
        keyed = any(len(word) >= 8 and self.own_key.hex().startswith(word) for word in words)
        return message.author != self.own_key and (keyed or not names.isdisjoint(words))

    def names_near(self, store: CableStore, time_ms: int) -> set[str]:
        """Return the names that the user had at any time within the tolerance."""
        infos = sorted(store.posts_by(self.own_key, post_type=INFO), key=moment_of)
        ends_ms = [*(post.timestamp_ms for post in infos), math.inf][1:] if infos else []
        from_ms, to_ms = time_ms - limits.MENTION_TOLERANCE_MS, time_ms + limits.MENTION_TOLERANCE_MS
        return {
            post.body.name
            for post, end_ms in zip(infos, ends_ms, strict=True)
            if isinstance(post.body, Info) and post.body.name and post.timestamp_ms <= to_ms and end_ms >= from_ms
        }

    def mentions(self, store: CableStore, channels: list[str]) -> list[Message]:
        found = [message for name in channels for message in store.messages(name, 1000).messages]
        return sorted((m for m in found if self.names_user(store, m)), key=moment_of, reverse=True)


def assert_agrees(store: CableStore, model: UnreadModel) -> None:
    """Check the store's unread texts, mentions and latest messages against the model."""
    channels = list(store.channels())
    for channel in channels:
        unread = model.unread(store, channel.name)
        assert channel.last_message == max(store.messages(channel.name, 1000).messages, key=moment_of, default=None)
        assert channel.unread == len(unread), channel
        state = store.read_state(channel.name)
        assert set(state.unread) == {message.cursor for message in unread}
        assert list(state.unread) == sorted(state.unread)
        assert channel.mentions <= len(unread)
    expected = model.mentions(store, [channel.name for channel in channels])
    assert [message.hash for message in store.mentions(1000).messages] == [message.hash for message in expected]
    for channel in store.channels():
        named = [message for message in model.unread(store, channel.name) if model.names_user(store, message)]
        assert channel.mentions == len(named), channel
        here = [message for message in expected if message.channel == channel.name]
        assert store.mentions(1000, channel=channel.name).messages == here
    by_activity = list(store.channels(order="activity"))
    times = [moment_of(each.last_message) if each.last_message else (-1, b"") for each in by_activity]
    assert times == sorted(times, reverse=True)
    assert {each.name for each in by_activity} == {each.name for each in channels}
