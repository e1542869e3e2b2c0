"""Writing of the user's own posts: one method for each common type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from cablestore.protocol.body import Body, Info, Join, Leave, Text, Topic
from cablestore.protocol.post import Post


class Writing(ABC):
    """Methods of a store that write own posts. With `sync` a post is on the disk on return."""

    @abstractmethod
    def write(self, body: Body, *, sync: bool = True) -> Post:
        """Sign and store a post."""

    def text(self, channel: str, text: str, *, sync: bool = True) -> Post:
        """Write a message of at most 4096 bytes to a channel."""
        return self.write(Text(channel, text), sync=sync)

    def topic(self, channel: str, topic: str, *, sync: bool = True) -> Post:
        """Set a channel's topic; "" clears it."""
        return self.write(Topic(channel, topic), sync=sync)

    def join(self, channel: str, *, sync: bool = True) -> Post:
        """Become a member of a channel."""
        return self.write(Join(channel), sync=sync)

    def leave(self, channel: str, *, sync: bool = True) -> Post:
        """Leave a channel."""
        return self.write(Leave(channel), sync=sync)

    def info(
        self,
        *,
        name: str | None = None,
        accept_role: bool | None = None,
        others: Mapping[str, bytes] | None = None,
        sync: bool = True,
    ) -> Post:
        """Publish all information on oneself: what is left out returns to its default (wire.md 6.2.4)."""
        known = Info.of(name=name, accept_role=accept_role)
        return self.write(Info((*known.pairs, *(others or {}).items())), sync=sync)
