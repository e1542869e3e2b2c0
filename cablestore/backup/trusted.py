"""Trusted rows of a backup, in a new database from which a store is built.

Posts are verified. All other rows are trusted if the store's key signed the backup. Otherwise a tombstone needs a
post/delete of the backup that confirms it. Local rows and causal logs are omitted, because they decide what is hidden,
dropped and sent. The arrival log is omitted too: a forged entry with the highest number would prevent all later writes.
Local-only posts are sealed with the store's key, so only the owner of the key can create them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from cablestore.backup.reading import BackupReading
from cablestore.errors import BackupError, CableStoreError
from cablestore.index import arrival_log
from cablestore.index.database import Row
from cablestore.index.leveldb import LevelDB
from cablestore.index.local import DROPPED, DROPPED_HEAD, DROPPED_LINK, local_key
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.reader import PRIVATE_PREFIX, TOMBSTONE_PREFIX, Reader, data_key, decode_tombstone
from cablestore.index.rebuild import UNOPENED
from cablestore.index.tombstone import Tombstone
from cablestore.protocol.dialect import dialect_named
from cablestore.store.intake import Intake


@dataclass(slots=True)
class TrustedRows:
    """Trusted rows of a backup, and counts of accepted and rejected rows.

    With `trusts_all`, only posts are verified. `without_sealed` omits local-only posts.
    """

    reading: BackupReading
    trusts_all: bool
    without_sealed: bool
    posts: int = 0
    sealed: int = 0
    causal_log_rows: int = 0
    left_out_rows: int = 0
    """Local rows, and rows of causal logs, that are not trusted."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Posts and tombstones that are not trusted, by reason."""

    def reject(self, damaged: Mapping[str, int]) -> None:
        """Count rows that a rebuild could not use as rejected. `damaged` maps each reason to the number of rows.

        Without `salvage`, raises BackupError for such rows if all rows are trusted, or if no local-only post could be
        decrypted, because the key may be wrong. In an untrusted backup, rows that an attacker added must not prevent the
        restore of other rows.
        """
        if not damaged:
            return
        unopened = damaged.get(UNOPENED, 0)
        if not self.reading.salvage and (self.trusts_all or unopened == self.sealed > 0):
            reasons = ", ".join(f"{what}: {count:,}" for what, count in damaged.items())
            key = " Check that the key belongs to the store." if unopened else ""
            raise BackupError(
                f"{self.reading.folder} contains data that cannot be restored: {reasons}.{key} To restore the rest, "
                "use --salvage"
            )
        self.sealed -= unopened
        self.rejected.update(damaged)

    @property
    def is_exact(self) -> bool:
        """True if the database contains all posts, tombstones and local rows of the backed-up store."""
        return self.trusts_all and not self.rejected and not self.reading.problems

    def copy(self, path: Path, intake: Intake, unseal: Callable[[bytes], bytes]) -> None:
        """Write the trusted rows to a new database at `path`."""
        manifest = self.reading.manifest
        with closing(LevelDB(path, create=True)) as database:
            with database.bulk_writer() as writer:
                for _, posts, rejected in self.reading.posts(intake):
                    self.posts += len(posts)
                    self.rejected.update(f"posts: {outcome.verdict.value}" for outcome in rejected)
                    writer.put((data_key(post.hash_hex), post.raw) for post in posts)
                for rows in self.reading.rows("arrivals"):
                    writer.put(rows if self.trusts_all else ())
                for rows in self.reading.rows("rows"):
                    writer.put(filter(self._is_trusted, rows))
            if self.trusts_all:
                database.write({arrival_log.NEXT_KEY: b"%d" % (manifest.through + 1)}, sync=False)
            with database.snapshot() as state:
                reader = Reader(state, dialect_named(manifest.dialect), unseal)
                if not self.trusts_all:
                    for rows in self.reading.rows("rows"):
                        database.write(dict(self._proven(reader, rows)), sync=False)
                elif self.reading.lost_items("rows"):
                    database.write(dict.fromkeys(_orphans(reader)), sync=False)

    def causal_logs(self) -> Iterator[list[Row]]:
        """Yield the rows of the causal logs if all are trusted and intact. They depend on each other."""
        if not self.trusts_all:
            self.left_out_rows += self.reading.manifest.items("causal-logs")
            return
        if self.reading.salvage:
            for _ in self.reading.rows("causal-logs"):
                pass
        if not self.reading.lost_items("causal-logs"):
            for rows in self.reading.rows("causal-logs"):
                self.causal_log_rows += len(rows)
                yield rows

    def _is_trusted(self, row: Row) -> bool:
        """Return True if a row is accepted without verification. Count local-only posts and rejected local rows."""
        key = row[0]
        if key.startswith(PRIVATE_PREFIX):
            self.sealed += not self.without_sealed
            return not self.without_sealed
        self.left_out_rows += not self.trusts_all and key.startswith(LOCAL_PREFIX)
        return self.trusts_all

    def _proven(self, reader: Reader, rows: list[Row]) -> Iterator[Row]:
        """Yield the tombstones in `rows` that a stored post/delete confirms. Count the others as rejected."""
        for row in rows:
            if not row[0].startswith(TOMBSTONE_PREFIX):
                continue
            stone = _stone_of(row)
            if stone is not None and _has(reader, stone.deleted_by) and reader.confirms(stone):
                yield row[0], stone.encode()
            else:
                self.rejected["tombstones without a post/delete"] += 1


def _stone_of(row: Row) -> Tombstone | None:
    """Return the tombstone in a row, in the form that exports contain, or None if it is malformed."""
    try:
        stone = decode_tombstone(row).for_export()
        return Tombstone.read([stone.target, stone.author, stone.encode()])
    except (CableStoreError, ValueError, TypeError, OverflowError):
        return None


def _has(reader: Reader, digest: bytes) -> bool:
    try:
        return reader.post(digest) is not None
    except CableStoreError:
        return False


def _orphans(reader: Reader) -> Iterator[bytes]:
    """Yield the keys of rows of dropped posts whose main row is lost."""
    for name in (DROPPED_LINK, DROPPED_HEAD):
        for key, _ in reader.local_rows(name):
            if reader.local(DROPPED, key.rsplit(b"!", 1)[-1]) is None:
                yield local_key(name, key)
