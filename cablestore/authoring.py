"""Posts of one's own, as chat clients write them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from cablestore.body import Body, Info, Join, Leave, Text, Topic
from cablestore.post import Post


class Authoring(ABC):
    """Something that can write posts under an identity of its own. With `sync` they are on the disk on return."""

    @abstractmethod
    def write(self, body: Body, *, sync: bool = True) -> Post:
        """Sign and store a post, linked to what is the latest of its channel here."""

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
        """Cease to be a member of a channel."""
        return self.write(Leave(channel), sync=sync)

    def info(
        self,
        *,
        name: str | None = None,
        accept_role: bool | None = None,
        others: Mapping[str, bytes] | None = None,
        sync: bool = True,
    ) -> Post:
        """Say all that there is to say of oneself: what is left out is back at its default (wire.md 6.2.4)."""
        known = Info.of(name=name, accept_role=accept_role)
        return self.write(Info((*known.pairs, *(others or {}).items())), sync=sync)
