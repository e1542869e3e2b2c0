"""Readability: the contrast of everything that the client draws, in the colours of a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contrast import Cell, cells_of
from people import Person, raws
from terminals import CTRL_Q, Screen, Start, Terminal
from waiting import wait_until

from cablestore import CableStore

ENOUGH = 4.5
"""Minimum contrast of WCAG 2.2 for text (1.4.3)."""
ESCAPE, ENTER, DOWN = "\x1b[27u", "\r", "\x1b[B"
F1, F3, F7 = "\x1bOP", "\x1bOR", "\x1b[18~"
PEOPLE = [Person(f"of all colours {number}") for number in range(16)]
OPEN, FOLDED = "▾ 2 other channels", "▸ 2 other channels"
NOT_SURE = "\U0001f44d\U0001f3fd" * 3
"""Emoji whose width differs between terminals, so the client moves the cursor around it."""


def fill(folder: Path) -> None:
    """Create a store with names, mentions, hidden members, folded and muted channels: all have separate colours."""
    with CableStore.open(folder) as store:
        for channel in ("default", "joined", "muted"):
            store.join(channel)
        own = store.identity.public_key.hex()[:8]
        store.ingest(raws(*(PEOPLE[0].text("default", f"earlier {number}") for number in range(40))))
        for number, person in enumerate(PEOPLE):
            store.ingest(raws(person.named(f"name{number}"), person.text("default", f"words of {number}")))
        store.ingest(raws(PEOPLE[0].text("default", f"hello {own}"), PEOPLE[1].text("joined", "unread")))
        store.ingest(raws(PEOPLE[2].text("elsewhere", "x"), PEOPLE[2].text("calls", f"where is {own}?")))
        store.moderation.hide(users=[PEOPLE[3].key], private=True)
        store.post("default", f"mine {NOT_SURE}")
        store.post("default", "\n".join(f"line {number}" for number in range(14)))


class CheckedClient:
    """Client whose screens are checked: each must be readable."""

    def __init__(self, client: Terminal, palette: str) -> None:
        self.client = client
        self.sees = Screen(client)
        self.palette = palette

    def cells(self) -> list[list[Cell]]:
        self.sees.text  # noqa: B018 - it reads the client's output
        return cells_of(self.sees.drawn, self.palette)

    def cell_of(self, part: str) -> Cell:
        column, line = self.sees.place_of(part)
        return self.cells()[line][column]

    def at(self, part: str) -> None:
        """Wait until this is on the screen, and check it."""
        self.sees.shows(part)
        dim = {cell for line in self.cells() for cell in line if cell.character.strip() and cell.contrast < ENOUGH}
        assert not dim, (part, dim)

    def press(self, key: str, part: str) -> None:
        self.client.press(key)
        self.at(part)

    def leave(self, part: str) -> None:
        self.client.press(ESCAPE)
        wait_until(lambda: part not in self.sees.text, lambda: self.sees.text)


def walk(looks: CheckedClient, marked: str) -> Iterator[str]:
    """Step through all windows and states. Yields the newly highlighted part."""
    looks.press("typed text", "typed text")
    looks.client.press("\x15")  # Ctrl+U
    looks.at("Write a message")
    looks.press(ESCAPE, "Enter menu")
    yield "line 5"
    looks.press(ENTER, "Enter chooses")
    yield "Copy its text"
    looks.client.press(DOWN)
    looks.press(ENTER, "Ctrl+Y yes")
    looks.leave("Ctrl+Y yes")
    looks.leave("Enter menu")
    looks.press(F1, "Keys and commands")
    looks.leave("Keys and commands")
    looks.press("/search words\r", "Enter shows")
    yield "words of 15"
    looks.leave("Enter shows")
    looks.press("/dance\r", "Unknown command")
    looks.press("/names\r", "name1, ")
    looks.press("/mute muted\r", "#muted")
    unfold(looks)
    mark(looks, marked)
    looks.press("\x1b[1;5H", "shows the newest")  # Ctrl+Home
    looks.client.press("\x1b[1;5F")  # Ctrl+End
    wait_until(lambda: "shows the newest" not in looks.sees.text)


def unfold(looks: CheckedClient) -> None:
    """Show the other channels. An earlier walk may have shown them: then they are hidden first.

    Their line has the state. While the list is drawn again, the screen may lack the line and the channels.
    """
    wait_until(lambda: FOLDED in looks.sees.text or OPEN in looks.sees.text, lambda: looks.sees.text)
    if OPEN in looks.sees.text:
        looks.client.press(F7)
        looks.sees.shows(FOLDED)
    looks.press(F7, "#elsewhere")


def mark(looks: CheckedClient, part: str) -> None:
    """Drag over a part, again if it moved before the client received the drag."""
    while not is_marked(looks, part):
        place = column, line = looks.sees.place_of(part)
        looks.client.drag(place, (column + 8, line))
        wait_until(lambda: is_marked(looks, part) or looks.sees.place_of(part) != place)  # noqa: B023 - it ends before the next round


def is_marked(looks: CheckedClient, part: str) -> bool:
    return looks.cell_of(part).back != looks.cell_of("words of 8").back


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("environment", "palette"),
    [
        ({"TERM": "xterm-256color"}, "xterm"),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "xterm"),
        ({"TERM": "xterm"}, "xterm"),
        ({"TERM": "linux"}, "VGA"),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"}, "xterm"),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, "xterm"),
        ({"TERM": "linux", "NO_COLOR": "1"}, "VGA"),
    ],
    ids=["256", "16 million", "16 of xterm", "16 of VGA", "greys", "greys of 256", "greys of 16"],
)
def test_all_text_has_enough_contrast_and_highlights_are_visible(
    start_chat: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], palette: str
) -> None:
    """In both themes, each text contrasts with its background. Chosen and marked lines differ from others."""
    monkeypatch.delenv("NO_COLOR", raising=False)  # set by the user of the tests
    fill(tmp_path / "store")
    looks = CheckedClient(start_chat("-s", "store", **({"COLORTERM": ""} | environment)), palette)
    looks.at("Write a message")
    looks.at("#calls")
    looks.press("\x1b[1;5F", "line 5")  # Ctrl+End
    backgrounds = set()
    for marked in ("words of 9", "words of 10"):  # dark, then light
        plain = looks.cell_of("words of 14")
        backgrounds.add(plain.back)
        for special in walk(looks, marked):
            found = looks.cell_of(special)
            assert found.back != plain.back or is_underlined(looks, special), special
        column, line = looks.sees.place_of("#joined")
        assert looks.cells()[line - 1][column].back != looks.cells()[line][column].back, (
            "the displayed channel is not highlighted"
        )
        looks.client.press(F3)
        wait_until(lambda now=plain: looks.cell_of("words of 14").back != now.back)  # type: ignore[misc]  # mypy does not infer a lambda with defaults
    assert len(backgrounds) == 2
    assert looks.client.end(CTRL_Q) == 0


def is_underlined(looks: CheckedClient, part: str) -> bool:
    column, line = looks.sees.place_of(part)
    return bool(looks.sees.drawn.buffer[line][column].underscore)
