"""`open(upgrade=True)` rebuilds the views of another version, loses no post, and can be interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from people import ANN, raws
from stores import database_of, outdate
from waiting import LIMIT_S

from cablestore import CableStore
from cablestore.errors import CorruptStoreError, OpenError, OutdatedViewError, StoreLockedError
from cablestore.index.leveldb import LevelDB
from cablestore.index.reader import DATA_PREFIX
from cablestore.store import ClosedStore

CHILD = """
import os, signal, sys
from cablestore import CableStore
CableStore.open(sys.argv[1], upgrade=True, progress=lambda _: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.fixture
def outdated(tmp_path: Path) -> Path:
    """Create a store whose metadata names the views of another version."""
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.ingest(raws(*(ANN.text("default", f"{number}") for number in range(50))))
    outdate(path)
    return path


def test_an_upgrade_reports_its_progress_in_posts(outdated: Path) -> None:
    steps: list[int] = []
    with CableStore.open(outdated, upgrade=True, progress=steps.append) as store:
        assert sum(steps) == 50
        assert store.check().is_clean
    steps.clear()
    CableStore.open(outdated, upgrade=True, progress=steps.append).close()
    assert steps == []  # the views were up to date


def test_a_store_can_be_upgraded_after_ctrl_c(outdated: Path) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    before = sorted(entry.name for entry in outdated.iterdir())
    with pytest.raises(KeyboardInterrupt):
        CableStore.open(outdated, upgrade=True, progress=interrupt)
    assert sorted(entry.name for entry in outdated.iterdir()) == before
    with pytest.raises(OutdatedViewError, match="opens the store with upgrade=True"):
        CableStore.open(outdated)
    with CableStore.open(outdated, upgrade=True) as store:
        assert store.check().is_clean


def test_a_store_can_be_upgraded_after_a_kill(outdated: Path) -> None:
    child = subprocess.run([sys.executable, "-c", CHILD, str(outdated)], check=False, timeout=LIMIT_S)
    assert child.returncode == -signal.SIGKILL
    with pytest.raises(OutdatedViewError):
        CableStore.open(outdated)
    with CableStore.open(outdated, upgrade=True) as store:
        assert len(store.messages("default", 100).messages) == 50
        assert store.check().is_clean


def test_an_upgrade_does_not_remove_a_damaged_post(outdated: Path) -> None:
    database = LevelDB(database_of(outdated))
    with database.snapshot() as state:
        key, raw = next(state.scan(DATA_PREFIX, b"!data!~"))
    database.write({key: raw[:-1]}, sync=True)
    database.close()
    before = sorted(entry.name for entry in outdated.iterdir())
    with pytest.raises(CorruptStoreError, match=r"without loss: post.*: 1\. Run `cablestore rebuild"):
        CableStore.open(outdated, upgrade=True)
    assert sorted(entry.name for entry in outdated.iterdir()) == before
    assert ClosedStore(outdated).rebuild().lost_posts == 1
    CableStore.open(outdated).close()


def test_an_upgrade_does_not_hide_other_errors(tmp_path: Path, outdated: Path) -> None:
    with pytest.raises(OpenError, match="no store found at"):
        CableStore.open(tmp_path / "nowhere", create=False, upgrade=True)
    with CableStore.open(tmp_path / "open") as _, pytest.raises(StoreLockedError):
        CableStore.open(tmp_path / "open", upgrade=True)
    header = outdated / "STORE"
    header.write_text(header.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(OpenError, match="Install a newer version"):
        CableStore.open(outdated, upgrade=True)
