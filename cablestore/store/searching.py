"""Searching of a store: pages of messages that match what a person entered, with the matches marked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, NamedTuple

from cablestore import limits
from cablestore.errors import SearchError
from cablestore.index.batches import Progress, no_progress
from cablestore.index.reader import DATA_PREFIX, Reader
from cablestore.protocol.post import Post
from cablestore.search.excerpt import Excerpt, excerpt_of, merged
from cablestore.search.index import PURGES_BEFORE_ANSWER, IndexThrownAwayError, Question, SearchIndex
from cablestore.store.display import Display, Message
from cablestore.store.queries import Queries

Order = Literal["newest", "ranked"]
"""Order of what is found: by time, or by how often and in how short a text the words occur (BM25)."""

_FOUND_AT_ONCE: Final = 100
"""Texts that are asked for together: each question for the best of them ranks all."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """Message that matches. `marks` are begin and end of each match in its text; `excerpt` is the part around them."""

    message: Message
    marks: tuple[tuple[int, int], ...]
    excerpt: Excerpt


class SearchPage(NamedTuple):
    """Messages that match, the cursor of the next page, None at the end, and what the index lacks.

    `pending` is about how many posts and events the index has still to read. It is 0 if the page is complete. As in
    `Page`, a page before the end may have few messages, or none.
    """

    hits: list[SearchHit]
    cursor: str | None
    pending: int


class Searching(Queries):
    """Methods of a store that search. They need the extra `search` and raise MissingExtraError without it."""

    _search: SearchIndex

    def search(
        self,
        text: str,
        *,
        channel: str | None = None,
        author: bytes | None = None,
        after: int | None = None,
        before: int | None = None,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "newest",
        catch_up_s: float = limits.SEARCH_CATCH_UP_S,
    ) -> SearchPage:
        """Return up to `limit` messages (at most `limits.MAX_PAGE_MESSAGES`) with all words of `text`.

        `"two words"` in quotes must follow each other, and `word*` is the beginning of a word. Case and accents do not
        matter. In Chinese, Japanese and Korean each character is a word. `channel`, `author` and after <= time < before
        choose among the messages. Messages that moderation hides or drops are left out.

        The index is made by the first search. Each search reads what is new in the store, for about `catch_up_s`
        seconds at most, then answers from what was read: `SearchPage.pending` says what is left. It does not wait until
        the words of removed messages are overwritten in a large index: later searches and `update_search_index` go on.

        Raises SearchError for a text without a word, a limit, or a wrong cursor; StorageError if the index cannot be
        written.
        """
        limit = max(1, min(limit, limits.MAX_PAGE_MESSAGES))
        place = _place_of(cursor, order)
        channel_id = None if channel is None else self._reading_dialect(channel)
        for attempt in (1, 2):
            try:
                pending = self._search.catch_up(catch_up_s, purges=PURGES_BEFORE_ANSWER)
                question = self._search.question(text, channel_id, author, after or 0, before)
                messages, next_cursor = self._page(question, limit, order, place)
                return SearchPage(self._hits(question, messages), next_cursor, pending)
            except IndexThrownAwayError:
                if attempt == 2:
                    raise
        raise AssertionError

    def update_search_index(self, *, progress: Progress = no_progress, timeout_s: float | None = None) -> int:
        """Make the search index, or read what is new in the store, until it is complete or time is up.

        Without `timeout_s` no word of a removed message is left in its file afterwards.
        `progress` counts posts and events. Returns about how many are left. If interrupted, it can be run again.
        """
        try:
            return self._search.catch_up(timeout_s, progress)
        except IndexThrownAwayError:
            return self._search.catch_up(timeout_s, progress)

    def _reading_dialect(self, channel: str) -> str:
        with self._reading() as reader:
            return reader.dialect.channel_id(channel)

    def _page(
        self, question: Question, limit: int, order: Order, place: int | None
    ) -> tuple[list[Message], str | None]:
        messages: list[Message] = []
        with self._reading() as reader:
            display = Display(reader, self._judgement())
            for read, (at, prefix) in enumerate(self._found(question, order, place, max(limit, _FOUND_AT_ONCE)), 1):
                for post in _posts(reader, prefix):
                    if question.chooses(post) and display.is_here(post):
                        message = display.shown(post, "omit")
                        if message is not None:
                            messages.append(message)
                if len(messages) >= limit or read >= max(limit, limits.MAX_PAGE_ROWS_READ):
                    return messages, f"{order}-{at}"
        return messages, None

    def _found(self, question: Question, order: Order, place: int | None, number: int) -> Iterator[tuple[int, bytes]]:
        """Yield the place after which a next page continues, and the beginning of the hash, of each text found."""
        while True:
            if order == "newest":
                found = self._search.newest(question, place, number)
            else:
                skipped = place or 0
                ranked = self._search.ranked(question, skipped, number)
                found = [(skipped + at, prefix) for at, (_, prefix) in enumerate(ranked, 1)]
            yield from found
            if len(found) < number:
                return
            place = found[-1][0]

    def _hits(self, question: Question, messages: list[Message]) -> list[SearchHit]:
        found = self._search.marks(question, [message.text for message in messages])
        places = [merged(marks) for marks in found]
        return [
            SearchHit(message, marks, excerpt_of(message.text, marks))
            for message, marks in zip(messages, places, strict=True)
        ]


def _posts(reader: Reader, prefix: bytes) -> list[Post]:
    """Return the stored posts whose hashes begin so: one, or none if it was removed meanwhile."""
    start = DATA_PREFIX + prefix.hex().encode()
    rows = islice(reader.scan(start, start + b"~", at_once=2), 2)
    found = (reader.post(bytes.fromhex(key[len(DATA_PREFIX) :].decode())) for key, _ in rows)
    return [post for post in found if post is not None]


def _place_of(cursor: str | None, order: Order) -> int | None:
    if cursor is None:
        return None
    name, _, digits = cursor.partition("-")
    if name != order or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise SearchError(f"{cursor!r} is no cursor of a search in the order {order!r}: begin with the first page")
    return int(digits)
