"""Reports of a backup: its progress, and its folder in the status of the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from backing_up import opened
from people import ANN, raws

from cablestore.backup import backup, read_backup, verify_backup
from cablestore.files import folder_of
from cablestore.index.last_backup import last_backup


@pytest.mark.parametrize("as_uri", [False, True])
def test_the_store_remembers_the_folder_of_its_last_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, as_uri: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    out = (tmp_path / "backup").as_uri() if as_uri else "backup"
    with opened(tmp_path / "store") as store:
        store.post("default", "hello")
        backup(store, out)
    found = last_backup(tmp_path / "store")
    assert found is not None
    assert found.folder == str(tmp_path / "backup")


def test_the_progress_of_a_backup_and_of_its_check_reaches_the_total(tmp_path: Path) -> None:
    out = tmp_path / "backup"
    with opened(tmp_path / "store") as store:
        store.ingest(raws(*(ANN.text("default", f"{number}") for number in range(7))))
        written, checked = list[int](), list[int]()
        backup(store, out, progress=written.append)
        verify_backup(out, progress=checked.append)
    assert sum(written) == 7
    assert sum(checked) == sum(piece.items for piece in read_backup(folder_of(out)).pieces)
