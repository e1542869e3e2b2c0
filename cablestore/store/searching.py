"""Full-text search in a store: pages of matching messages, with the matches marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeVar, get_args

from cablestore import limits
from cablestore.arguments import Time, check, check_choice, check_given, checked_window
from cablestore.errors import ArgumentError
from cablestore.index.batches import Progress
from cablestore.index.engine import Engine
from cablestore.index.reader import DATA_PREFIX, Reader
from cablestore.protocol.keys import unhex
from cablestore.protocol.post import Post
from cablestore.search.documents import hash_at
from cablestore.search.excerpt import Excerpt, excerpt_of, merged
from cablestore.search.index import PURGES_BEFORE_ANSWER, IndexThrownAwayError, Question, SearchIndex
from cablestore.store.cursor import SearchCursor
from cablestore.store.display import Display, Message
from cablestore.store.present import Present

T = TypeVar("T")

Order = Literal["newest", "ranked"]
"""Order of results: newest first, or by frequency of the words and length of the text (BM25)."""

_FOUND_AT_ONCE: Final = 100
"""Number of texts per query to the index. Each ranked query ranks up to `limits.MAX_SEARCH_RANKED` matches again."""

_CURSOR_DIGITS: Final = 32
"""Number of hex digits of a position in a cursor."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A matching message. `marks` are (begin, end) of each match in its text; `excerpt` is the part around them."""

    message: Message
    marks: tuple[tuple[int, int], ...]
    excerpt: Excerpt


class SearchPage(NamedTuple):
    """Matching messages, the cursor of the next page (None at the end), and the backlog of the index.

    `pending` is the approximate number of posts and events that the index has not read yet. It is 0 if the page is
    complete. As with `Page`, a page before the end may contain few messages, or none.
    """

    hits: list[SearchHit]
    cursor: SearchCursor | None
    pending: int


class Searcher:
    """Full-text search of an open store. Raises MissingExtraError if the extra `search` is not installed."""

    def __init__(self, engine: Engine, present: Present) -> None:
        self._engine = engine
        self._present = present
        folder = None if engine.folder is None else engine.folder.path
        self._index = SearchIndex(folder, engine.dialect, engine.reading, read_only=engine.is_read_only)

    def close(self) -> None:
        """Close the search index."""
        self._index.close()

    def search(
        self,
        text: str,
        *,
        channel: str | None,
        author: bytes | None,
        after_ms: Time | None,
        before_ms: Time | None,
        limit: int,
        cursor: SearchCursor | None,
        order: Order,
        catch_up_s: float,
    ) -> SearchPage:
        """Return up to `limit` matching messages: see `CableStore.search`."""
        check(text=text, limit=limit, catch_up_s=catch_up_s)
        check_choice("order", order, get_args(Order))
        check_given(channel=channel, author=author, cursor=cursor)
        start_ms, end_ms = checked_window(after_ms, before_ms)
        limit = min(limit, limits.MAX_PAGE_MESSAGES)
        place = _place_of(cursor, order)
        channel_id = None if channel is None else self._engine.dialect.channel_id(channel)

        def read() -> SearchPage:
            pending = self._index.catch_up(catch_up_s, purges=PURGES_BEFORE_ANSWER)
            question = self._index.question(text, channel_id, author, start_ms, end_ms)
            messages, next_cursor = self._page(question, limit, order, place)
            return SearchPage(self._hits(question, messages), next_cursor, pending)

        return _with_new_index(read)

    def catch_up(self, timeout_s: float | None, progress: Progress) -> int:
        """Update the index for up to `timeout_s`. Return the approximate number of remaining posts and events."""
        return _with_new_index(lambda: self._index.catch_up(timeout_s, progress))

    def _page(
        self, question: Question, limit: int, order: Order, place: int | None
    ) -> tuple[list[Message], SearchCursor | None]:
        messages: list[Message] = []
        with self._engine.reading() as reader:
            display = Display(reader, self._present.state.moderation)
            for read, (at, found) in enumerate(self._found(question, order, place, max(limit, _FOUND_AT_ONCE)), 1):
                for post in _posts(reader, hash_at(found)):
                    if question.chooses(post) and display.is_here(post):
                        message = display.shown(post, "omit")
                        if message is not None:
                            messages.append(message)
                if len(messages) >= limit or read >= max(limit, limits.MAX_PAGE_ROWS_READ):
                    return messages, SearchCursor(f"{order}-{at:0{_CURSOR_DIGITS}x}")
        return messages, None

    def _found(self, question: Question, order: Order, place: int | None, number: int) -> Iterator[tuple[int, int]]:
        """Yield (position for a cursor, position in the index) of each match after the cursor position `place`.

        The index is queried for `number` matches at a time.
        """
        while True:
            if order == "newest":
                found = [(at, at) for at in self._index.newest(question, place, number)]
            else:
                found = list(enumerate(self._index.ranked(question, place or 0, number), (place or 0) + 1))
            yield from found
            if len(found) < number:
                return
            place = found[-1][0]

    def _hits(self, question: Question, messages: list[Message]) -> list[SearchHit]:
        found = self._index.marks(question, [message.text for message in messages])
        places = [merged(marks) for marks in found]
        return [
            SearchHit(message, marks, excerpt_of(message.text, marks))
            for message, marks in zip(messages, places, strict=True)
        ]


def _with_new_index(call: Callable[[], T]) -> T:
    """Call a function, and call it again if an empty index has replaced a damaged one."""
    try:
        return call()
    except IndexThrownAwayError:
        return call()


def _posts(reader: Reader, prefix: bytes) -> list[Post]:
    """Return up to two stored posts whose hashes begin with `prefix`: normally one, or none if the post was removed."""
    start = DATA_PREFIX + prefix.hex().encode()
    rows = islice(reader.scan(start, start + b"~", at_once=2), 2)
    found = (reader.post(unhex(key[len(DATA_PREFIX) :])) for key, _ in rows)
    return [post for post in found if post is not None]


def _place_of(cursor: SearchCursor | None, order: Order) -> int | None:
    if cursor is None:
        return None
    name, _, digits = cursor.partition("-")
    if name != order or len(digits) != _CURSOR_DIGITS or set(digits) - set("0123456789abcdef"):
        raise ArgumentError(
            f"invalid cursor of a search in the order {order!r}: {cursor!r}. Fetch the first page again"
        )
    return int(digits, 16)
