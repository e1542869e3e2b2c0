"""Logs of LevelDB: records of any size are read, and the end at which LevelDB would stop silently is found."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cablestore.errors import DecodeError
from cablestore.index.leveldb_binding import plyvel
from cablestore.index.leveldb_log import find_silent_end, read_records, recorded

BLOCK, HEADER = 2**15, 7
FIRST_BATCH = 12 + 1 + 1 + 1 + 3
"""Bytes of a batch of LevelDB beside a long value at a key of one byte."""


@pytest.mark.parametrize("size_bytes", [0, 1, BLOCK - HEADER - 1, BLOCK - HEADER, BLOCK - HEADER + 1, 2 * BLOCK])
def test_a_written_record_is_read(size_bytes: int) -> None:
    record = bytes(number % 251 for number in range(size_bytes))
    log = recorded(record)
    assert list(read_records(log)) == [record]
    kinds = [log[at + HEADER - 1] for at in range(0, len(log), BLOCK)]
    assert kinds == ([1] if len(log) <= BLOCK else [2, *[3] * (len(kinds) - 2), 4])
    assert find_silent_end(log) == (len(log), False)


@pytest.mark.parametrize("left_bytes", [0, 1, 6, 7, 8, 20])
def test_records_of_leveldb_are_read_at_any_end_of_a_block(tmp_path: Path, left_bytes: int) -> None:
    """Less than a header at the end of a block is filled with zeros. The second record begins after them."""
    values = b"x" * (BLOCK - HEADER - FIRST_BATCH - left_bytes), b"y" * 40
    with closing(plyvel.DB(str(tmp_path), create_if_missing=True)) as database:
        for value in values:
            database.put(b"k", value)
        [log] = (path.read_bytes() for path in tmp_path.glob("*.log"))
    assert [record[-40:] for record in read_records(log)] == [value[-40:] for value in values]
    assert find_silent_end(log) == (len(log), False)


def test_damage_is_an_error_unless_checksums_are_ignored() -> None:
    log = recorded(b"content")
    changed = log[:-1] + b"?"
    with pytest.raises(DecodeError, match="the checksum of a record is wrong"):
        list(read_records(changed))
    assert list(read_records(changed, verify=False)) == [b"conten?"]
    with pytest.raises(DecodeError, match="the checksum"):
        list(read_records(log[:-1], verify=False))
    with pytest.raises(DecodeError, match="within the header"):
        list(read_records(log[: HEADER - 1]))
    with pytest.raises(DecodeError, match="the bytes end within a record"):
        list(read_records(recorded(bytes(BLOCK))[:BLOCK]))


def test_lost_records_are_distinguished_from_an_incomplete_end() -> None:
    log, last = recorded(b"first" * 9), recorded(b"last")
    length = len(log)
    too_long = log[:4] + (BLOCK - HEADER).to_bytes(2, "little") + log[6:]
    assert find_silent_end(log + last[:-1]) == (length, False)
    assert find_silent_end(log + last[: HEADER - 1]) == (length, False)
    assert find_silent_end(log + bytes(HEADER) + last) == (length, True)
    full = recorded(bytes(BLOCK - 2 * HEADER))
    assert find_silent_end(full + bytes(HEADER) + last) == (len(full), True)  # the zeros end the block
    assert find_silent_end(too_long) == (0, False)
    assert find_silent_end(too_long + last) == (0, True)
    assert find_silent_end(too_long + last[:-1] + b"?") == (0, False)
    assert find_silent_end(b"") == (0, False)
