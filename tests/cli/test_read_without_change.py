"""Commands that print information about a store do not change it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from cablestore import CableStore

Run = Callable[..., tuple[int, str, str]]


def test_topic_without_text_prints_the_topic_and_an_empty_text_clears_it(tmp_path: Path, run: Run) -> None:
    here = ("-s", tmp_path / "store")
    run("init", *here)
    assert run("topic", "garden", *here) == (0, "", "garden has no topic\n")
    assert run("topic", "garden", "--json", *here)[1] == '{"channel": "garden", "topic": ""}\n'
    run("topic", "garden", "red", "tomatoes\x1b[2J", *here)
    for _ in range(2):
        status, printed, _ = run("topic", "garden", *here)
        assert (status, "red tomatoes" in printed, "\x1b" in printed) == (0, True, False)
    assert json.loads(run("topic", "garden", "--json", *here)[1])["topic"] == "red tomatoes\x1b[2J"
    assert "topic cleared" in run("topic", "garden", "", *here)[1]
    with CableStore.open(tmp_path / "store") as store:
        assert store.topic("garden") == ""


def test_sizes_of_generations_are_numbers_in_json(tmp_path: Path, run: Run) -> None:
    with CableStore.open(tmp_path / "store") as store:
        store.post("garden", "tomatoes")
    found = json.loads(run("generations", "--json", "-s", tmp_path / "store")[1])
    assert (found["state"], found["size_bytes"] > 0) == ("live", True)
