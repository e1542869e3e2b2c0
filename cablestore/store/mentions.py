"""Mentions: texts that name the user. Local rows list them in order of time; texts are checked when they are stored.

    !local!mention!<mono-ts>              -> hash u8[32] | author u8[32]
    !local!mention-in!<channel>!<mono-ts> -> hash u8[32] | author u8[32]
    !local!mentioning!     -> msgpack [public key, [[<mono-ts> of a post/info, name], ...]]: names of the last search
    !local!mention-rules!  -> version of the rules of that search, a number
    !local!mention-search! -> msgpack [from, to, channel, place]: texts that must still be searched, between two
                              <mono-ts> (b"" for no bound), and the position where the search continues

A text names the user by a name that the user had at about the time of the text. Clocks differ, so these names count:

* names that the user had within `limits.MENTION_TOLERANCE_MS` of the text's time;
* names that the user had within the same tolerance of a post that the text links to: the text's author had seen that
  post. The post must be in the same channel and dated less than `limits.MAX_FUTURE_MS` after the text.

A post/info of the user that arrives late or is removed changes the names for a range of time. The texts of that range,
and the texts that link to its posts, are searched again: `limits.MAX_BATCH_POSTS` posts in the same write, the others
when mentions are read. If a post arrives after a text that links to it, or is removed, that text is checked again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, Self

from cablestore import limits
from cablestore.index.local import MENTION, MENTION_IN, MENTION_SEARCH, MENTIONING, local_key
from cablestore.index.packing import pack
from cablestore.index.plan import Plan
from cablestore.index.reader import Reader
from cablestore.protocol.body import Info, Text
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import SORT_TIME_SIZE_BYTES, after_prefix, escape, time_floor, time_of, unescape
from cablestore.protocol.post import Post
from cablestore.store.naming import folded, folded_name, has_key, is_named
from cablestore.store.read_marks import named_value, unpacked
from cablestore.views import links, messages, sync, user_info

RULES: Final = b"1"
"""Version of the rules that decide if a text names the user. After a change, all texts are searched again."""


@dataclass(frozen=True, slots=True)
class Naming:
    """The user's public key and names. Each name was the current name from the <mono-ts> in `since`."""

    own_key: bytes
    since: tuple[bytes, ...]
    names: tuple[str, ...]
    key_hex: str

    @classmethod
    def of(cls, own_key: bytes, names: list[tuple[bytes, str]]) -> Self:
        """Return the naming for a key and pairs (<mono-ts>, folded name) in order of time."""
        return cls(own_key, tuple(at for at, _ in names), tuple(name for _, name in names), own_key.hex())

    @classmethod
    def read(cls, reader: Reader, own_key: bytes | None) -> Self:
        """Read the names from the user's post/infos. Without a key, the user does not have names."""
        names = []
        for key, digest in reader.prefix(b"%b%b!" % (user_info.PREFIX, own_key.hex().encode())) if own_key else ():
            post = reader.post(digest)
            name = post.body.name if post is not None and isinstance(post.body, Info) else None
            names.append((key[-SORT_TIME_SIZE_BYTES:], folded_name(name or "")))
        return cls.of(own_key or b"", names)

    @classmethod
    def stored(cls, reader: Reader) -> Self | None:
        """Return the names of a store's last search for mentions.

        Returns None if the store was not searched, or if the row is damaged.
        """
        match unpacked(reader.local(MENTIONING, b"")):
            case [bytes() as own_key, list() as names] if all(map(_is_name, names)):
                return cls.of(own_key, [(name[0], name[1]) for name in names])
        return None

    def encode(self) -> bytes:
        """Return the value of the local row `mentioning`."""
        return pack([self.own_key, [list(pair) for pair in zip(self.since, self.names, strict=True)]])

    def name_at(self, place: bytes) -> str:
        """Return the folded name at a <mono-ts>, "" if the user had no name then."""
        at = bisect_right(self.since, place)
        return self.names[at - 1] if at else ""

    def names_near(self, time_ms: int) -> set[str]:
        """Return the folded names that the user had within the tolerance of a time."""
        first = bisect_left(self.since, time_floor(max(time_ms - limits.MENTION_TOLERANCE_MS, 0))) - 1
        end = bisect_left(self.since, time_floor(time_ms + limits.MENTION_TOLERANCE_MS + 1))
        return {name for name in self.names[max(first, 0) : end] if name}

    def is_mentioned_by(self, post: Post, reader: Reader) -> bool:
        """Return True if a post is a text of another author that names the user."""
        body = post.body
        if not isinstance(body, Text) or not self.own_key or post.author == self.own_key:
            return False
        text, near = folded(body.text), self.names_near(post.timestamp_ms)
        if any(is_named(text, name) for name in near) or has_key(text, self.key_hex):
            return True
        named = {name for name in {*self.names} - near if is_named(text, name)}
        return bool(named) and any(named & self.names_near(time_ms) for time_ms in _linked_times_ms(reader, post))

    def may_differ_for_links(self, post: Post) -> bool:
        """Return True if a text may name the user only because it links to `post`.

        That is a text with a name that the user had at the time of `post`, but not at the time of the text.
        """
        steady_ms = post.timestamp_ms - limits.MAX_FUTURE_MS - limits.MENTION_TOLERANCE_MS
        is_steady = not self.since or time_of(self.since[-1]) < steady_ms
        return post.is_linkable and not is_steady and bool(self.names_near(post.timestamp_ms))

    def difference(self, other: Self) -> tuple[bytes, bytes] | None:
        """Return the range (from, to) of times near which two namings differ, in key format. None if they are equal.

        b"" means no bound.
        """
        if self.own_key != other.own_key:
            return b"", b""
        bounds = sorted({*self.since, *other.since})
        differ = [at for at, place in enumerate(bounds) if self.name_at(place) != other.name_at(place)]
        if not differ:
            return None
        last = differ[-1] + 1
        start_ms = max(time_of(bounds[differ[0]]) - limits.MENTION_TOLERANCE_MS, 0)
        stop_ms = time_of(bounds[last]) + limits.MENTION_TOLERANCE_MS + 1 if last < len(bounds) else None
        return time_floor(start_ms), b"" if stop_ms is None else time_floor(stop_ms)


def _is_name(fields: object) -> bool:
    match fields:
        case [bytes(), str()]:
            return True
    return False


class Search(NamedTuple):
    """An unfinished search of stored texts for mentions: the range of time, and the position where it continues."""

    start: bytes = b""
    stop: bytes = b""
    channel_key: bytes = b""
    place: bytes = b""

    @classmethod
    def stored(cls, reader: Reader) -> Self | None:
        """Return the unfinished search of a store, None if none is unfinished.

        If the row of the search is damaged, return a search of all texts.
        """
        value = reader.local(MENTION_SEARCH, b"")
        match unpacked(value):
            case [bytes() as start, bytes() as stop, bytes() as channel_key, bytes() as place]:
                return cls(start, stop, channel_key, place)
        return None if value is None else cls()

    def widened(self, start: bytes, stop: bytes) -> Search:
        """Return a search from `start` to `stop` and over this search's own range, which begins again."""
        return Search(min(self.start, start), max(self.stop, stop) if self.stop and stop else b"")

    def put(self, plan: Plan) -> None:
        """Add the local row of the search to a plan."""
        plan.set_local(MENTION_SEARCH, b"", pack(list(self)))


def require_search(plan: Plan, start: bytes, stop: bytes) -> None:
    """Extend the stored search to the texts between `start` and `stop`, and to texts that link to posts between them.

    Both are <mono-ts>; b"" means no bound.
    """
    known = Search.stored(plan.reader)
    (Search(start, stop) if known is None else known.widened(start, stop)).put(plan)


def search_some(plan: Plan, naming: Naming, most: int) -> int:
    """Continue the stored search with up to `most` posts. Return the number of posts that were searched.

    If it is less than `most`, the search is complete.
    """
    search = Search.stored(plan.reader)
    if search is None:
        return 0
    found = list(islice(_posts(plan.reader, search), most))
    for _, _, digest in found:
        post = plan.reader.post(digest)
        if post is not None:
            _search_text(plan, naming, post)
        if post is not None and (search.start or search.stop):
            search_linking(plan, naming, post)
    if len(found) < most:
        plan.set_local(MENTION_SEARCH, b"", None)
    else:
        channel_key, place, _ = found[-1]
        search._replace(channel_key=channel_key, place=place).put(plan)
    return len(found)


def search_linking(plan: Plan, naming: Naming, post: Post) -> None:
    """Check up to `limits.MAX_BATCH_POSTS` texts that link to `post` for mentions. Only an attacker writes more."""
    for digest in islice(links.linking(plan.reader, post.hash), limits.MAX_BATCH_POSTS):
        text = plan.reader.post(digest)
        if text is not None and text.channel_key == post.channel_key:
            _search_text(plan, naming, text)


def _search_text(plan: Plan, naming: Naming, post: Post) -> None:
    """Add the mention's rows if the text `post` names the user. Delete existing rows if it does not."""
    is_mentioned = naming.is_mentioned_by(post, plan.reader)
    if is_mentioned or plan.reader.local(MENTION, post.sort_time) is not None:
        set_mention(plan, post, is_mentioned=is_mentioned)


def _posts(reader: Reader, search: Search) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield (escaped channel name, <mono-ts>, hash) of the posts that a search has not read yet."""
    for channel in messages.channels(reader, unescape(search.channel_key)):
        channel_key = escape(channel)
        after = search.place + b"~" if channel_key == search.channel_key and search.place else search.start
        start, stop = channel_key + b"!" + after, channel_key + b"!" + (search.stop or b"~")
        for key, digest in sync.items(reader, start, stop):
            yield channel_key, key[-SORT_TIME_SIZE_BYTES:], digest


def _linked_times_ms(reader: Reader, text: Post) -> Iterator[int]:
    """Yield the times of posts of the same channel that `text` links to, except posts dated too far after it.

    At most MAX_LINKS_WRITTEN links are read, because clients write no more.
    """
    for post in map(reader.post, text.links[: limits.MAX_LINKS_WRITTEN]):
        is_in_channel = post is not None and post.is_linkable and post.channel_key == text.channel_key
        if post is not None and is_in_channel and post.timestamp_ms - text.timestamp_ms < limits.MAX_FUTURE_MS:
            yield post.timestamp_ms


def set_mention(plan: Plan, post: Post, *, is_mentioned: bool) -> None:
    """Add the mention's rows for the text `post`, or delete them if `is_mentioned` is False."""
    value = named_value(post) if is_mentioned else None
    plan.set_local(MENTION, post.sort_time, value)
    plan.set_local(MENTION_IN, post.channel_key + b"!" + post.sort_time, value)


def newest(reader: Reader, before: bytes | None, channel_key: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    """Yield (<mono-ts>, hash) of the mentions before the <mono-ts> `before` (None: all), newest first.

    If `channel_key` is None, the mentions of all channels are yielded.
    """
    prefix = local_key(MENTION) if channel_key is None else local_key(MENTION_IN, channel_key + b"!")
    for key, value in reader.scan(prefix, after_prefix(prefix) if before is None else prefix + before, reverse=True):
        yield key[len(prefix) :], value[:HASH_SIZE_BYTES]
