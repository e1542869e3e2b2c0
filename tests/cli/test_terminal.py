"""Output of commands on a real terminal, 80 and 120 columns wide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from people import Person, raws
from terminals import on_a_terminal, screen_of

from cablestore import CableStore
from cablestore.cli.commands import load_all
from cablestore.cli.demo import sample

ANN, LONG = Person("ann"), Person("long")
NOON_MS = 1_714_737_600_000
"""3 May 2024, 12:00 UTC, a Friday."""
HOUR_MS = 3_600_000
STORY = "once upon a time there was a store that kept every word of its people and lost none of them " * 2

both_widths = pytest.mark.parametrize("columns", [80, 120])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("terminal") / "store"
    with CableStore.open(path) as opened:
        opened.ingest(
            raws(
                ANN.named("ann", at=NOON_MS),
                LONG.named("a name of two words", at=NOON_MS),
                ANN.text("default", "first", at=NOON_MS + 1),
                LONG.text("default", STORY, at=NOON_MS + HOUR_MS),
                ANN.text("default", "three\nlines\nhere", at=NOON_MS + 11 * HOUR_MS),
                ANN.text("default", "日本語 " * 30, at=NOON_MS + 25 * HOUR_MS),
                ANN.topic("default", "all about nothing", at=NOON_MS + 26 * HOUR_MS),
            )
        )
    return path


def shown(store: Path, columns: int, *words: str, **more: str) -> list[str]:
    found = screen_of(on_a_terminal([*words], store, columns=columns, **more), columns)
    assert all(len(line) <= columns for line in found)
    return found


@both_widths
def test_help_lists_commands_in_sections(store: Path, columns: int) -> None:
    found = shown(store, columns, "--help")
    titles = [line[:-1] for line in found if re.fullmatch(r"\w+:", line)]
    assert titles == [
        "Options",
        "Write",
        "Read",
        "Chat",
        "Inspect",
        "Moderate",
        "Peers",
        "Maintain",
        "Move",
        "Communities",
        "Learn",
    ]
    commands = load_all()
    listed = [line.split()[0] for line in found[found.index("Write:") :] if line.startswith("  ")]
    assert sorted(listed) == sorted(commands)
    assert not [line for line in found[1:] if line.endswith("...")]
    for name, command in commands.items():
        summary = command.get_short_help_str(1000)
        assert any(line.split() == [name, *summary.split()] for line in found), name


@both_widths
def test_help_of_serve_lists_options_in_sections(store: Path, columns: int) -> None:
    text = "\n".join(shown(store, columns, "serve", "--help"))
    sections = dict(re.findall(r"^([A-Z][\w ]+):\n((?:  .*\n?)+)", text, flags=re.MULTILINE))
    assert list(sections) == [
        "Addresses",
        "Cabal and channels",
        "Sending to peers",
        "Reconciliation",
        "Limits",
        "Policy",
        "Maintenance",
        "Inspection",
        "Output and logs",
        "Options",
    ]
    of_section = {
        title: set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", body, flags=re.MULTILINE)) for title, body in sections.items()
    }
    assert of_section["Options"] == {"--config", "--create", "--require-mount", "--store", "--help"}
    options = {max(param.opts, key=len) for param in load_all()["serve"].params} | {"--help"}
    assert set().union(*of_section.values()) == options
    meanings = {found.end() for line in text.splitlines() if (found := re.match(r"  -.*?\S {2,}(?=\S)", line))}
    assert len(meanings) == 1, "all meanings begin in one column"


@both_widths
def test_a_log_has_days_aligned_names_and_indented_lines(store: Path, columns: int) -> None:
    found = shown(store, columns, "log", "default", TZ="UTC")
    days = [line.rstrip("─").strip() for line in found if line.endswith("─")]
    assert days == ["Friday 3 May 2024", "Saturday 4 May 2024"]
    begin = found[1].index("first")
    assert begin == len("12:00 ") + len("a name of two words ")
    firsts = [line for line in found if re.match(r"\d\d:\d\d ", line)]
    assert [line[:5] for line in firsts] == ["12:00", "13:00", "23:00", "13:00"]
    assert [line[6 : begin - 1].strip() for line in firsts] == ["ann", "a name of two words", "ann", "ann"]
    assert all(re.search(r" [0-9a-f]{8}$", line) for line in firsts)
    for line in found:
        assert line.endswith("─") or line in firsts or re.match(rf" {{{begin}}}\S", line), line
    texts = " ".join(re.sub(r" [0-9a-f]{8}$", "", line)[begin:].strip() for line in found if not line.endswith("─"))
    assert texts.replace(" ", "") == "".join(("first", STORY, "three lines here", "日本語 " * 30)).replace(" ", "")


def test_the_log_uses_the_time_zone_of_the_user(store: Path) -> None:
    found = shown(store, 80, "log", "default", TZ="Asia/Tokyo")
    assert [line.rstrip("─").strip() for line in found if line.endswith("─")] == [
        "Friday 3 May 2024",
        "Saturday 4 May 2024",
    ]
    assert [line[:5] for line in found if re.match(r"\d\d:\d\d ", line)] == ["21:00", "22:00", "08:00", "22:00"]


@pytest.mark.thorough("120")
@both_widths
def test_tables_fit_the_width_of_the_terminal(store: Path, columns: int) -> None:
    head, row = shown(store, columns, "channels")
    assert head.split() == ["channel", "members", "messages", "topic"]
    assert row.split() == ["default", "2", "4", "all", "about", "nothing"]
    assert shown(store, columns, "users")[0].split() == ["name", "public", "key"]
    assert any("█" in line for line in shown(store, columns, "stats"))
    assert "no problems found" in " ".join(shown(store, columns, "check"))


@both_widths
def test_progress_is_shown_and_removed_from_the_screen(tmp_path: Path, columns: int) -> None:
    words = ["import-irc", str(sample())]
    printed = on_a_terminal(words, tmp_path / "store", columns=columns)
    assert b"\x1b[?25l" in printed, "the cursor is hidden while a bar moves"
    assert "━".encode() in printed
    assert not any("━" in line for line in screen_of(printed, columns))
