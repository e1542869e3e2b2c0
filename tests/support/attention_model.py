"""Plain model of what is unread and what names the user: lists and sorting over what a store shows, and its events."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cablestore import CableStore, Info, Message, Post
from cablestore.index.arrival_log import EventKind
from cablestore.protocol.body import INFO

Moment = tuple[int, bytes]


def moment_of(post: Post | Message) -> Moment:
    return post.timestamp_ms, post.hash


@dataclass
class AttentionModel:
    """Model of one user's marks. `marks` has the moment up to which a channel is read, and the log's number then."""

    own_key: bytes
    marks: dict[str, tuple[Moment, int]] = field(default_factory=dict)

    def mark(self, store: CableStore, channel: str, upto: Message | None) -> None:
        shown_or_not = store.messages(channel, 1000, hidden="show").messages
        held = [moment_of(message) for message in shown_or_not]
        moment = moment_of(upto) if upto else max(held, default=(-1, b""))
        self.marks[channel] = moment, store.last_sequence

    def unread(self, store: CableStore, channel: str) -> list[Message]:
        arrived = {event.hash: event.sequence for event in store.events() if event.kind is EventKind.ACCEPTED}
        upto, sequence = self.marks.get(channel, ((-1, b""), 0))
        return [
            message
            for message in store.messages(channel, 1000).messages
            if message.author != self.own_key and (moment_of(message) > upto or arrived[message.hash] > sequence)
        ]

    def names_user(self, store: CableStore, message: Message) -> bool:
        infos = [post for post in store.posts_by(self.own_key, post_type=INFO) if moment_of(post) < moment_of(message)]
        latest = max(infos, key=moment_of, default=None)
        name = latest.body.name if latest is not None and isinstance(latest.body, Info) else None
        words = re.findall(r"\w+", message.text.casefold())
        keyed = any(len(word) >= 8 and self.own_key.hex().startswith(word) for word in words)
        return message.author != self.own_key and (keyed or (bool(name) and (name or "").casefold() in words))

    def mentions(self, store: CableStore, channels: list[str]) -> list[Message]:
        found = [message for name in channels for message in store.messages(name, 1000).messages]
        return sorted((m for m in found if self.names_user(store, m)), key=moment_of, reverse=True)


def assert_agrees(store: CableStore, model: AttentionModel) -> None:
    """Check all that the store says of unread texts, mentions and latest messages against the model."""
    channels = list(store.channels())
    for channel in channels:
        unread = model.unread(store, channel.name)
        latest = store.messages(channel.name, 1).messages
        assert channel.last_message == (latest[0] if latest else None)
        assert channel.unread == len(unread), channel
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
