"""Command `search`: its output, alone and beside the process that has the store open, and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from people import ANN, BOB, START_MS, raws

from cablestore import CableStore, offer
from cablestore.index.folder import SEARCH_INDEX
from cablestore.remote.unix_socket import NAME

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TZ", "UTC")
    path = tmp_path / "store"
    monkeypatch.setenv("CABLESTORE_STORE", str(path))
    with CableStore.open(path) as store:
        posts = [ANN.named("ann"), BOB.named("bob \x1b[31m")]
        posts += [ANN.text("default", f"word {i}", at=START_MS + i) for i in range(5)]
        posts += [BOB.text("other", "a \x1b]0;word\x07 of\nbob", at=START_MS + 60_000)]
        store.ingest(raws(*posts))
    return path


def values(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_matches_are_printed_as_lines(searched: Path, run: Run) -> None:
    status, out, _ = run("search", "WORD", "-n", 2)
    assert status == 0
    first, second = out.splitlines()
    assert first.startswith("2023-11-14 22:14  other  bob \\u{1b}[31m  a  ]0;word  of bob  ")
    assert second.startswith("2023-11-14 22:13  default  ann  word 4  ")
    assert "\x1b" not in out
    assert run("search", "nothing")[:2] == (0, "")


def test_json_contains_marks_a_cursor_and_pending_posts(searched: Path, run: Run) -> None:
    *hits, end = values(run("search", "word", "--number", 4, "--json")[1])
    assert [hit["text"] for hit in hits][1:] == ["word 4", "word 3", "word 2"]
    assert (hits[1]["marks"], hits[1]["excerpt"], hits[1]["excerpt_marks"]) == ([[0, 4]], "word 4", [[0, 4]])
    assert hits[0]["excerpt"] == "a  ]0;word  of bob"
    assert end["pending"] == 0
    *hits, end = values(run("search", "word", "--json", "--cursor", end["cursor"])[1])
    assert [hit["text"] for hit in hits] == ["word 1", "word 0"]
    assert end == {"cursor": None, "pending": 0}


def test_filters_and_orders_are_applied(searched: Path, run: Run) -> None:
    def found(*arguments: object) -> list[str]:
        return [value["text"] for value in values(run("search", *arguments, "--json")[1]) if "text" in value]

    assert found("word", "--channel", "default", "-n", 1) == ["word 4"]
    assert len(found("word", "--author", "ann")) == 5
    assert len(found("word", "--author", BOB.key.hex()[:8], "--order", "ranked")) == 1
    assert len(found("wor*", "3")) == 1
    assert found('"word 3"') == ["word 3"]
    assert len(found("word", "--after", "2023-11-14T22:14:00+00:00")) == 1
    assert len(found("word", "--before", "2023-11-14T22:14:00+00:00")) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "missing words, for example"),
        (("word", "--index"), "--index cannot be combined with words"),
        (("!!",), "no words to search for in '!!'"),
        (("word", "--cursor", "x"), "invalid cursor of a search"),
        (("word", "--author", "nobody"), "no user found with the name or public key prefix 'nobody'"),
        (("word", "--order", "best"), "'best' is not one of"),
        (("x" * 1001,), "1,001 characters"),
    ],
)
def test_bad_input_is_rejected_in_one_line_with_status_2(
    searched: Path, run: Run, arguments: tuple[str, ...], message: str
) -> None:
    status, out, err = run("search", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_the_index_is_built_on_request(searched: Path, run: Run) -> None:
    assert not (searched / SEARCH_INDEX).exists()
    assert run("search", "--index")[:2] == (0, "the search index is up to date\n")
    assert (searched / SEARCH_INDEX).exists()
    assert values(run("search", "--index", "--json")[1]) == [{"pending": 0}]


def test_search_works_while_another_process_has_the_store_open(searched: Path, run: Run) -> None:
    alone = run("search", "word", "--json")[1]
    with CableStore.open(searched) as store, offer(store):
        assert (searched / NAME).exists()
        assert run("search", "word", "--json")[1] == alone
        store.post("default", "a new word")
        assert values(run("search", "word", "--json")[1])[0]["text"] == "a new word"
        assert run("search", "--index")[:2] == (0, "the search index is up to date\n")
        assert run("search")[0] == run("search", "!!")[0] == 2
