"""Rows of changes by discarded posts: the numbers of their batches, and damaged rows."""

from __future__ import annotations

import pytest

from cablestore import LEGACY
from cablestore.errors import CorruptStoreError
from cablestore.index.local import TOUCHED, local_key
from cablestore.index.memory import MemoryDB
from cablestore.index.notes import forget_touched, has_discarded, touched_keys, touched_row
from cablestore.index.packing import pack
from cablestore.index.reader import Reader


def test_changes_are_found_by_the_number_of_their_batch() -> None:
    database = MemoryDB()
    database.write(dict([touched_row(7, [b"!a", b"!b"]), touched_row(9, [b"!c"])]), sync=False)
    reader = Reader(database.live(), LEGACY)
    assert [has_discarded(reader, after) for after in (0, 6, 7, 8, 9)] == [True, True, True, True, False]
    assert [list(touched_keys(reader, after, 9)) for after in (6, 7, 8, 9)] == [
        [b"!a", b"!b", b"!c"],
        [b"!c"],
        [b"!c"],
        [],
    ]
    assert [len(list(touched_keys(reader, 0, last))) for last in (6, 7, 8, 9)] == [2, 2, 3, 3]
    forget_touched(database)
    assert not has_discarded(Reader(database.live(), LEGACY), 0)


@pytest.mark.parametrize(
    ("number", "keys"), [(b"0" * 15 + b"x", [b"!a"]), (b"0" * 15 + b"7", 5), (b"0" * 15 + b"7", [b"!a", 5])]
)
def test_a_damaged_row_of_changes_is_rejected(number: bytes, keys: object) -> None:
    database = MemoryDB()
    database.write({local_key(TOUCHED, number): pack(keys)}, sync=False)
    with pytest.raises(CorruptStoreError, match="Run `cablestore rebuild`"):
        list(touched_keys(Reader(database.live(), LEGACY), 0, 9))
