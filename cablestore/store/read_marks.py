"""Read marks: the position up to which the user has read each channel, and the unread texts of other users.

    !local!read!<channel>            -> msgpack [<mono-ts> up to which it is read, number of the latest event then]
    !local!late!<channel>!<mono-ts>  -> hash u8[32] | author u8[32] of an unread text that is dated before the mark

A text is late if it arrived after the channel was marked, or if the user saw a later text first. Late texts are marked
as read one by one (`CableStore.mark_seen`). A channel keeps at most about `limits.MAX_LATE_TEXTS` late texts.

Unread texts are the texts after the mark and the late texts, except texts of the user and hidden texts. Their number is
not stored. It is computed from rows of three views: the texts after a mark in `messages`, the user's own texts in the
channel in `channel_state`, and a hidden user's texts in `author`. So a text dated after the mark does not need a local
row. A channel without a mark was never read: the view `activity` contains its number of texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.errors import CorruptStoreError
from cablestore.index.local import LATE, MENTION_IN, READ, local_key
from cablestore.index.packing import pack, unpack
from cablestore.index.reader import Reader
from cablestore.moderation.applied import AppliedModeration, HiddenUser
from cablestore.protocol.body import TEXT
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import SORT_TIME_SIZE_BYTES, after_prefix, escape, time_of
from cablestore.protocol.post import Post
from cablestore.views import author as author_view
from cablestore.views import channel_state, membership, messages

_MOST_HELD: Final = 1_000
"""If a hidden user has fewer texts, they are kept in memory. Other hidden users' texts are read channel by channel."""


class ReadMark(NamedTuple):
    """Mark of a channel: the <mono-ts> up to which it is read (b"" if it was empty), and the latest event then."""

    place: bytes
    sequence: int


def encode_mark(mark: ReadMark) -> bytes:
    """Return the value of a mark's local row."""
    return pack(list(mark))


def stored_marks(reader: Reader) -> dict[bytes, ReadMark]:
    """Return the marks by escaped channel name. Damaged marks are left out, so their channels are unread."""
    found = {}
    for key, value in reader.local_rows(READ):
        match unpacked(value):
            case [bytes() as place, int() as sequence]:
                found[key] = ReadMark(place, sequence)
    return found


def unpacked(value: bytes | None) -> object:
    """Return the msgpack value of a local row, unpacked. None if `value` is None or damaged."""
    with suppress(CorruptStoreError):
        return None if value is None else unpack(value)
    return None


def named_value(post: Post) -> bytes:
    """Return the value of a row that refers to a text: its hash and author."""
    return post.hash + post.author


class Unread:
    """Unread texts and mentions in one state of a store. Each number is at most `limits.MAX_UNREAD_COUNTED`."""

    def __init__(self, reader: Reader, moderation: AppliedModeration | None, own_key: bytes | None) -> None:
        self._reader = reader
        self._moderation: AppliedModeration | None = None
        if moderation is not None and moderation.decisions.has_actions:
            self._moderation = moderation
        self._own_key = own_key
        self._marks = stored_marks(reader)
        self._has_late = next(reader.local_rows(LATE), None) is not None
        self._has_mentions = next(reader.local_rows(MENTION_IN), None) is not None

    def texts(self, channel: str, held: int) -> int:
        """Return the number of unread texts of a channel. `held` is the number of texts of the channel in the store."""
        mark = self._marks.get(escape(channel))
        if mark is None:
            left_out = len(self._hidden_in(channel, b"", self._hidden_users))
            left_out += sum(1 for _ in self._own_texts(channel, b""))
            return max(0, min(held - left_out, limits.MAX_UNREAD_COUNTED))
        return sum(1 for _ in self._places(channel, mark, limits.MAX_UNREAD_COUNTED))

    def places(self, channel: str) -> tuple[bytes, list[bytes]]:
        """Return the read mark of a channel (b"" if never marked), and the <mono-ts> of its unread texts in order."""
        mark = self._marks.get(escape(channel))
        found = list(self._places(channel, mark, limits.MAX_UNREAD_COUNTED))
        return b"" if mark is None else mark.place, found

    def _places(self, channel: str, mark: ReadMark | None, most: int) -> Iterator[bytes]:
        """Yield the <mono-ts> of up to `most` unread texts of a channel: late texts, then texts after the mark."""
        if mark is None:
            return self._after(channel, b"", self._hidden_in(channel, b"", self._hidden_users), most)
        late = list(islice(self._late(channel), most)) if self._has_late else []
        hidden = self._hidden_in(channel, mark.place, self._hidden_often)
        return chain(late, self._after(channel, mark.place, hidden, most - len(late)))

    def mentions(self, channel: str) -> int:
        """Return the number of unread texts of a channel that name the user."""
        if not self._has_mentions:
            return 0
        mark = self._marks.get(escape(channel))
        found = (place for place, _, _ in self._shown(MENTION_IN, channel))
        unread = (place for place in found if mark is None or self._is_unread(channel, mark, place))
        return sum(1 for _ in islice(unread, limits.MAX_UNREAD_COUNTED))

    def _is_unread(self, channel: str, mark: ReadMark, place: bytes) -> bool:
        return place > mark.place or self._reader.local(LATE, escape(channel) + b"!" + place) is not None

    def _after(self, channel: str, place: bytes, hidden: set[bytes], most: int) -> Iterator[bytes]:
        """Yield the <mono-ts> of up to `most` unread texts after the <mono-ts> `place`, without hidden texts.

        `hidden` contains the <mono-ts> of some hidden texts. The others are found in `_hidden_texts`.
        """
        prefix = messages.PREFIX + escape(channel) + b"!"
        size = len(prefix) + SORT_TIME_SIZE_BYTES  # the row of a deletion has a longer key
        start = prefix + place + b"~" if place else prefix
        rows = self._reader.scan(start, after_prefix(prefix), at_once=most + len(hidden))
        places = (row[0][-SORT_TIME_SIZE_BYTES:] for row in rows if len(row[0]) == size)
        texts = self._hidden_texts
        if hidden or texts:
            places = (at for at in places if at not in hidden and not (at in texts and self._hides(channel, at)))
        return islice(_without(places, self._own_texts(channel, place)), most)

    def _late(self, channel: str) -> Iterator[bytes]:
        for place, _, _ in self._shown(LATE, channel):
            yield place

    def _shown(self, name: bytes, channel: str) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield (<mono-ts>, hash, author) of the texts of others in local rows `name`, if stored and not hidden."""
        prefix = local_key(name, escape(channel) + b"!")
        for key, value in self._reader.prefix(prefix):
            place, digest, author = key[len(prefix) :], value[:HASH_SIZE_BYTES], value[HASH_SIZE_BYTES:]
            is_held = author != self._own_key and self._reader.has(digest.hex().encode())
            if is_held and not self._is_hidden(digest, author, channel, place):
                yield place, digest, author

    # --- texts that do not count ---------------------------------------------------------------

    def _own_texts(self, channel: str, after: bytes) -> Iterator[bytes]:
        """Yield the <mono-ts> of the user's own texts after the <mono-ts> `after`, in order. Memory use is constant."""
        return iter(()) if self._own_key is None else (place for place, _ in self._by(self._own_key, channel, after))

    def _hidden_in(self, channel: str, after: bytes, hidden_users: list[HiddenUser]) -> set[bytes]:
        """Return the <mono-ts> of hidden texts after `after`: texts of `hidden_users`, and single hidden texts."""
        found: set[bytes] = set()
        for user in hidden_users:
            if user.is_hidden_in(channel) and user.public_key != self._own_key:
                rows = self._by(user.public_key, channel, after)
                found |= {place for place, digest in rows if self._is_hidden(digest, user.public_key, channel, place)}
        acted_on = self._acted_on.get(escape(channel), ())
        texts = ((at, digest, by) for at, digest, by in acted_on if at > after and by != self._own_key)
        return found | {at for at, digest, by in texts if self._is_hidden(digest, by, channel, at)}

    @cached_property
    def _acted_on(self) -> dict[bytes, list[tuple[bytes, bytes, bytes]]]:
        """(<mono-ts>, hash, author) of the texts that are targets of actions, by escaped channel name."""
        found: dict[bytes, list[tuple[bytes, bytes, bytes]]] = {}
        for digest in self._moderation.decisions.hidden_posts() if self._moderation is not None else ():
            post = self._reader.post(digest)
            if post is not None and post.type == TEXT:
                found.setdefault(post.channel_key, []).append((post.sort_time, digest, post.author))
        return found

    @cached_property
    def _hidden_users(self) -> list[HiddenUser]:
        """Hidden users with stored texts. Users without texts are left out to save a look-up in each channel."""
        hidden = self._moderation.hidden_users if self._moderation is not None else ()
        return [user for user in hidden if next(author_view.hashes(self._reader, user.public_key, TEXT), None)]

    @cached_property
    def _hidden_since(self) -> tuple[dict[bytes, tuple[bytes, bytes]], list[HiddenUser]]:
        """Texts of hidden users after the oldest mark, as <mono-ts> to (hash, author), and the users who are left out.

        A user with `_MOST_HELD` or more such texts is left out.
        """
        found: dict[bytes, tuple[bytes, bytes]] = {}
        often = []
        oldest = min((mark.place for mark in self._marks.values()), default=b"")
        for user in self._moderation.hidden_users if self._moderation is not None else ():
            prefix = author_view.prefix_of(user.public_key, TEXT)
            rows = self._reader.scan(prefix + oldest, after_prefix(prefix))
            texts = {key[len(prefix) :]: (digest, user.public_key) for key, digest in islice(rows, _MOST_HELD)}
            if len(texts) < _MOST_HELD:
                found |= texts
            else:
                often.append(user)
        return found, often

    @property
    def _hidden_texts(self) -> dict[bytes, tuple[bytes, bytes]]:
        return self._hidden_since[0]

    @property
    def _hidden_often(self) -> list[HiddenUser]:
        return self._hidden_since[1]

    def _hides(self, channel: str, place: bytes) -> bool:
        return self._is_hidden(*self._hidden_texts[place], channel, place)

    def _is_hidden(self, digest: bytes, author: bytes, channel: str, place: bytes) -> bool:
        moderation = self._moderation
        if moderation is None:
            return False
        return moderation.decisions.text_hidden_by(digest, author, channel, time_of(place)) is not None

    def _by(self, author: bytes, channel: str, after: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (<mono-ts>, hash) of an author's texts in a channel after the <mono-ts> `after`, in order."""
        latest_ms = membership.latest_ms(self._reader, channel, author)
        if latest_ms is None or (after and latest_ms < time_of(after)):
            return
        group = escape(channel) + b"!" + author.hex().encode()
        prefix = channel_state.prefix_in(group, TEXT)
        start = prefix + after + b"~" if after else prefix
        for key, digest in self._reader.scan(start, after_prefix(prefix)):
            yield key[len(prefix) :], digest


def _without(places: Iterator[bytes], left_out: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the values of `places` that are not in `left_out`. Both iterators are sorted."""
    other = next(left_out, None)
    for place in places:
        while other is not None and other < place:
            other = next(left_out, None)
        if place != other:
            yield place
