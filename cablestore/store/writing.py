"""Writing of the user's own posts: one method for each common type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

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
        """Publish all information on oneself: what is left out returns to its default (wire.md 6.2.4).

        `set_name` and `update_info` change a part and keep the rest.
        """
        known = Info.of(name=name, accept_role=accept_role)
        return self.write(Info((*known.pairs, *(others or {}).items())), sync=sync)

    def set_name(self, name: str, *, sync: bool = True) -> Post | None:
        """Change the own name, and keep all else that one tells about oneself; "" removes the name.

        Returns the post, None if one has this name already: then nothing is written.
        """
        return self.update_info(name=name, sync=sync)

    def update_info(
        self,
        *,
        name: str | None = None,
        accept_role: bool | None = None,
        others: Mapping[str, bytes | None] | None = None,
        sync: bool = True,
    ) -> Post | None:
        """Change a part of the information on oneself. What is left out, or is None, stays as it is.

        The name "" removes the name, and None as the value of a key in `others` removes the key. Threads that change
        different parts at the same time lose none. Returns the post, None if nothing changes: then nothing is written.
        """
        given = dict(Info.of(name=name or None, accept_role=accept_role).pairs)
        changes = given | dict(others or {}) | ({"name": None} if name == "" else {})

        def updated(info: Info) -> Info:
            pairs = dict(info.pairs) | changes
            return Info(tuple((key, value) for key, value in pairs.items() if value is not None))

        return self._edit_info(updated, sync=sync)

    @abstractmethod
    def _edit_info(self, edit: Callable[[Info], Info], *, sync: bool) -> Post | None:
        """Publish what `edit` makes of the present info, with no other write in between. None if that is equal."""
