"""Clients that update a screen only by changes, and the content of a store at one moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cablestore import CableStore, Snapshot
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
    UserHidden,
    UserShown,
)
from cablestore.store.cursor import ChangesCursor


@dataclass
class Screen:
    """The state of a client's screen. Names are separate, because a new name also applies to earlier messages."""

    cursor: ChangesCursor
    topics: dict[str, str] = field(default_factory=dict)
    members: dict[str, dict[bytes, object]] = field(default_factory=dict)
    messages: dict[str, dict[bytes, str]] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)
    reported: int = 0

    @classmethod
    def of(cls, state: Snapshot) -> Screen:
        screen = cls(state.cursor)
        for channel in state.channels():
            screen.topics[channel.name] = channel.topic
            screen.members[channel.name] = {user.public_key: user.role for user in state.members(channel.name)}
            page = state.messages(channel.name, 1000)
            assert page.cursor is None
            assert page.changes_cursor == screen.cursor
            screen.messages[channel.name] = {message.hash: message.text for message in page.messages}
        screen.names = {user.public_key: user.name for user in state.users()}
        return screen

    def apply(self, store: CableStore, changes: Iterable[Change]) -> None:
        for change in changes:
            self.reported += 1
            match change:
                case UserHidden() | UserShown() | ModerationChanged():
                    with store.snapshot() as state:
                        now = Screen.of(state)
                    self.topics, self.members, self.messages = now.topics, now.members, now.messages
                    self.names |= now.names
                case MessageAdded() | MessageShown() | MessageHidden() | MessageDeleted():
                    self._apply_to_messages(change)
                case NameChanged() | Joined() | Left() | RoleChanged():
                    self._apply_to_people(change)
                case _:
                    self._apply_to_channels(change)

    def _apply_to_messages(self, change: MessageAdded | MessageShown | MessageHidden | MessageDeleted) -> None:
        match change:
            case MessageAdded(message) | MessageShown(message):
                self.names[message.author] = message.name
                self.messages.setdefault(message.channel, {})[message.hash] = message.text
            case MessageHidden(message):
                self.messages.get(message.channel, {}).pop(message.hash, None)
            case MessageDeleted(digest, _):
                for messages in self.messages.values():
                    messages.pop(digest, None)

    def _apply_to_people(self, change: NameChanged | Joined | Left | RoleChanged) -> None:
        user = change.user
        self.names[user.public_key] = user.name
        match change:
            case Joined(channel, _):
                self.members.setdefault(channel, {})[user.public_key] = user.role
            case Left(channel, _):
                self.members.setdefault(channel, {}).pop(user.public_key, None)

    def _apply_to_channels(self, change: Change) -> None:
        match change:
            case TopicChanged(channel, topic):
                self.topics[channel] = topic
            case ChannelAdded(channel):
                self.topics.setdefault(channel, "")
            case ChannelRemoved(channel):
                self.topics.pop(channel, None)
                self.members.pop(channel, None)
                self.messages.pop(channel, None)

    def shown(self) -> dict[str, object]:
        """Return the content of the screen: with names instead of keys, and without empty lists."""
        return {
            channel: (
                topic,
                {(key, self.names[key], role) for key, role in self.members.get(channel, {}).items()},
                self.messages.get(channel, {}),
            )
            for channel, topic in self.topics.items()
        }


def follow(screen: Screen, store: CableStore) -> None:
    """Apply all changes until now to a screen, each read twice."""
    while True:
        found = store.next_changes(screen.cursor, timeout_s=0)
        again = store.next_changes(screen.cursor, timeout_s=0)
        screen.apply(store, found.changes)
        screen.apply(store, again.changes)
        screen.apply(store, found.changes[::2])
        screen.cursor = found.cursor
        if not found.changes:
            return
