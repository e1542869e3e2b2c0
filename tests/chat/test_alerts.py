"""Bell and notifications of clients on terminals, as messages arrive.

The stores are open in the test, which serves them to the clients.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from people import ANN, BOB, CYD, Person, raws
from terminals import CTRL_Q, Screen, Terminal
from waiting import wait_until

from cablestore import CableStore, Post, StoreOptions, offer
from cablestore.chat.notifications import notification

BLUR, FOCUS = "\x1b[O", "\x1b[I"
HOSTILE = "ann: a\x1b]0;owned\x07b\x9c;4;1\x1b\\ \u202e<img src=x> end"
XTERM = {"TERM": "xterm-256color"}
Client = Callable[..., tuple[Terminal, Screen]]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def live(text: str, channel: str = "garden", by: Person = BOB) -> Post:
    return by.text(channel, text, at=now_ms())


@contextmanager
def served(folder: Path) -> Iterator[CableStore]:
    with CableStore.open(folder, identity=ANN.identity, options=StoreOptions(verify_threads=1)) as store, offer(store):
        store.ingest(raws(ANN.named("ann"), BOB.named("bob"), CYD.named("cyd")))
        for channel in ("garden", "shed", "quiet"):
            store.join(channel)
        store.local.mute("quiet")
        store.moderation.hide(users=[CYD.key], private=True)
        yield store


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Yield a function that starts a client on #garden, with settings."""
    started: list[Terminal] = []

    def start(settings: str = "", **environ: str) -> tuple[Terminal, Screen]:
        (tmp_path / "chat.toml").write_text(settings, encoding="utf-8")
        command = [sys.executable, "-m", "cablestore", "chat", "-s", "store", "--channel", "garden"]
        terminal = Terminal([*command, "--config", "chat.toml"], tmp_path, (100, 24), **environ)
        started.append(terminal)
        screen = Screen(terminal)
        screen.shows("Write a message")
        return terminal, screen

    yield start
    for terminal in started:
        terminal.kill()


def bells(terminal: Terminal) -> int:
    """Return the number of bells. The same byte also ends other sequences."""
    return re.sub(rb"\x1b\][^\x1b\x07]*\x07", b"", terminal.bytes).count(b"\x07")


def notices(terminal: Terminal) -> list[str]:
    return [found.decode() for found in re.findall(rb"\x1b\](?:9|777);([^\x1b\x07]*)", terminal.bytes)]


def test_only_a_live_message_with_the_name_alerts_and_only_once(client: Client, tmp_path: Path) -> None:
    with served(tmp_path / "store") as store:
        store.ingest(raws(live("ann: before the start")))
        terminal, sees = client()
        sees.shows("before the start")
        terminal.press(BLUR)
        history = (BOB.text("garden", f"ann: history {number}") for number in range(50))
        store.ingest(raws(*history, live("ann: from cyd", by=CYD), live("ann: muted", "quiet")))
        store.ingest(raws(live("nobody is named")))
        sees.shows("nobody is named")
        store.post("garden", "ann is my name")
        sees.shows("ann is my name")
        assert (bells(terminal), notices(terminal)) == (0, [])

        store.ingest(raws(live(HOSTILE)))
        wait_until(lambda: notices(terminal))
        store.ingest(raws(live("ann: once more")))
        sees.shows("once more")
        assert notices(terminal) == ["notify;bob in #garden;ann: a ]0,owned b ,4,1 \\  {img src=x} end"]
        assert bells(terminal) == 1
        assert terminal.end(CTRL_Q) == 0
    assert (bells(terminal), len(notices(terminal))) == (1, 1)


@pytest.mark.thorough
def test_the_displayed_channel_does_not_alert(client: Client, tmp_path: Path) -> None:
    """The test includes settings that disable the bell."""
    with served(tmp_path / "store") as store:
        terminal, sees = client("bell = false\n")
        terminal.press(FOCUS)
        store.ingest(raws(live("ann: here")))
        sees.shows("ann: here")
        store.ingest(raws(live("ann: there", "shed")))
        wait_until(lambda: notices(terminal))
        assert notices(terminal) == ["notify;bob in #shed;ann: there"]
        assert bells(terminal) == 0
        assert terminal.end(CTRL_Q) == 0


@pytest.mark.thorough
def test_the_age_of_an_answer_is_at_most_that_of_its_question(client: Client, tmp_path: Path) -> None:
    """A user with a slow clock therefore causes alerts. If notifications are not safe, only the bell rings."""
    with served(tmp_path / "store") as store:
        terminal, _ = client("", TERM="screen-256color", TMUX="/tmp/tmux-0/default,1,0")
        terminal.press(BLUR)
        question = store.post("shed", "where is the rake?")
        answer = BOB.text("shed", "@ann in the corner", at=now_ms() - 3_600_000, links=(question.hash,))
        store.ingest(raws(answer))
        wait_until(lambda: bells(terminal))
        assert notices(terminal) == []
        assert terminal.end(CTRL_Q) == 0


@pytest.mark.parametrize(
    ("environ", "begin"),
    [
        (XTERM, "\x1b]777;notify;t;"),
        ({"TERM": "xterm-kitty"}, "\x1b]777;notify;t;"),
        (XTERM | {"TERM_PROGRAM": "iTerm.app"}, "\x1b]9;cablestore: t: "),
        (XTERM | {"LC_TERMINAL": "iTerm2"}, "\x1b]9;cablestore: t: "),
        (XTERM | {"TMUX": "x"}, ""),
        (XTERM | {"STY": "x"}, ""),
        (XTERM | {"INSIDE_EMACS": "x"}, ""),
        ({"TERM": "linux"}, ""),
        ({"TERM": "vt220"}, ""),
        ({"TERM": "dumb"}, ""),
        ({}, ""),
    ],
)
def test_a_terminal_receives_only_a_notification_that_it_supports(environ: dict[str, str], begin: str) -> None:
    found = notification("t", "body", environ)
    assert found == (f"{begin}body\x1b\\" if begin else "")


@pytest.mark.parametrize(
    "text", ["\x07", "\x1b\\", "\x9c", "\n", "\r", ";", "\u202e", "\u2028", "\ud800", "\u200b", "x"]
)
def test_no_text_can_end_or_lengthen_a_notification(text: str) -> None:
    found = notification(text * 5_000, text * 5_000, XTERM)
    inside = found.removeprefix("\x1b]777;notify;").removesuffix("\x1b\\")
    assert inside.count(";") == 1
    assert inside.replace("\u200b", "").isprintable()
    assert len(found.encode()) <= 2_048
