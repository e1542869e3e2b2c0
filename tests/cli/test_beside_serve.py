"""Maintenance commands while `serve` runs: same results as on a closed store, and no leftover files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backing_up import rows_of
from people import ANN, START_MS, raws
from serving import HERE, Served, cablestore

from cablestore import CableStore, connect, limits
from cablestore.backup import restore, verify_backup
from cablestore.export import verify_export
from cablestore.index.arrival_log import LOG_PREFIX
from cablestore.index.last_check import last_check
from cablestore.index.leveldb import LevelDB
from cablestore.store.key_file import load_identity

WEEK_MS = 7 * 86_400_000


@pytest.fixture
def served(tmp_path: Path, serving: Callable[..., Served]) -> Served:
    """Return a running `serve` on a store with posts of several weeks."""
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        posts = [ANN.text("default", f"text {number}", at=START_MS + number * WEEK_MS) for number in range(6)]
        store.ingest(raws(ANN.named("Ann"), ANN.join("default"), *posts, ANN.delete(posts[2])))
        store.local.set_draft("default", "draft")
    served = serving(path, "--listen", HERE, "--metrics", HERE)
    assert served.address
    return served


def run_json(served: Served, *words: object) -> dict[str, Any]:
    done = cablestore(*words, "--json", store=served.store)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert list(served.store.glob("checkpoint-*")) == []
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_check_works_beside_serve_and_is_recorded(served: Served) -> None:
    assert run_json(served, "check", "--signatures")["problems"] == 0
    first = last_check(served.store)
    assert first is not None
    assert (first.posts, first.problems, first.signatures) == (8, 0, True)
    assert run_json(served, "check")["posts"] == 8
    again = last_check(served.store)
    assert again is not None
    assert again.at_ms >= first.at_ms
    assert not again.signatures
    assert run_json(served, "status")["check_at_ms"] == again.at_ms


def test_backups_with_restore_points_work_beside_serve(tmp_path: Path, served: Served) -> None:
    out = tmp_path / "backup"
    assert run_json(served, "backup", out, "--keep", "3h")["posts"] == 8
    with connect(served.store) as store:
        store.post("default", "later")
    report = run_json(served, "backup", out)
    assert (report["full"], report["points"], report["keep"]) == (False, 1, "3h")
    assert verify_backup(out)[1] == []
    assert served.stop() == 0
    restore(out, tmp_path / "restored", identity=load_identity(served.store / "identity"))
    assert rows_of(tmp_path / "restored") == rows_of(served.store)


def test_an_export_beside_serve_equals_one_of_the_closed_store(tmp_path: Path, served: Served) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    content = run_json(served, "export", whole)["content_blake3"]
    assert run_json(served, "export", part, "--channel", "default")["posts"] == {
        "text": 5,
        "delete": 1,
        "info": 1,
        "join": 1,
    }
    assert verify_export(whole, signatures=True).is_clean
    assert served.stop() == 0
    assert run_json(served, "export", tmp_path / "again")["content_blake3"] == content


@pytest.mark.thorough
def test_archives_created_beside_serve_equal_those_of_the_closed_store(tmp_path: Path, served: Served) -> None:
    beside = run_json(served, "archive", "create", tmp_path / "beside")
    assert served.stop() == 0
    assert run_json(served, "archive", "create", tmp_path / "closed") == beside
    files = {path.relative_to(tmp_path / "beside") for path in (tmp_path / "beside").rglob("*") if path.is_file()}
    assert files
    for file in files:
        assert (tmp_path / "closed" / file).read_bytes() == (tmp_path / "beside" / file).read_bytes()


def test_logs_are_imported_beside_serve(tmp_path: Path, served: Served) -> None:
    log = tmp_path / "chat.log"
    lines = [f"2020-01-0{day}T10:0{day}:00 <ann> line {day}\n" for day in range(1, 7)]
    log.write_text("".join(lines[:4]))
    words = ("import-irc", log, "--channel", "irc")
    first = run_json(served, *words)
    assert first["posts"] == {"text": 4, "info": 1}
    log.write_text("".join(lines))
    again = run_json(served, *words)
    assert again["verdicts"]["accepted"] == 2
    with connect(served.store) as store:
        messages = store.messages("irc", 100, newest_first=False).messages
        assert [message.text for message in messages] == [f"line {day}" for day in range(1, 7)]


def test_an_import_is_written_in_small_batches(tmp_path: Path, served: Served) -> None:
    """Other programs can write between the batches."""
    log = tmp_path / "chat.log"
    number = 3 * limits.IMPORT_BATCH_POSTS
    log.write_text("".join(f"2020-01-01T10:{n // 60:02}:{n % 60:02} <ann> line {n}\n" for n in range(number)))
    with connect(served.store) as store:
        before = store.last_sequence
        run_json(served, "import-irc", log, "--channel", "irc")
        events = list(store.events(before, timeout_s=0))
    assert len(events) > number
    assert served.stop() == 0
    with CableStore.open(served.store) as opened, opened.snapshot() as state:
        rows = [value for _, value in state.reader.prefix(LOG_PREFIX)]
    assert max(map(len, rows)) <= limits.IMPORT_BATCH_POSTS * 33


def test_serve_uses_a_short_switch_interval(tmp_path: Path, serving: Callable[..., Served]) -> None:
    file = tmp_path / "interval"
    at_the_end = f"lambda: open({str(file)!r}, 'w').write(str(sys.getswitchinterval()))"
    (tmp_path / "sitecustomize.py").write_text(f"import atexit, sys\natexit.register({at_the_end})\n")
    served = serving(tmp_path / "store", "--create", "--listen", HERE, PYTHONPATH=str(tmp_path))
    assert served.address
    assert served.stop() == 0
    assert float(file.read_text()) == pytest.approx(limits.SWITCH_INTERVAL_S)


def test_prune_lists_first_and_then_discards(served: Served) -> None:
    done = cablestore("prune", "--keep", "2", "--dry-run", store=served.store)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "would discard 3 posts")
    assert "default" in done.stdout
    with connect(served.store) as store:
        before = store.dump_digest()
        assert run_json(served, "prune", "--keep", "2", "--dry-run") == {"would_discard": 3}
        assert store.dump_digest() == before
        assert run_json(served, "prune", "--keep", "2") == {"discarded": 3}
        assert [message.text for message in store.messages("default").messages if message.text] == ["text 5", "text 4"]
    assert run_json(served, "prune", "--keep", "2", "--dry-run") == {"would_discard": 0}
    assert run_json(served, "compact")["after_size_bytes"]
    assert served.stop() == 0
    assert run_json(served, "check")["problems"] == 0


@pytest.mark.thorough
def test_damage_is_detected_beside_serve(served: Served) -> None:
    with connect(served.store) as store:
        store.compact()
    assert served.stop() == 0
    (database,) = served.store.glob("generation-*")
    opened = LevelDB(database)
    opened.write({b"!head!default!" + b"0" * 64: b"\x01"}, sync=True)
    opened.close()
    running = Served(served.store, "--listen", HERE)
    try:
        assert running.address
        done = cablestore("check", store=served.store)
        assert (done.returncode, "dangling" in done.stdout) == (1, True), done.stdout
        assert running.stop() == 0
    finally:
        running.process.kill()
        running.process.wait()
        assert running.process.stdout is not None
        running.process.stdout.close()
