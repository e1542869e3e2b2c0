"""A salvaged database without damage has the rows of the original, in both directions."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

from cablestore.index.leveldb import LevelDB
from cablestore.index.leveldb_salvage import salvaged


def test_a_salvaged_database_has_the_rows_of_every_range(tmp_path: Path, rng: random.Random) -> None:
    rows = sorted({rng.randbytes(4): rng.randbytes(400) for _ in range(200)}.items())
    with closing(LevelDB(tmp_path / "whole", create=True)) as database, database.bulk_writer() as writer:
        writer.put(rows)
    keys = [key for key, _ in rows]
    places = [b"", keys[0], keys[1], keys[-1], keys[-1] + b"\0", b"\xff" * 5]
    with salvaged(tmp_path / "whole", tmp_path / "scratch") as source:
        for start, stop in [
            *((start, stop) for start in places for stop in places),
            *((rng.randbytes(3), rng.choice(keys)) for _ in range(50)),
        ]:
            expected = [row for row in rows if start <= row[0] < stop]
            assert list(source.scan(start, stop)) == expected
            assert list(source.scan(start, stop, reverse=True)) == expected[::-1]
            assert [row for block in source.blocks(start, stop) for row in block] == expected
        assert [source.get(key) for key in keys] == [value for _, value in rows]
        assert source.get(keys[0] + b"\0") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole"]
