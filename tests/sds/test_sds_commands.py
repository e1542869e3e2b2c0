"""`cablestore sds status`: the state of a store's logs, also while another process has them open."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from folders import SUPPORT
from people import ANN, START_MS, raws
from sds_people import content
from waiting import LIMIT_S

from cablestore import CableStore
from cablestore.errors import OpenError, StoreLockedError
from cablestore.sds import CausalLog, Settings, causal_log
from cablestore.store.closed import ClosedStore, locked_folder

HOLDER = SUPPORT / "sds_holder.py"
Run = Callable[..., tuple[int, str, str]]


@contextmanager
def holding(store: Path, *options: str) -> Iterator[None]:
    """Run another process that has the store and its causal logs open."""
    command = [sys.executable, str(HOLDER), str(store), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        yield
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(LIMIT_S) == 0


def status(run: Run, store: Path) -> list[dict[str, Any]]:
    code, out, err = run("sds", "status", "-s", store, "--json")
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    """Create a store with two channels. In one, messages are waiting, missing, lost and unacknowledged."""
    path = tmp_path / "store"
    with CableStore.open(path) as store, causal_log(store) as log:
        room = log.channel("room", "ann", Settings(lost_after_ms=60_000))
        room.receive(content("lost", "never", at=1), START_MS)
        room.tick(START_MS + 60_000, lambda: 0.5)
        room.receive_all([content("here", at=2), content("waits", "gone", "here", at=3)], START_MS + 60_000)
        room.confirm(2)
        room.send(b"own", START_MS + 70_000)
        log.channel("empty \x1b[31m", "bob")
    return path


def test_status_reports_counts_and_sizes(busy: Path, run: Run) -> None:
    empty, room = status(run, busy)
    size_bytes = room.pop("disk_size_bytes")
    assert size_bytes > 18_752 // 2  # the set bits of the filter alone occupy more
    with CausalLog.open(busy) as log:
        effects = len(log.channel("room", "ann", Settings(lost_after_ms=60_000)).outbox())
    assert effects > 3
    assert room == {
        "channel": "room",
        "sender": "ann",
        "dialect": "spec",
        "messages": 3,
        "waiting": 1,
        "missing": 1,
        "unacknowledged": 1,
        "lost": 1,
        "effects": effects,
        "lamport_ms": START_MS + 70_000,
    }
    assert (empty["channel"], empty["messages"], empty["effects"]) == ("empty \x1b[31m", 0, 0)


def test_a_lost_message_that_arrives_is_no_longer_counted_as_lost(busy: Path, run: Run) -> None:
    with CausalLog.open(busy) as log:
        log.channel("room", "ann", Settings(lost_after_ms=60_000)).receive(content("never"), START_MS + 80_000)
    _, room = status(run, busy)
    assert (room["lost"], room["messages"]) == (0, 4)


def test_status_prints_a_table(busy: Path, run: Run) -> None:
    code, out, _ = run("sds", "status", "-s", busy)
    assert code == 0
    first, *rows = out.splitlines()
    assert first.split() == [
        "channel",
        "sender",
        "messages",
        "waiting",
        "missing",
        "unacknowledged",
        "lost",
        "effects",
        "lamport",
        "on",
        "disk",
    ]
    assert len(rows) == 2
    assert "\x1b" not in out
    assert "kB" in rows[1]


def test_a_store_without_logs_and_a_missing_store_are_reported(tmp_path: Path, run: Run) -> None:
    CableStore.open(tmp_path / "store").close()
    code, out, err = run("sds", "status", "-s", tmp_path / "store")
    assert (code, out, err) == (0, "", "no causal logs\n")
    assert not (tmp_path / "store" / "sds").exists()
    code, _, err = run("sds", "status", "-s", tmp_path / "nothing")
    assert code == 2
    assert "no store and no causal logs found" in err
    with pytest.raises(OpenError, match="no causal logs"):
        CausalLog.open(tmp_path / "store", create=False)


@pytest.mark.thorough
def test_status_works_while_another_process_serves_the_logs(busy: Path, run: Run) -> None:
    with holding(busy, "offer"):
        found = {row["channel"]: row for row in status(run, busy)}
        assert found["held"]["messages"] == 1
        assert found["room"]["waiting"] == 1
        code, out, _ = run("sds", "status", "-s", busy)
        assert code == 0
        assert "held" in out
    with holding(busy):
        code, out, err = run("sds", "status", "-s", busy)
        assert (code, out) == (2, "")
        assert "one process at a time" in err


def test_status_works_while_a_process_has_only_the_store_open(busy: Path, run: Run) -> None:
    with CableStore.open(busy):
        assert len(status(run, busy)) == 2


def test_two_processes_cannot_open_the_logs(busy: Path) -> None:
    with holding(busy), pytest.raises(StoreLockedError, match="already open"):
        CausalLog.open(busy)
    with CausalLog.open(busy) as log:
        assert CausalLog.open_here(busy) is log
        with pytest.raises(StoreLockedError, match="already open"):
            CausalLog.open(busy)
    assert CausalLog.open_here(busy) is None
    CausalLog.open(busy).close()


def test_operations_on_the_store_do_not_change_the_logs(busy: Path, tmp_path: Path, run: Run) -> None:
    before = status(run, busy)
    with CableStore.open(busy) as store:
        store.ingest(raws(ANN.text("default", "x")))
        store.rebuild()
        store.compact()
        assert store.check().is_clean
        store.export(tmp_path / "export")
        store.import_exports([tmp_path / "export"])
    assert status(run, busy) == before
    ClosedStore(busy).rebuild()
    code, _, err = run("rebuild", "-s", busy)
    assert code == 0, err
    assert status(run, busy) == before
    live = next(each.name for each in ClosedStore(busy).generations() if each.is_live)
    assert [path.name for path in busy.glob("generation-*")] == [live]


def test_rolling_back_to_a_generation_does_not_change_the_logs(busy: Path, run: Run) -> None:
    before = status(run, busy)
    with locked_folder(busy) as folder:
        first, second = folder.header.generation, folder.begin()
        for file in (busy / first).iterdir():
            (busy / second / file.name).write_bytes(file.read_bytes())
        folder.activate(second, keep=True)
    ClosedStore(busy).roll_back(first)
    assert status(run, busy) == before


def test_logs_can_exist_before_their_store(tmp_path: Path) -> None:
    CausalLog.open(tmp_path / "new").close()
    CableStore.open(tmp_path / "new").close()
    with CableStore.in_memory() as store, causal_log(store) as log:
        assert log.channel("room", "ann").send(b"x", START_MS).lamport_ms == START_MS
