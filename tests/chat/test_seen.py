"""Read state: displayed messages are read and others are unread, for client processes on terminals.

The stores are open in the test, which serves them to the clients and lets messages arrive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from people import ANN, BOB, CYD, START_MS, Person, raws
from terminals import CTRL_Q, Screen, Terminal
from waiting import wait_until

from cablestore import CableStore, Post, StoreOptions, offer

CTRL_HOME, CTRL_END, CTRL_N, CTRL_P, F5 = "\x1b[1;5H", "\x1b[1;5F", "\x0e", "\x10", "\x1b[15~"
DAY_MS = 86_400_000
LINE = "unread messages"
LIST_WIDTH = 24
"""Columns of the list of channels."""


def garden(text: str, minute: float, by: Person = BOB) -> Post:
    """Return a message in #garden, a number of minutes after the first one."""
    return by.text("garden", text, at=START_MS + int(minute * 60_000))


@contextmanager
def served(folder: Path, *posts: Post) -> Iterator[CableStore]:
    with CableStore.open(folder, identity=ANN.identity, options=StoreOptions(verify_threads=1)) as store, offer(store):
        for channel in {post.channel for post in posts if post.channel}:
            store.join(channel)
        store.ingest(raws(*posts))
        yield store


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Callable[[], tuple[Terminal, Screen]]]:
    """Yield a function that starts a client on #garden."""
    started: list[Terminal] = []

    def start() -> tuple[Terminal, Screen]:
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "cablestore",
            "chat",
            "-s",
            tmp_path / "store",
            "--channel",
            "garden",
        ]
        started.append(Terminal(command, tmp_path, (100, 24)))
        screen = Screen(started[-1])
        screen.shows("Write a message")
        return started[-1], screen

    yield start
    for terminal in started:
        terminal.kill()


def unread(store: CableStore) -> dict[str, int]:
    return {channel.name: channel.unread for channel in store.channels()}


def becomes_unread(store: CableStore, **expected: int) -> None:
    wait_until(lambda: unread(store) == expected, lambda: f"{unread(store)}, not {expected}")


def badge(screen: Screen, channel: str) -> str:
    """Return the number beside a channel in the list, or "" if there is none."""
    lines = [line[:LIST_WIDTH] for line in screen.text.split("\n")[1:]]
    found = next((words for words in map(str.split, lines) if words[:1] == [f"#{channel}"]), ["", "not in the list"])
    return found[1] if len(found) > 1 else ""


def has_badge(screen: Screen, number: str) -> bool:
    return badge(screen, "garden") == number


def line_of(screen: Screen, part: str) -> int:
    """Return the number of the screen line with this text, or -1 if there is none."""
    return next((at for at, line in enumerate(screen.text.split("\n")) if part in line), -1)


def test_displayed_messages_are_read_regardless_of_their_date(
    client: Callable[..., tuple[Terminal, Screen]], tmp_path: Path
) -> None:
    """Late, ahead of the clock, or displayed again: the number is cleared, and F5 does not return to it."""
    with served(tmp_path / "store", garden("first", 0), BOB.text("shed", "tools", at=START_MS)) as store:
        keys, screen = client()
        becomes_unread(store, garden=0, shed=1)
        keys.press(CTRL_N)
        becomes_unread(store, garden=0, shed=0)
        keys.press(CTRL_P)
        screen.shows("first")
        ahead = BOB.text("garden", "from a clock ahead", at=store.parts.intake.clock() + 6 * DAY_MS)
        for text, post in (
            ("late by a day", garden("late by a day", -1440)),
            ("from a clock ahead", ahead),
            ("after that one", garden("after that one", 5)),
            ("and the last", garden("and the last", 6, CYD)),
        ):
            store.ingest(raws(post))
            screen.shows(text)
            becomes_unread(store, garden=0, shed=0)
        store.moderation.hide(users=[BOB.key], private=True)
        screen.shows("hidden")
        store.ingest(raws(garden("said while hidden", 3)))
        store.moderation.unhide(users=[BOB.key], private=True)
        screen.shows("said while hidden")
        becomes_unread(store, garden=0, shed=0)
        wait_until(lambda: badge(screen, "garden") == "", lambda: screen.text)
        keys.press(CTRL_N)
        screen.shows("tools")
        keys.press(F5)
        screen.shows("No other channel has unread messages")
        assert keys.end(CTRL_Q) == 0
        assert unread(store) == {"garden": 0, "shed": 0}


@pytest.mark.thorough
def test_a_late_message_above_the_view_is_unread_until_it_is_displayed(
    client: Callable[..., tuple[Terminal, Screen]], tmp_path: Path
) -> None:
    posts = [garden(f"number {at}", at) for at in range(80)]
    with served(tmp_path / "store", *posts) as store:
        keys, screen = client()
        _, other = client()
        screen.shows("number 79")
        becomes_unread(store, garden=0)
        store.ingest(raws(garden("late and far above", 10.5), garden("number 80", 80)))
        screen.shows("number 80")
        for seen in (screen, other):
            wait_until(partial(has_badge, seen, "1"), lambda: screen.text)
        becomes_unread(store, garden=1)
        keys.press(CTRL_HOME)
        screen.shows("late and far above")
        screen.shows(LINE)
        assert line_of(screen, LINE) == line_of(screen, "late and far above") - 1
        becomes_unread(store, garden=0)
        wait_until(lambda: badge(other, "garden") == "", lambda: other.text)
        wait_until(lambda: badge(screen, "garden") == "", lambda: screen.text)
        keys.press(CTRL_END)
        screen.shows("number 80")
        store.ingest(raws(garden("late again", 40.5)))
        wait_until(lambda: badge(screen, "garden") == "1", lambda: screen.text)
        keys.press(F5)
        screen.shows("late again")
        assert line_of(screen, LINE) == line_of(screen, "late again") - 1
        becomes_unread(store, garden=0)
        wait_until(lambda: badge(screen, "garden") == "", lambda: screen.text)
        keys.press(F5)
        screen.shows("No other channel has unread messages")


@pytest.mark.thorough
def test_a_line_marks_the_first_unread_message_and_stays_there(
    client: Callable[..., tuple[Terminal, Screen]], tmp_path: Path
) -> None:
    with served(tmp_path / "store", garden("read", 0), BOB.text("shed", "tools", at=START_MS)) as store:
        keys, screen = client()
        becomes_unread(store, garden=0, shed=1)
        keys.press(CTRL_N)
        screen.shows("tools")
        one = garden("new one", 1)
        store.ingest(raws(one, garden("new two", 2)))
        wait_until(lambda: badge(screen, "garden") == "2", lambda: screen.text)
        keys.press(CTRL_P)
        screen.shows("new two")
        screen.shows(LINE)
        becomes_unread(store, garden=0, shed=0)
        for text, minute in (("new three", 3), ("late", 1.5)):
            store.ingest(raws(garden(text, minute)))
            screen.shows(text)
            assert line_of(screen, "read") < line_of(screen, LINE) == line_of(screen, "new one") - 1
            assert screen.text.count(LINE) == 1
            becomes_unread(store, garden=0, shed=0)
        store.ingest(raws(BOB.delete(one)))
        wait_until(lambda: "new one" not in screen.text, lambda: screen.text)
        assert line_of(screen, LINE) == line_of(screen, "late") - 1
        keys.press(CTRL_N)
        screen.shows("tools")
        keys.press(CTRL_P)
        screen.shows("new three")
        assert LINE not in screen.text


@pytest.mark.thorough
def test_the_line_is_above_a_question_whose_answer_has_a_slow_clock(
    client: Callable[..., tuple[Terminal, Screen]], tmp_path: Path
) -> None:
    with served(tmp_path / "store", garden("read", 10), BOB.text("shed", "tools", at=START_MS)) as store:
        keys, screen = client()
        becomes_unread(store, garden=0, shed=1)
        keys.press(CTRL_N)
        screen.shows("tools")
        question = garden("where is the rake?", 20)
        answer = CYD.text("garden", "in the shed", at=START_MS, links=(question.hash,))
        store.ingest(raws(question, answer))
        wait_until(lambda: badge(screen, "garden") == "2", lambda: screen.text)
        keys.press(CTRL_P)
        screen.shows("in the shed")
        screen.shows(LINE)
        lines = [line_of(screen, part) for part in ("read", LINE, "where is the rake?", "in the shed")]
        assert lines == sorted(lines)
        assert screen.text.count(LINE) == 1
        becomes_unread(store, garden=0, shed=0)
