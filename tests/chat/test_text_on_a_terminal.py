"""Text of other users as displayed on a terminal, in the client and in `log`."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
import wcwidth
from terminals import CTRL_Q, Screen, Start, Terminal
from waiting import wait_until

from cablestore import CableStore, StoreOptions

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
PERSIAN = "\u0645\u06cc\u200c\u0631\u0648\u0645"
HINDI = "\u0939\u093f\u0928\u094d\u0926\u0940"
THUMBS = "\U0001f44d\U0001f3fd" * 3
"""This terminal draws each of them in four cells, newer ones in two."""


def columns_of(screen: Screen, part: str) -> set[int]:
    """Return the columns, in cells, at which screen lines show this text."""
    found = [line.split(part)[0] for line in screen.text.split("\n") if part in line]
    return {sum(max(wcwidth.wcwidth(character), 0) for character in before) for before in found}


def test_words_of_all_languages_are_printed_unchanged_in_aligned_columns(start_chat: Start, tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "ann") as store:
        for number in range(60):
            store.post("default", f"{THUMBS} {number}")
        store.post("default", f"{PERSIAN} {HINDI} {FAMILY}")
        store.post("default", "a \u202ekcatta\u2066 \x1b[2J end")
    client = start_chat("-s", "ann")
    screen = Screen(client)
    screen.shows("1 member")
    screen.shows("[2J end")
    for word in (PERSIAN, HINDI, FAMILY):
        assert word.encode() in client.bytes
    assert not any(character.encode() in client.bytes for character in "\u202e\u2066")
    screen.shows(f"{THUMBS} 59")
    [members] = columns_of(screen, "1 member")
    lines = [line for line in screen.text.split("\n") if THUMBS in line]
    names = {sum(max(wcwidth.wcwidth(c), 0) for c in line[: line.index(THUMBS)]) for line in lines}
    assert len(names) == 1
    assert all(sum(max(wcwidth.wcwidth(c), 0) for c in line) == client.size[0] for line in lines)
    client.press("\x1bOP")  # a window over the text
    screen.shows("Keys and commands")
    assert not re.search(r"\[\d|\d[mG]", screen.text)
    client.press("\x1bOP")
    wait_until(lambda: "Keys and commands" not in screen.text, lambda: screen.text)
    client.press("\x1b[5~")
    screen.shows("Ctrl+End shows the newest")
    assert columns_of(screen, "1 member") == {members}
    assert client.end(CTRL_Q) == 0


def test_log_prints_words_of_all_languages_without_escapes(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "ann") as store:
        store.post("default", f"{PERSIAN} {HINDI} {FAMILY} \u202e")
        store.set_topic("default", PERSIAN)
    for command in ("log default", "channels"):
        terminal = Terminal([sys.executable, "-m", "cablestore", *command.split(), "-s", "ann"], tmp_path)
        assert terminal.wait() == 0
        assert PERSIAN in terminal.text
        assert "\\u{200c}" not in terminal.text
        assert "\u202e" not in terminal.text
        assert (HINDI in terminal.text and FAMILY in terminal.text) == command.startswith("log")


def test_a_message_of_a_thousand_lines_is_collapsed(start_chat: Start, tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "ann") as store:
        store.post("default", "hello")
        store.post("default", "\n".join(map(str, range(1000, 1800))))
        store.post("default", "\n" * 4000 + "the last line")
        store.post("default", "after it")
    client = start_chat("-s", "ann")
    screen = Screen(client)
    screen.shows("after it")
    screen.shows("… 3,989 more lines")
    screen.shows("… 788 more lines")
    screen.shows("hello")
    click(client, screen, "… 788 more lines")
    screen.shows("1012")
    client.press("\x1b[1;5F")  # Ctrl+End
    screen.shows("1799")
    click(client, screen, "… Left collapses")
    screen.shows("… 788 more lines")
    screen.shows("Escape back")  # the click chose the message
    client.press("\x1b[C")  # Right
    wait_until(lambda: "… 788 more lines" not in screen.text, lambda: screen.text)
    client.press("\x1b[D")  # Left
    screen.shows("… 788 more lines")
    assert client.end(CTRL_Q) == 0


@pytest.mark.thorough
def test_an_answer_with_a_slow_clock_is_below_its_question(start_chat: Start, tmp_path: Path) -> None:
    """In the client and in `log`, the date of its clock is not between the two."""
    now_ms = time.time_ns() // 1_000_000
    with (
        CableStore.open(tmp_path / "bob", options=StoreOptions(clock=lambda: now_ms)) as bob,
        CableStore.open(tmp_path / "ann") as ann,
    ):
        question = bob.post("default", "where is the rake?")
        ann.ingest([question.raw])
    with CableStore.open(tmp_path / "ann", options=StoreOptions(clock=lambda: now_ms - 5 * 365 * 86_400_000)) as ann:
        ann.post("default", "in the shed")
        ann.post("default", "behind the ladder")
    texts = ["where is the rake?", "in the shed", "behind the ladder"]
    terminal = Terminal([sys.executable, "-m", "cablestore", "log", "default", "-s", "ann"], tmp_path)
    assert terminal.wait() == 0
    assert re.findall("|".join(map(re.escape, texts)), terminal.text) == texts
    assert len(re.findall("[A-Z][a-z]+day ", terminal.text)) == 1
    client = start_chat("-s", "ann")
    screen = Screen(client)
    for text in texts:
        screen.shows(text)
    assert re.findall("|".join(map(re.escape, texts)), screen.text) == texts
    assert len(re.findall("[A-Z][a-z]+day ", screen.text)) == 1
    assert client.end(CTRL_Q) == 0


def click(client: Terminal, screen: Screen, part: str) -> None:
    """Press and release the mouse at this text on the screen."""
    lines = screen.text.split("\n")
    row = next(at for at, line in enumerate(lines) if part in line)
    place = f"\x1b[<0;{lines[row].index(part) + 2};{row + 1}"
    client.press(f"{place}M{place}m")
