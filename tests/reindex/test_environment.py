"""Spark gets a path that it can read, for any name of the folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from cablestore.reindex.environment import has_name, plain_path


@pytest.mark.parametrize("name", ["a,b", "é", "two words"])
def test_an_unusual_folder_has_a_plain_path_while_it_is_used(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with plain_path(folder) as plain:
        assert plain.resolve() == folder.resolve()
        assert name not in str(plain)
        (plain / "file").write_text("content")
    assert not plain.exists()
    assert (folder / "file").read_text() == "content"


def test_a_plain_folder_is_used_itself(tmp_path: Path) -> None:
    with plain_path(tmp_path) as plain:
        assert plain == tmp_path
    assert tmp_path.is_dir()


def test_the_user_has_a_name_if_the_system_finds_it() -> None:
    found = subprocess.run(["id", "-un"], capture_output=True, check=False)
    assert has_name() is (found.returncode == 0)
