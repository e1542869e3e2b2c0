"""People of a log: nicks that change, are abandoned, return, and have several spellings."""

from __future__ import annotations

from pathlib import Path

import pytest
from irc_logs import imported, laid

from cablestore import CableStore

JOIN = "-!- {} [{}] has joined #garden"


def authors(store: CableStore, tmp_path: Path, *lines: str) -> dict[str, bytes]:
    """Import lines of irssi. Returns the author of each text."""
    text = "--- Log opened Mon Jan 07 09:00:00 2013\n" + "".join(f"09:{n:02} {line}\n" for n, line in enumerate(lines))
    imported(store, laid(tmp_path, "#garden.log", text))
    return {m.text: m.author for m in store.messages("garden", 1000).messages}


@pytest.mark.parametrize(
    "lines",
    [
        ("< ann> a", "-!- ann is now known as bob", "< bob> b"),
        ("< Ann> a", "< aNN> b"),
        ("< m[oss]> a", "< M{OSS}> b"),
        ("< ann> a", "-!- ann [u@h] has quit [Ping timeout]", "< ann_> b"),
        (JOIN.format("ann", "u@h"), "< ann> a", JOIN.format("ann_", "u@h"), "-!- ann_ is now known as ann", "< ann> b"),
        (
            JOIN.format("ann", "~u@h"),
            "< ann> a",
            "-!- ann [u@h] has quit [x]",
            JOIN.format("ann", "u@other"),
            "< ann> b",
        ),
        ("< ann> a", "-!- ann is now known as ann|away", "-!- ann|away [u@h] has quit [x]", "< ann> b"),
        (
            JOIN.format("ann", "u@h"),
            "< ann> a",
            "-!- ann is now known as busy",
            "-!- busy [u@h] has quit [x]",
            JOIN.format("ann", "u@h2"),
            "< ann> b",
        ),
    ],
)
def test_one_person_with_several_nicks_is_one_author(store: CableStore, tmp_path: Path, lines: tuple[str, ...]) -> None:
    found = authors(store, tmp_path, *lines)
    assert found["a"] == found["b"]


@pytest.mark.parametrize(
    "lines",
    [
        ("-!- guest is now known as carla", "< carla> a", "< guest> b"),
        ("< carla> a", "-!- carla is now known as carla|away", JOIN.format("carla", "u@h"), "< carla> b"),
        (JOIN.format("guest", "x@one"), "< guest> a", "-!- guest [x@one] has quit [x]", JOIN.format("guest", "y@two"), "< guest> b"),
        ("-!- guest is now known as carla", "< carla> a", "-!- carla [u@h] has quit [x]", "< guest> b"),
        (JOIN.format("ann", "x@one"), "< ann> a", JOIN.format("ann_", "y@two"), "< ann_> b"),
        ("-!- guest is now known as carla", "< carla> a", "-!- guest is now known as dora", "< dora> b"),
    ],
)  # fmt: skip
def test_two_people_with_the_same_nick_are_two_authors(
    store: CableStore, tmp_path: Path, lines: tuple[str, ...]
) -> None:
    found = authors(store, tmp_path, *lines)
    assert found["a"] != found["b"]


def test_an_abandoned_nick_is_another_person_in_another_channel(store: CableStore, tmp_path: Path) -> None:
    laid(tmp_path, "#a/2013-01-07.log", "[09:00:00] *** guest is now known as carla\n[09:00:09] <carla> a\n")
    laid(tmp_path, "#b/2013-01-07.log", "[09:00:05] <guest> b\n")
    imported(store, tmp_path)
    (a,), (b,) = (store.messages(channel).messages for channel in "ab")
    assert a.author != b.author


def test_messages_have_the_names_of_their_time(store: CableStore, tmp_path: Path) -> None:
    found = authors(
        store, tmp_path, "< ann> a", "-!- ann is now known as carla", "< carla> b", "-!- carla is now known as ann", "< ann> c"
    )  # fmt: skip
    assert len(set(found.values())) == 1
    assert store.user(found["a"]).name == "ann"
