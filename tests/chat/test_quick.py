"""The client's parts without a screen: text of others, lines, typed commands, completion, the window of a history."""

from __future__ import annotations

import asyncio
import unicodedata
from datetime import UTC
from pathlib import Path

import pytest
from chatting import cabals_on
from hypothesis import given
from hypothesis import strategies as st
from people import BOB, START_MS, raws
from rich.cells import cell_len
from waiting import wait_until

from cablestore import CableStore
from cablestore.chat import commands
from cablestore.chat.amounts import MAX_HELD
from cablestore.chat.commands import SentTexts, UnknownCommandError, completions
from cablestore.chat.safe_text import clean, fit, wrap
from cablestore.chat.timeline import Timeline, local, short_name
from cablestore.store import searching

WORD = b"zweiundvierzigstes"


@given(st.text())
def test_clean_text_controls_nothing(text: str) -> None:
    for lines in (False, True):
        for character in clean(text, lines=lines):
            is_break = lines and character == "\n"
            assert is_break or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def test_what_controls_a_terminal_is_replaced() -> None:
    assert clean("\x1b[2J\x07\u202e\x9b") == "\ufffd[2J\ufffd\ufffd\ufffd"
    assert clean("a\tb\r\nc", lines=True) == "a    b\nc"
    assert clean("h" + "\u0301" * 9) == "h" + "\u0301" * 2


@given(st.text(alphabet=st.sampled_from("abc 東京\n\u0301")), st.integers(2, 20))
def test_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    text = clean(text, lines=True)
    lines = wrap(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("one two three", 8, ["one two", "three"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("a\n\n  b", 8, ["a", "", "  b"]),
        ("東京は晴れThe sun", 12, ["東京は晴れ", "The sun"]),
        ("", 8, [""]),
    ],
)
def test_lines_break_between_words(text: str, width: int, lines: list[str]) -> None:
    assert wrap(text, width) == lines


def test_names_are_short() -> None:
    assert short_name("ab" * 32) == "abababab"
    assert short_name(" \x1b[31mann ") == "\N{REPLACEMENT CHARACTER}[31mann"
    assert short_name("  ") == "?"
    assert fit("alexandria", 5) == "alex…"
    assert local(2**63, UTC).year == 1970


def test_what_is_typed() -> None:
    assert commands.read("hello / there") == ("", "hello / there")
    assert commands.read("//hello") == ("", "/hello")
    assert commands.read("/join  garden ") == ("join", "garden")
    assert commands.read("/topic") == ("topic", "")
    for wrong in ("/", "/dance", "/join", "/JOIN x", "/hide "):
        with pytest.raises(UnknownCommandError):
            commands.read(wrong)


def test_what_is_completed() -> None:
    def complete(text: str) -> list[str]:
        return completions(text, ["garden", "kitchen"], ["Ann", "andy", "bob"])

    assert complete("/jo") == ["/join "]
    assert complete("/join ga") == ["/join garden "]
    assert complete("/mute k") == ["/mute kitchen "]
    assert complete("see #k") == ["see #kitchen "]
    assert complete("an") == ["andy: ", "Ann: "]
    assert complete("hello @b") == ["hello @bob "]
    assert complete("hello ") == []


def test_what_was_sent_comes_back() -> None:
    history = SentTexts()
    assert history.step(-1, "now") is None
    for text in ("first", "second", "second"):
        history.add(text)
    assert [history.step(-1, "now"), history.step(-1, ""), history.step(-1, "")] == ["second", "first", None]
    assert [history.step(1, ""), history.step(1, ""), history.step(1, "")] == ["second", "now", None]


def test_a_window_moves_over_a_history_without_gaps() -> None:
    with CableStore.in_memory() as store:
        store.ingest(
            raws(*(BOB.text("default", str(at), at=START_MS + at) for at in range(3 * MAX_HELD))), verify=False
        )
        timeline = Timeline(UTC)
        page = store.messages("default", 200)
        timeline.set_newest(page.messages, has_older=page.cursor is not None)
        while timeline.has_older:
            page = store.messages("default", 200, cursor=timeline.messages[0].cursor)
            timeline.add_older(page.messages, has_older=page.cursor is not None)
            texts = [int(message.text) for message in timeline.messages]
            assert texts == list(range(texts[0], texts[0] + len(texts)))
            assert len(texts) <= MAX_HELD
        assert texts[0] == 0
        assert timeline.has_newer
        rows = timeline.rows(40, 9)
        assert sum(row.message is None for row in rows) == 1, "one day"


def test_a_session_ends_whatever_waits() -> None:
    with cabals_on(CableStore.in_memory(), CableStore.in_memory()) as open_cabals:
        assert [open_cabal.connection for open_cabal in open_cabals] == ["offline", "offline"]


def test_no_word_of_a_removed_message_is_left_after_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search leaves it to later work to overwrite them in a large index. The client does that work."""
    monkeypatch.setattr(searching, "PURGES_BEFORE_ANSWER", 0)
    folder = tmp_path / "store"
    store, post = CableStore.open(folder), BOB.text("default", f"{WORD.decode()} word")
    store.ingest(raws(post, *(BOB.text("default", f"word {at}") for at in range(49))))
    with cabals_on(store) as [open_cabal]:
        assert len(asyncio.run(open_cabal.search("word")).hits) == 50
        assert WORD in b"".join(path.read_bytes() for path in folder.glob("search.sqlite*"))
        store.discard([post.hash])
        assert len(asyncio.run(open_cabal.search("word")).hits) == 49
        wait_until(lambda: WORD not in b"".join(path.read_bytes() for path in folder.glob("search.sqlite*")))
