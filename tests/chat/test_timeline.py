"""Rows of a channel's history: pages, days, names, long messages, the line of unread messages, and selected text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

import pytest
from people import ANN, BOB, START_MS, raws

from cablestore import CableStore, Post
from cablestore.chat.display_limits import MAX_HELD
from cablestore.chat.marked_text import MarkedPart, copied, marked_text, word_at
from cablestore.chat.timeline import LINES_SHOWN, Row, Timeline, short_name, with_key_digits
from cablestore.store.display import Message

MINUTE_MS, DAY_MS = 60_000, 86_400_000


def messages_of(*posts: Post, hidden: Sequence[Post] = ()) -> list[Message]:
    """Return the messages of posts in #default, oldest first."""
    with CableStore.in_memory() as store:
        store.ingest(raws(BOB.named("bob", at=START_MS), ANN.named("ann", at=START_MS), *posts))
        if hidden:
            store.moderation.hide(posts=[post.hash for post in hidden], private=True)
        return list(store.messages("default", 200, newest_first=False, hidden="mark").messages)


def said(text: str, minute: float = 0) -> Post:
    return BOB.text("default", text, at=START_MS + int(minute * MINUTE_MS))


def timeline_of(messages: Sequence[Message]) -> Timeline:
    found = Timeline(UTC)
    found.set_window(messages, has_newer=False)
    return found


def texts(timeline: Timeline) -> list[str]:
    return [message.text for message in timeline.messages]


def drawn(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    return [(row.time, row.name, row.text) for row in rows]


NUMBERED = messages_of(*(said(str(number), number) for number in range(6)))


def test_pages_are_added_at_both_ends() -> None:
    timeline = Timeline(UTC)
    assert not timeline.is_read
    timeline.set_newest(NUMBERED[:3:-1], has_older=True)
    assert (texts(timeline), timeline.has_older, timeline.has_newer, timeline.is_read) == (
        ["4", "5"],
        True,
        False,
        True,
    )
    timeline.add_older(NUMBERED[3:1:-1], has_older=True)
    assert (texts(timeline), timeline.has_older, timeline.has_newer) == (["2", "3", "4", "5"], True, False)
    timeline.add_older(NUMBERED[1::-1], has_older=False)
    assert (texts(timeline), timeline.has_older) == (["0", "1", "2", "3", "4", "5"], False)
    timeline.set_window(NUMBERED[:2], has_newer=True)
    timeline.add_newer(NUMBERED[2:4], has_newer=True)
    assert (texts(timeline), timeline.has_newer, timeline.has_older) == (["0", "1", "2", "3"], True, False)
    timeline.add_newer(NUMBERED[4:], has_newer=False)
    assert (texts(timeline), timeline.has_newer) == (["0", "1", "2", "3", "4", "5"], False)


def test_a_new_page_keeps_older_messages_only_if_they_are_adjacent() -> None:
    def renewed(held: Sequence[Message], page: Sequence[Message], **more: bool) -> tuple[list[str], bool]:
        timeline = timeline_of(held)
        timeline.has_newer = more.pop("has_newer", False)
        timeline.set_newest(page, **({"has_older": True, "keeps_older": True} | more))
        assert timeline.has_newer is False
        return texts(timeline), timeline.has_older

    assert renewed(NUMBERED[:4], NUMBERED[:2:-1]) == (["0", "1", "2", "3", "4", "5"], False)
    assert renewed(NUMBERED[:3], NUMBERED[:2:-1]) == (["3", "4", "5"], True)
    assert renewed(NUMBERED[:4], NUMBERED[:2:-1], keeps_older=False) == (["3", "4", "5"], True)
    assert renewed(NUMBERED[:4], NUMBERED[:2:-1], has_older=False) == (["3", "4", "5"], False)
    assert renewed(NUMBERED[:4], NUMBERED[:2:-1], has_newer=True) == (["3", "4", "5"], True)
    assert renewed(NUMBERED[:4], []) == ([], True)


@pytest.mark.parametrize("surplus", [0, 1])
def test_messages_above_the_limit_are_removed_at_the_other_end(surplus: int) -> None:
    held = NUMBERED[:1] * (MAX_HELD - 2 + surplus)
    timeline = timeline_of(held)
    timeline.add_older(NUMBERED[5:3:-1], has_older=False)
    assert len(timeline.messages) == MAX_HELD
    assert (texts(timeline)[:3], timeline.has_newer, timeline.has_older) == (["4", "5", "0"], bool(surplus), False)
    timeline = timeline_of(held)
    timeline.add_newer(NUMBERED[4:], has_newer=False)
    assert len(timeline.messages) == MAX_HELD
    assert (texts(timeline)[-3:], timeline.has_older, timeline.has_newer) == (["0", "4", "5"], bool(surplus), False)


def test_days_times_and_names_are_shown_once() -> None:
    posts = [said("one"), said("same minute", 0.5), said("five minutes", 5.5), said("later", 10.6)]
    posts += [ANN.text("default", "other", at=START_MS + 11 * MINUTE_MS), said("next day", 1440)]
    rows = timeline_of(messages_of(*posts)).rows(60, 9)
    assert drawn(rows) == [
        ("", "", "Tuesday 14 November 2023"),
        ("22:13", "bob", "one"),
        ("22:13", "", "same minute"),
        ("22:18", "", "five minutes"),
        ("22:23", "bob", "later"),
        ("22:24", "ann", "other"),
        ("", "", "Wednesday 15 November 2023"),
        ("22:13", "bob", "next day"),
    ]
    assert [row.message is None for row in rows] == [True, *[False] * 5, True, False]


def test_an_answer_from_a_slow_clock_does_not_begin_a_day() -> None:
    question = said("question", 1440)
    answer = BOB.text("default", "answer", at=START_MS, links=(question.hash,))
    rows = timeline_of(messages_of(question, answer)).rows(60, 9)
    assert [(row.name, row.text) for row in rows] == [
        ("", "Wednesday 15 November 2023"),
        ("bob", "question"),
        ("bob", "answer"),
    ]


def test_a_line_precedes_the_first_unread_message() -> None:
    timeline = timeline_of(NUMBERED)

    def place(cursor: str) -> int:
        return next((at for at, row in enumerate(timeline.rows(60, 9, cursor)) if row.is_unread_line), -1)

    assert place("") == -1
    assert [place(message.cursor) for message in NUMBERED] == [1, 2, 3, 4, 5, 6]
    rows = timeline.rows(60, 9, NUMBERED[2].cursor)
    assert (rows[3].text, rows[3].message) == ("unread messages", None)
    assert (rows[4].text, rows[4].name) == ("2", "bob")
    assert place(NUMBERED[2].cursor + "x") == 4  # the message is gone: the line is at the next one
    assert place(NUMBERED[5].cursor + "x") == -1
    timeline = timeline_of(NUMBERED[2:])
    timeline.has_older = True
    assert place(NUMBERED[2].cursor) == 1
    assert place(NUMBERED[1].cursor) == -1  # the first unread message is above
    assert place(NUMBERED[3].cursor) == 2


def test_a_changed_width_or_name_draws_all_messages_again() -> None:
    timeline = timeline_of(messages_of(said("a word and another word")))
    assert [row.text for row in timeline.rows(40, 9)][1:] == ["a word and another word"]
    assert [row.text for row in timeline.rows(16 + 11, 9)][1:] == ["a word and", "another", "word"]
    timeline.same_named = frozenset({BOB.key})
    assert timeline.rows(60, 17)[1].name == f"bob {BOB.key.hex()[:8]}"
    assert timeline.rows(60, 12)[1].name == f"bob {BOB.key.hex()[:8]}"
    assert timeline.rows(60, 11)[1].name == f"b… {BOB.key.hex()[:8]}"
    assert [row.text for row in timeline.rows(1, 9)][1:] == ["a word", "and", "another", "word"]


def test_names_are_cut_and_keys_are_shortened() -> None:
    [message] = messages_of(BOB.named("a long name", at=START_MS + 1), said("x"))
    names = [timeline_of([message]).rows(60, width)[1].name for width in (12, 11, 10)]
    assert names == ["a long name", "a long name", "a long na…"]
    digits = BOB.key.hex()
    assert with_key_digits(digits[:8], BOB.key) == digits[:16]
    assert with_key_digits(digits[:7], BOB.key) == f"{digits[:7]} {digits[:8]}"
    assert with_key_digits("bob", BOB.key, 5) == f"… {digits[:8]}"
    assert short_name("ab" * 31 + "ax") == "ab" * 31 + "ax"
    assert short_name("a" * 63) == "a" * 63
    assert timeline_of([]).rows(60, 9) == []


@pytest.mark.parametrize("surplus", [1, 2])
def test_a_long_message_is_folded(surplus: int) -> None:
    """The line of a fold takes as much space as one further line."""
    lines = [f"line {number}" for number in range(LINES_SHOWN + surplus)]
    [message] = messages_of(said("\n".join(lines)))
    timeline = timeline_of([message])
    is_long = surplus > 1
    folded = [*lines[:LINES_SHOWN], f"… {surplus} more lines"] if is_long else lines
    assert [row.text for row in timeline.rows(60, 9)[1:]] == folded
    assert not timeline.is_expanded(message)
    assert timeline.expand(message, is_expanded=True) is is_long
    assert timeline.is_expanded(message) is is_long
    rows = timeline.rows(60, 9)
    assert [row.text for row in rows[1:]] == [*lines, "… Left collapses"][: len(lines) + is_long]
    assert [row.is_fold for row in rows] == [*[False] * (len(lines) + 1), True][: len(rows)]
    timeline.expand(message, is_expanded=False)
    assert [row.text for row in timeline.rows(60, 9)[1:]] == folded


def test_a_hidden_message_shows_neither_its_text_nor_its_links() -> None:
    rude = said("see https://x.org/a")
    rows = timeline_of(messages_of(rude, hidden=[rude])).rows(60, 9)
    assert (rows[1].text, rows[1].links) == ("hidden", ())
    [row] = timeline_of(messages_of(rude)).rows(60, 9)[1:]
    assert [(link.start, link.stop, link.target) for link in row.links] == [(4, 19, "https://x.org/a")]


# --- selected text ----------------------------------------------------------------------------------


def test_selected_text_is_copied_as_it_was_written() -> None:
    long = "a word and another word\nnext  line"
    hidden = said("hidden one", 2)
    posts = [said("first", 0), said(long, 1), hidden, said("last", 3)]
    rows = timeline_of(messages_of(*posts, hidden=[hidden])).rows(16 + 11, 9)
    assert [row.text for row in rows][1:] == [
        "first", "a word and", "another", "word", "next  line", "hidden", "last"
    ]  # fmt: skip

    def selected(top: int, left: int, bottom: int, right: int) -> str:
        return marked_text(rows, MarkedPart(top, left, bottom, right))

    assert selected(-5, 0, 99, 0) == f"first\n{long}\nlast"
    assert selected(1, 0, 5, 10) == f"first\n{long}"
    assert selected(1, 2, 1, 4) == "rs"
    assert selected(1, 2, 2, 3) == "rst\na w"
    assert selected(2, 2, 4, 2) == "word and another wo"
    assert selected(3, 0, 5, 4) == "another word\nnext"
    assert selected(4, 4, 5, 0) == ""
    assert selected(5, 2, 7, 2) == "xt  line\nla"
    assert selected(6, 0, 6, 6) == ""
    assert selected(0, 0, 0, 5) == ""
    assert selected(7, 0, 7, 99) == "last"


def test_the_line_of_a_fold_is_not_copied() -> None:
    lines = [f"line {number}" for number in range(LINES_SHOWN + 2)]
    rows = timeline_of(messages_of(said("\n".join(lines)))).rows(60, 9)
    assert marked_text(rows, MarkedPart(2, 0, len(rows) - 1, 3)) == "\n".join(lines[1:LINES_SHOWN])
    assert marked_text(rows, MarkedPart(1, 0, len(rows) - 1, 99)) == "\n".join(lines)


def test_words_and_copied_texts() -> None:
    assert [word_at("ab  cd", at) for at in range(7)] == [
        slice(0, 2), slice(0, 2), None, None, slice(4, 6), slice(4, 6), None
    ]  # fmt: skip
    rude = said("rude")
    [shown] = messages_of(said("bell\x07 \u200dend"))
    [hidden] = messages_of(rude, hidden=[rude])
    assert (copied(shown), copied(hidden)) == ("bell \u200dend", "")
