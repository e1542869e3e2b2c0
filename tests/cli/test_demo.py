"""The stages of `cablestore demo` on small logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from irc_logs import laid

pytest.importorskip("pyspark")

from cablestore import CableStore

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return logs of a channel with 14 messages and of one with 2."""
    for channel, messages in (("garden", 14), ("shed", 2)):
        lines = [f"09:{number:02} <{('ann', 'bob')[number % 2]}> message {number}" for number in range(messages)]
        laid(
            tmp_path / "logs",
            f"2013/01/07/#{channel}.txt",
            "\n".join(["--- Log opened Mon Jan 07 09:00:00 2013", *lines, ""]),
        )
    return tmp_path / "logs"


@pytest.mark.thorough
def test_each_stage_reports_its_result(run: Run, logs: Path, tmp_path: Path) -> None:
    status, output, errors = run("demo", "--logs", logs, "--keep", tmp_path / "kept", "--json")
    assert status == 0, errors
    stages = [json.loads(line) for line in output.splitlines()]
    results = {stage["stage"]: stage["result"] for stage in stages}
    assert list(results) == [
        "import logs",
        "channels and people",
        "the last messages of garden",
        "authors delete some of their messages",
        "answer a peer, one request of each kind",
        "check every row",
        "rebuild every view and compare",
        "statistics of the store",
        "export the store",
        "export another store, with more deletions",
        "reindex both on Spark, load, check, swap",
        "verify the new database",
    ]
    assert all(stage["seconds"] >= 0 for stage in stages)
    found = list(results.values())
    assert found[1:5] == ["2 channels, 2 people in garden", "printed 8 messages", "deleted 5 messages", "5 answers"]
    assert found[5].endswith(" rows, no problems found")
    assert found[6] == "the dumps are equal"
    assert found[8].endswith("posts, and the hashes of 5 deleted posts")
    assert found[9] == "5 deletions of posts that only the first export contains"
    assert found[10].endswith(" rows, 5 deleted across exports")
    assert found[11] == "deleted 5 more messages; a rebuild in this process writes the same rows"
    with CableStore.open(tmp_path / "kept") as store:
        assert store.stats().posts["text"] == 6
        assert store.stats().posts["delete"] == 10
        total = sum(store.stats().posts.values())
    assert found[10].startswith(f"{total} posts, ")


@pytest.mark.thorough
def test_the_demo_prints_messages_answers_and_its_summary(run: Run, logs: Path, tmp_path: Path) -> None:
    status, output, errors = run("demo", "--logs", logs)
    assert status == 0, errors
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert "1. import logs" in lines
    assert "in garden: ann, bob" in lines
    last = [
        line.partition("  ")[2] for line in output.splitlines() if line.endswith("message 13") or "message 5" in line
    ]
    assert last == ["bob: message 13"], "only the last 8 messages are printed"
    assert sum(": deleted " in line for line in lines) == 5
    assert any(line.startswith("channel list 2 names, first ") for line in lines)
    assert any(line.startswith("which of 9 offered hashes to request 1, without stored and deleted") for line in lines)
    assert any(line.startswith("tombstones: of a dead post ") for line in lines)
    assert lines[lines.index("Summary:") + 1] == "stage result"
    assert "the store is in" not in errors
