"""Mentions: the texts that name the user, found when they are stored, in local rows in order of time.

    !local!mention!<mono-ts>              -> hash u8[32] | author u8[32]
    !local!mention-in!<channel>!<mono-ts> -> hash u8[32] | author u8[32]
    !local!mentioning!     -> msgpack [public key, [[<mono-ts> of a post/info, name], ...]]: by what mentions were found
    !local!mention-search! -> msgpack [from, to, channel, place]: texts that must still be searched, between two
                              <mono-ts> (b"" for no bound), and where that continues

A text names the user by the name that the user had at the time of the text: that of the latest own post/info before it.
An own post/info that comes late, or goes, changes the name for a stretch of time. The texts of that stretch are
searched again, `limits.MAX_BATCH_POSTS` in the same write, the others when mentions are read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Self

from cablestore.index.local import MENTION, MENTION_IN, MENTION_SEARCH, MENTIONING, local_key
from cablestore.index.packing import pack
from cablestore.index.plan import Plan
from cablestore.index.reader import Reader
from cablestore.protocol.body import Info, Text
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import SORT_TIME_SIZE_BYTES, after_prefix, escape, unescape
from cablestore.protocol.post import Post
from cablestore.store.naming import folded, folded_name, has_key, is_named
from cablestore.store.read_marks import named_value, unpacked
from cablestore.views import messages, user_info


@dataclass(frozen=True, slots=True)
class Naming:
    """Names of the user: its public key, and its names with the <mono-ts> from which each was the present one."""

    own_key: bytes
    since: tuple[bytes, ...]
    names: tuple[str, ...]
    key_hex: str

    @classmethod
    def of(cls, own_key: bytes, names: list[tuple[bytes, str]]) -> Self:
        """Return the naming for a key and (<mono-ts>, folded name) in order of time."""
        return cls(own_key, tuple(at for at, _ in names), tuple(name for _, name in names), own_key.hex())

    @classmethod
    def read(cls, reader: Reader, own_key: bytes | None) -> Self:
        """Read the names in the user's post/infos. A user without a key has none."""
        names = []
        for key, digest in reader.prefix(b"%b%b!" % (user_info.PREFIX, own_key.hex().encode())) if own_key else ():
            post = reader.post(digest)
            name = post.body.name if post is not None and isinstance(post.body, Info) else None
            names.append((key[-SORT_TIME_SIZE_BYTES:], folded_name(name or "")))
        return cls.of(own_key or b"", names)

    @classmethod
    def stored(cls, reader: Reader) -> Self | None:
        """Return that by which the mentions in a store were found, None if they are not looked for, or it is damaged."""
        match unpacked(reader.local(MENTIONING, b"")):
            case [bytes() as own_key, list() as names] if all(map(_is_name, names)):
                return cls.of(own_key, [(name[0], name[1]) for name in names])
        return None

    def encode(self) -> bytes:
        """Return the value of its local row."""
        return pack([self.own_key, [list(pair) for pair in zip(self.since, self.names, strict=True)]])

    def name_at(self, place: bytes) -> str:
        """Return the folded name at a <mono-ts>, "" if there was none."""
        at = bisect_right(self.since, place)
        return self.names[at - 1] if at else ""

    def is_mentioned_by(self, post: Post) -> bool:
        """Tell whether a post is a text of somebody else that names the user."""
        body = post.body
        if not isinstance(body, Text) or not self.own_key or post.author == self.own_key:
            return False
        text = folded(body.text)
        return is_named(text, self.name_at(post.sort_time)) or has_key(text, self.key_hex)

    def difference(self, other: Self) -> tuple[bytes, bytes] | None:
        """Return the stretch (from, to) of <mono-ts> for which two namings differ, b"" for no bound; None if equal."""
        if self.own_key != other.own_key:
            return b"", b""
        bounds = sorted({*self.since, *other.since})
        differ = [at for at, place in enumerate(bounds) if self.name_at(place) != other.name_at(place)]
        if not differ:
            return None
        last = differ[-1] + 1
        return bounds[differ[0]], bounds[last] if last < len(bounds) else b""


def _is_name(fields: object) -> bool:
    match fields:
        case [bytes(), str()]:
            return True
    return False


class Search(NamedTuple):
    """Search of stored texts for mentions, that is not finished: the stretch of time, and where it continues."""

    start: bytes = b""
    stop: bytes = b""
    channel_key: bytes = b""
    place: bytes = b""

    @classmethod
    def stored(cls, reader: Reader) -> Self | None:
        """Return the search that a store must still do: of all texts if its row is damaged."""
        value = reader.local(MENTION_SEARCH, b"")
        match unpacked(value):
            case [bytes() as start, bytes() as stop, bytes() as channel_key, bytes() as place]:
                return cls(start, stop, channel_key, place)
        return None if value is None else cls()

    def widened(self, start: bytes, stop: bytes) -> Search:
        """Return a search from the beginning, of this stretch and another."""
        return Search(min(self.start, start), max(self.stop, stop) if self.stop and stop else b"")

    def put(self, plan: Plan) -> None:
        """Put its local row."""
        plan.set_local(MENTION_SEARCH, b"", pack(list(self)))


def require_search(plan: Plan, start: bytes, stop: bytes) -> None:
    """Let the texts of a stretch be searched by `search_some`."""
    known = Search.stored(plan.reader)
    (Search(start, stop) if known is None else known.widened(start, stop)).put(plan)


def search_some(plan: Plan, naming: Naming, most: int) -> int:
    """Search up to `most` texts that must still be searched. Returns how many were; less than `most` means all."""
    search = Search.stored(plan.reader)
    if search is None:
        return 0
    found = list(islice(_texts(plan.reader, search), most))
    for _, _, digest in found:
        post = plan.reader.post(digest)
        if post is not None:
            set_mention(plan, post, is_mentioned=naming.is_mentioned_by(post))
    if len(found) < most:
        plan.set_local(MENTION_SEARCH, b"", None)
    else:
        channel_key, place, _ = found[-1]
        search._replace(channel_key=channel_key, place=place).put(plan)
    return len(found)


def _texts(reader: Reader, search: Search) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield (channel as keys have it, <mono-ts>, hash) of the texts that a search has not read."""
    for channel in messages.channels(reader, unescape(search.channel_key)):
        channel_key = escape(channel)
        place = max(search.start, search.place) if channel_key == search.channel_key else search.start
        for at, digest in messages.texts(reader, channel, place or None, search.stop or None, newest_first=False):
            yield channel_key, at, digest


def set_mention(plan: Plan, post: Post, *, is_mentioned: bool) -> None:
    """Put the rows of a text that names the user, or delete them."""
    value = named_value(post) if is_mentioned else None
    plan.set_local(MENTION, post.sort_time, value)
    plan.set_local(MENTION_IN, post.channel_key + b"!" + post.sort_time, value)


def newest(reader: Reader, before: bytes | None, channel_key: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    """Yield (<mono-ts>, hash) of the mentions before a <mono-ts>, newest first, in all channels or in one."""
    prefix = local_key(MENTION) if channel_key is None else local_key(MENTION_IN, channel_key + b"!")
    for key, value in reader.scan(prefix, after_prefix(prefix) if before is None else prefix + before, reverse=True):
        yield key[len(prefix) :], value[:HASH_SIZE_BYTES]
