"""Export of one state of a store, as a stream. It can be interrupted at any instant and continued.

The database has posts in order of their hashes. They are read once, sorted into runs of bounded size in the folder, and
merged into segments. unfinished.json says what is done; the manifest is written last.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import blake3

from cablestore import limits
from cablestore.errors import ExportError
from cablestore.export.filter import Selection
from cablestore.export.manifest import ARRIVALS, MANIFEST, UNFINISHED, Filters, Manifest, Segment, segments_of
from cablestore.export.records import pieces
from cablestore.export.sort import merge, write_run
from cablestore.export.writer import ExportWriter, record_start
from cablestore.files import open_folder, storage_errors, try_lock, write_whole
from cablestore.index import arrival_log, meta
from cablestore.index.batches import Progress
from cablestore.index.engine import Engine
from cablestore.index.reader import Reader
from cablestore.protocol.post import Post

_AFTER: Final = b"\xff"
"""Sorts after every record of a place, because types are smaller."""
_OWN: Final = re.compile(
    r"((posts|tombstones)-\d{6,}\.seg(\.[0-9a-f]+\.tmp)?|run-\d{6,}(\.tmp)?"
    r"|(unfinished|arrivals)\.json(\.tmp)?|manifest\.json\.tmp)"
)
"""Names of files in the folder of an unfinished export."""


@dataclass(slots=True)
class _Work:
    """Progress of an export. `identity` is a digest of its store, state and arguments."""

    folder: Path
    identity: str
    runs: int = 0
    read_to: str = ""
    """The last hash, in hex, of the finished runs."""
    is_read: bool = False
    is_merged: bool = False
    segments: list[Segment] = field(default_factory=list)

    def save(self) -> None:
        """Write down what is done. All files that it names are on the disk already."""
        fields = {name: getattr(self, name) for name in ("identity", "runs", "read_to", "is_read", "is_merged")}
        fields["segments"] = [segment.fields() for segment in sorted(self.segments, key=lambda s: s.kind)]
        write_whole(self.folder / UNFINISHED, json.dumps(fields, indent=1).encode() + b"\n")

    def continued(self) -> _Work | None:
        """Return what an earlier call wrote down, None if that was another export, or if files are missing."""
        try:
            fields = json.loads((self.folder / UNFINISHED).read_bytes())
            found = replace(
                self,
                runs=int(fields["runs"]),
                read_to=str(fields["read_to"]),
                is_read=bool(fields["is_read"]),
                is_merged=bool(fields["is_merged"]),
                segments=list(segments_of(fields["segments"])),
            )
            is_here = all((self.folder / s.file).stat().st_size == s.size_bytes for s in found.segments)
            is_here &= found.is_merged or all(run.exists() for run in found.run_paths())
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return found if fields["identity"] == self.identity and is_here else None

    def run_paths(self) -> list[Path]:
        """Return the paths of the finished runs."""
        return [self.folder / f"run-{number:06d}" for number in range(self.runs)]

    def add_run(self, records: list[bytes], read_to: str) -> None:
        """Write a run of the records that were read up to a hash."""
        write_run(self.folder / f"run-{self.runs:06d}", records)
        self.runs += 1
        self.read_to = read_to
        self.save()

    def add_segment(self, segment: Segment) -> None:
        """Note a finished segment."""
        self.segments.append(segment)
        self.save()

    def place(self) -> bytes:
        """Return the record after which posts must still be written."""
        last = max((segment.last for segment in self.segments if segment.last is not None), default=None)
        return b"" if last is None else record_start(*last) + _AFTER


def export_store(
    engine: Engine,
    out: Path,
    *,
    filters: Filters | None = None,
    hidden_of: Callable[[Reader], Callable[[Post], bool]] | None = None,
    segment_size_bytes: int = limits.SEGMENT_SIZE_BYTES,
    run_size_bytes: int = limits.MAX_RUN_SIZE_BYTES,
    progress: Progress,
) -> Manifest:
    """Export the present state of a store into the folder `out`, or finish an export of it that was interrupted.

    `hidden_of` returns the test for hidden posts of a state, for filters that leave these out.

    Raises ExportError for a folder that holds anything else, StorageError if writing fails, CorruptStoreError for a
    store that cannot be read.
    """
    state, reader = engine.snapshot()
    with state:
        versions = engine.catalog.versions
        store_id = None if engine.folder is None else engine.folder.header.store_id
        through = arrival_log.next_sequence(reader) - 1
        if filters is not None:
            filters = replace(filters, channels=frozenset(map(reader.dialect.channel_id, filters.channels)))
        arguments = [None if filters is None else filters.fields(), segment_size_bytes, run_size_bytes, dict(versions)]
        seen = [store_id or secrets.token_hex(16), through, (reader.get(meta.SIZES_KEY) or b"").hex()]
        identity = blake3.blake3(json.dumps([*arguments, *seen]).encode()).hexdigest()
        with _claimed(out):
            work = _begun(out, identity)
            if not work.is_read:
                work.segments.clear()
            writer = ExportWriter(
                out,
                reader.dialect,
                versions,
                filters,
                segment_size_bytes,
                written=work.segments,
                on_segment=work.add_segment,
            )
            if not work.is_read:
                is_hidden = hidden_of(reader) if hidden_of and filters and filters.without_hidden else None
                selection = None if filters is None else Selection(reader, filters, is_hidden)
                _read(reader, selection, writer, work, run_size_bytes, progress)
            state.close()  # as soon as it was read
            if not work.is_merged:
                writer.add_records(_counted(merge(work.run_paths(), work.place()), progress))
                work.is_merged = True
                work.save()
            return _finish(work, writer, store_id, through)


def _read(
    reader: Reader,
    selection: Selection | None,
    writer: ExportWriter,
    work: _Work,
    run_size_bytes: int,
    progress: Progress,
) -> None:
    """Write the posts to sorted runs, and the tombstones to their segments."""
    with ThreadPoolExecutor(1) as thread:
        under_way: Future[None] | None = None
        for records, read_to in pieces(reader, selection, work.read_to, run_size_bytes, progress):
            if under_way is not None:
                under_way.result()
            under_way = thread.submit(work.add_run, records, read_to)
        if under_way is not None:
            under_way.result()
    stones = reader.tombstones()
    writer.add_tombstones(stones if selection is None else filter(selection.takes_tombstone, stones))
    work.is_read = True
    work.save()


def _counted(batches: Iterator[list[bytes]], progress: Progress) -> Iterator[list[bytes]]:
    for batch in batches:
        yield batch
        progress(len(batch))


def _finish(work: _Work, writer: ExportWriter, store_id: str | None, through: int) -> Manifest:
    """Remove the runs, and write the two last files."""
    with storage_errors(work.folder):
        for run in work.run_paths():
            run.unlink(missing_ok=True)
    if store_id is not None:
        fields = {"store": store_id, "through": through}
        write_whole(work.folder / ARRIVALS, json.dumps(fields).encode() + b"\n")
    manifest = writer.finish()
    with storage_errors(work.folder):
        (work.folder / UNFINISHED).unlink()
    return manifest


# --- the folder --------------------------------------------------------------------------------


@contextmanager
def _claimed(out: Path) -> Iterator[None]:
    """Make the folder, refuse one that holds anything else, and lock it."""
    if out.exists() and not out.is_dir():
        raise ExportError(f"{out} is a file, but an export is a folder. Choose a new or empty folder")
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with open_folder(out) as descriptor:
        if not try_lock(descriptor):
            raise ExportError(f"another export into {out} is under way: wait for it")
        with storage_errors(out):
            names = {entry.name for entry in out.iterdir()}
        if MANIFEST in names:
            raise ExportError(f"{out} is a finished export, which is not overwritten. Choose a new or empty folder")
        begun = {UNFINISHED, f"{UNFINISHED}.tmp"}
        foreign = sorted(name for name in names if not _OWN.fullmatch(name)) if names & begun else sorted(names)
        if foreign:
            raise ExportError(f"{out} holds {', '.join(foreign[:3])}. Choose a new or empty folder")
        yield


def _begun(out: Path, identity: str) -> _Work:
    """Return the export to continue in a folder, or a new one. All other files are removed."""
    new = _Work(out, identity)
    continued = new.continued()
    with storage_errors(out):
        for path in out.iterdir():
            if path.suffix == ".tmp" or (continued is None and path.name != UNFINISHED):
                path.unlink()
    if continued is None:
        new.save()
    return continued or new
