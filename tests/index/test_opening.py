"""The advice to read a store without writing is for stores that exist on a disk that cannot be written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from cablestore.errors import StorageError
from cablestore.index.opening import READ_ONLY_ADVICE, opening


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(
    ("number", "is_advised"),
    [
        (errno.EROFS, True),
        (errno.EACCES, True),
        (errno.EPERM, True),
        (errno.ENOSPC, True),
        (errno.EDQUOT, True),
        (errno.EIO, False),
        (errno.EMFILE, False),
    ],
)
def test_read_only_opening_is_advised_if_an_existing_store_cannot_be_written(
    tmp_path: Path, number: int, is_advised: bool, exists: bool
) -> None:
    header = tmp_path / "header"
    if exists:
        header.touch()
    with pytest.raises(StorageError) as caught, opening(tmp_path, header):
        raise OSError(number, "reason")
    assert (READ_ONLY_ADVICE in str(caught.value)) is (is_advised and exists)
    assert str(tmp_path) in str(caught.value)
