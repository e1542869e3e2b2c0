"""Notes: changes of local rows, and changes by discarded posts, by their numbers in the arrival log.

    !local!noted!<hash of a key>   -> number of the entry u64 | the key
    !local!touched!<number>        -> msgpack list of keys

A change of a local row has an entry of the kind LOCAL. Its 32 bytes are the BLAKE3 hash of the row's key, and the first
row contains the key. If an earlier entry for the same key was alone in its batch, it is removed. So the log does not
grow when one value changes often.

A discarded post leaves no data. The second row contains the keys of the rows of views that it changed. A batch that
discards posts writes such a row, with the number of the batch's last entry in 16 digits. Clients read it if their
cursor precedes the batch, however old the cursor is. A rebuild invalidates all cursors, so the rebuilt database starts
without these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import blake3

from cablestore.errors import CorruptStoreError
from cablestore.index.arrival_log import EventKind, log_row
from cablestore.index.batches import batches
from cablestore.index.database import Database, Row
from cablestore.index.local import NOTED, TOUCHED, local_key
from cablestore.index.packing import pack, unpack
from cablestore.index.reader import Reader
from cablestore.protocol.keys import after_prefix

_NUMBER_SIZE_BYTES: Final = 8


def note_hash(key: bytes) -> bytes:
    """Return the hash of a local row's key. A LOCAL entry contains it in place of a post's hash."""
    return blake3.blake3(key).digest()


def note_rows(
    get: Callable[[bytes], bytes | None], sequence: int, keys: Iterable[bytes]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield a row for each of the changed `keys`. Their entries in the arrival log are numbered from `sequence`.

    Also yield (key, None) for each row of the arrival log that contains only an earlier entry for the same key. `get`
    reads the state before the write.
    """
    for number, key in enumerate(keys, sequence):
        digest = note_hash(key)
        noted = local_key(NOTED, digest.hex().encode())
        known = get(noted)
        if known is not None:
            earlier = int.from_bytes(known[:_NUMBER_SIZE_BYTES])
            alone, value = log_row(earlier, [(EventKind.LOCAL, digest)])
            if get(alone) == value:
                yield alone, None
        yield noted, number.to_bytes(_NUMBER_SIZE_BYTES) + key


def noted_key(reader: Reader, digest: bytes) -> bytes | None:
    """Return the key of a LOCAL entry, None if its row was lost."""
    value = reader.local(NOTED, digest.hex().encode())
    return None if value is None else value[_NUMBER_SIZE_BYTES:]


def touched_row(last_sequence: int, keys: Iterable[bytes]) -> Row:
    """Return the row with the keys that a batch's discarded posts changed, given the number of its last entry."""
    return local_key(TOUCHED, b"%016d" % last_sequence), pack(list(keys))


def forget_touched(database: Database) -> None:
    """Remove the rows of changes by discarded posts from a database without valid cursors."""
    prefix = local_key(TOUCHED)
    with database.snapshot() as state:
        for rows in batches(state.scan(prefix, after_prefix(prefix)), lambda row: len(row[1])):
            database.write(dict.fromkeys(key for key, _ in rows), sync=False)


def has_discarded(reader: Reader, after: int) -> bool:
    """Return True if posts were discarded after entry `after`, unless the database was rebuilt since."""
    prefix = local_key(TOUCHED)
    return next(reader.scan(prefix + b"%016d" % (after + 1), after_prefix(prefix)), None) is not None


def touched_keys(reader: Reader, after: int, last: int) -> Iterator[bytes]:
    """Yield the keys of rows that discarded posts changed, for the entries after `after` and up to `last`.

    All keys of a batch are yielded, even if it ends after `last`. Raises CorruptStoreError.
    """
    prefix = local_key(TOUCHED)
    for key, value in reader.scan(prefix + b"%016d" % (after + 1), after_prefix(prefix)):
        keys, number = unpack(value), key[len(prefix) :]
        if not (number.isdigit() and isinstance(keys, list) and all(isinstance(each, bytes) for each in keys)):
            raise CorruptStoreError(f"the local row {key!r} is damaged. Run `cablestore rebuild`")
        yield from keys
        if number >= b"%016d" % last:
            return
