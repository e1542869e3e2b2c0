"""Maximum ages of the posts of a store, by channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cablestore.protocol.dialect import Dialect


@dataclass(frozen=True, slots=True)
class KeepAges:
    """Ages in ms after which posts are removed, None to keep posts forever."""

    default_ms: int | None = None
    """The age for channels that `channels` does not list, and for names of users."""
    channels: Mapping[str, int | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """True if any post is ever removed."""
        return self.default_ms is not None or any(age_ms is not None for age_ms in self.channels.values())

    def of(self, dialect: Dialect) -> KeepAges:
        """Return the same ages, with each channel name replaced by its id in a dialect."""
        return KeepAges(self.default_ms, {dialect.channel_id(name): age for name, age in self.channels.items()})

    def oldest_ms(self, channel: str, now_ms: int) -> int:
        """Return the date before which posts of a channel are removed. "" stands for posts without a channel."""
        age_ms = self.channels.get(channel, self.default_ms)
        return 0 if age_ms is None else max(0, now_ms - age_ms)

    def all_kept_from_ms(self, now_ms: int) -> int:
        """Return the date from which posts of all channels are kept."""
        return max(self.oldest_ms(channel, now_ms) for channel in ("", *self.channels))
