"""Generations of a closed store: their sizes and dates, and which of them can be removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cablestore import CableStore
from cablestore.errors import OpenError
from cablestore.store.closed import ClosedStore, Generation, locked_folder

FIRST, SECOND, THIRD = (f"generation-00000{number}" for number in (1, 2, 3))


@pytest.fixture
def closed(tmp_path: Path) -> ClosedStore:
    """Return a closed store that keeps two earlier generations."""
    CableStore.open(tmp_path / "store").close()
    for number in range(2):
        with locked_folder(tmp_path / "store") as folder:
            shutil.copytree(folder.database_path, tmp_path / f"copy{number}")
            folder.activate(folder.adopt(tmp_path / f"copy{number}"), keep=True)
    return ClosedStore(tmp_path / "store")


def names(closed: ClosedStore) -> list[str]:
    return [each.name for each in closed.generations()]


def test_a_generation_has_the_size_and_the_earliest_date_of_its_files(closed: ClosedStore) -> None:
    files = sorted((closed.path / FIRST).iterdir())
    for number, file in enumerate(files):
        os.utime(file, (0, 1_700_000_000 + (number + 1) % len(files)))
    shutil.rmtree(closed.path / SECOND)
    first, second, third = closed.generations()
    size_bytes = sum(file.stat().st_size for file in files)
    assert first == Generation(FIRST, "kept", size_bytes, "2023-11-14T22:13:20+00:00")
    assert second == Generation(SECOND, "missing", 0, "1970-01-01T00:00:00+00:00")
    assert (third.name, third.state, third.is_live, first.is_live) == (THIRD, "live", True, False)


def test_only_the_live_generation_cannot_be_removed(closed: ClosedStore) -> None:
    with pytest.raises(OpenError, match=rf"'{THIRD}'\. Kept generations: {FIRST}, {SECOND}$"):
        closed.remove(THIRD)
    with pytest.raises(OpenError, match=r"does not keep the generation 'other'"):
        closed.remove("other")
    closed.remove(FIRST)
    assert names(closed) == [SECOND, THIRD]
    closed.remove("kept")
    assert names(closed) == [THIRD]
    closed.remove("kept")
    with pytest.raises(OpenError, match=r"Kept generations: none$"):
        closed.remove(THIRD)
    CableStore.open(closed.path).close()


def test_a_kept_generation_that_is_missing_can_be_removed_from_the_list(closed: ClosedStore) -> None:
    shutil.rmtree(closed.path / FIRST)
    closed.remove("kept")
    assert names(closed) == [THIRD]
