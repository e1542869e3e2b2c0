"""Work folders of jobs: what they contain at the end, for each way to end."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from cablestore.errors import ReindexError, StorageError
from cablestore.files import folder_of
from cablestore.reindex.causes import SparkError
from cablestore.reindex.job import claim_folder, claim_work, shared, temporary_work


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (None, None),
        (ReindexError("rows differ"), None),
        (KeyboardInterrupt(), None),
        (SparkError("Java ended"), {"cablestore-work", "spark.log"}),
        (StorageError("the disk is full"), {"cablestore-work", "spark.log"}),
    ],
)
def test_only_errors_that_name_the_log_of_spark_keep_it(
    error: BaseException | None, left: set[str] | None, tmp_path: Path
) -> None:
    folder, local = claim_work(tmp_path / "work", None)
    assert local == tmp_path / "work"

    def work() -> None:
        with temporary_work(folder, local):
            (local / "spark" / "tmp").mkdir(parents=True)
            (local / "spark" / "link").symlink_to(tmp_path)
            for name in ("spark.log", "run-000000", "spark/tmp/file"):
                (local / name).touch()
            if error is not None:
                raise error

    if error is None:
        work()
    else:
        with pytest.raises(type(error)):
            work()
    assert (None if not local.exists() else {path.name for path in local.iterdir()}) == left
    assert tmp_path.exists()


def test_a_folder_without_other_files_is_claimed_and_a_local_one_is_required_for_a_uri(tmp_path: Path) -> None:
    (tmp_path / "work" / "mine").mkdir(parents=True)
    with pytest.raises(
        ReindexError, match=r"work is not a work folder of cablestore, and its content would be removed"
    ):
        claim_work(tmp_path / "work", None)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "cablestore-work.1.tmp").touch()
    begun = claim_folder(folder_of(tmp_path / "begun"))
    assert begun.exists("cablestore-work")
    (tmp_path / "begun" / "run-000000").touch()
    assert claim_folder(begun) == begun
    assert (tmp_path / "begun" / "run-000000").exists()


def test_a_path_is_absolute_for_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shared("work") == folder_of(tmp_path / "work")
