"""Export of one state of a store, as a stream. An interrupted export can be continued.

The database contains posts in order of their hashes. They are read once, sorted into runs of bounded size on this disk,
and merged into segments. unfinished.json records the progress; the manifest is written last. The runs of an export to
an object store are in the user's cache folder, so that this machine can continue the same export.
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
from types import NoneType
from typing import Annotated, Final

import blake3
from msgspec import Meta, Struct, structs, to_builtins

from cablestore import limits
from cablestore.arguments import check, check_instance
from cablestore.documents import read_document
from cablestore.errors import ExportError
from cablestore.export.filter import Selection
from cablestore.export.manifest import (
    ARRIVALS,
    KINDS,
    MANIFEST,
    UNFINISHED,
    CoveredLog,
    Filters,
    Manifest,
    Number,
    Segment,
    check_segments,
)
from cablestore.export.records import pieces
from cablestore.export.sort import merge, write_sorted
from cablestore.export.writer import ExportWriter, record_start
from cablestore.files import (
    LocalFolder,
    Location,
    ObjectFolder,
    cache_folder,
    check_location,
    folder_of,
    open_folder,
    restrict,
    storage_errors,
    try_lock,
)
from cablestore.index import arrival_log, meta
from cablestore.index.batches import Progress
from cablestore.index.consents import all_remembered_consents
from cablestore.index.engine import Engine
from cablestore.index.log_position import mark_at
from cablestore.index.reader import Reader
from cablestore.protocol.post import Post

_AFTER: Final = b"\xff"
"""Suffix that sorts after every record of a position, because post types are smaller."""
_OWN: Final = re.compile(
    r"((posts|tombstones|consents)-\d{6,}\.seg|run-\d{6,}|(unfinished|arrivals)\.json)(\.([0-9a-f]+\.)?tmp)?"
    r"|manifest\.json\.([0-9a-f]+\.)?tmp"
)
"""Names of files in the folder of an unfinished export. After a kill, names may end in .tmp."""


class _Done(Struct):
    """Content of unfinished.json."""

    identity: str
    runs: list[Number]
    read_to: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
    is_read: bool
    is_merged: bool
    segments: list[Segment]


@dataclass(slots=True)
class _Work:
    """Progress of an export. `identity` is a digest of the export's store, state and arguments."""

    out: ObjectFolder
    runs_folder: Path
    identity: str
    runs: list[int] = field(default_factory=list)
    """Size in bytes of each finished run."""
    read_to: str = ""
    """Last hash, in hex, that was read for the finished runs."""
    is_read: bool = False
    is_merged: bool = False
    is_saved: bool = False
    segments: list[Segment] = field(default_factory=list)

    def save(self) -> None:
        """Save the progress. All recorded files already exist."""
        if self.is_saved:
            self.reject_changes()
        segments = sorted(self.segments, key=lambda segment: KINDS.index(segment.kind))
        done = _Done(self.identity, self.runs, self.read_to, self.is_read, self.is_merged, segments)
        self.out.write(UNFINISHED, json.dumps(to_builtins(done), indent=1).encode() + b"\n")
        self.is_saved = True

    def reject_changes(self) -> None:
        """Raise ExportError if another machine changed the files at the same URI. Locks do not prevent this."""
        if not self.out.is_local and self.continued() is None:
            raise ExportError(f"another export to {self.out} changed its files. Choose a new or empty folder")

    def continued(self) -> _Work | None:
        """Return the saved progress, or None if it is missing or does not match this export and the existing files."""
        try:
            done = read_document(self.out.read(UNFINISHED), _Done)
            check_segments(done.segments)
            found = replace(self, **structs.asdict(done))
            sizes = self.out.sizes()
            is_here = found.identity == self.identity and all(
                sizes.get(segment.file) == segment.size_bytes for segment in found.segments
            )
            is_here &= found.is_merged or [run.stat().st_size for run in found.run_paths()] == found.runs
        except (FileNotFoundError, ValueError):
            return None
        return found if is_here else None

    def run_paths(self) -> Iterator[Path]:
        """Yield the paths of the finished runs."""
        return (self.runs_folder / f"run-{number:06d}" for number in range(len(self.runs)))

    def next_run(self) -> Path:
        """Return the path of the run that follows the finished runs."""
        return self.runs_folder / f"run-{len(self.runs):06d}"

    def add_run(self, written: Future[None], read_to: str) -> None:
        """Wait until the next run is written, and record it. `read_to` is the last hash that was read for it."""
        written.result()
        with storage_errors(self.next_run()):
            self.runs.append(self.next_run().stat().st_size)
        self.read_to = read_to
        self.save()

    def add_segment(self, segment: Segment) -> None:
        """Record a finished segment."""
        self.segments.append(segment)
        self.save()

    def place(self) -> bytes:
        """Return a key. Only posts whose records sort after the key must still be written to segments."""
        last = max((segment.last for segment in self.segments if segment.last is not None), default=None)
        return b"" if last is None else record_start(last[0], bytes.fromhex(last[1])) + _AFTER


def export_store(
    engine: Engine,
    out: Location,
    *,
    filters: Filters | None = None,
    hidden_of: Callable[[Reader], Callable[[Post], bool]] | None = None,
    segment_size_bytes: int = limits.SEGMENT_SIZE_BYTES,
    run_size_bytes: int = limits.MAX_RUN_SIZE_BYTES,
    progress: Progress,
) -> Manifest:
    """Export the present state of a store into a folder or to a URI, or continue an interrupted export of this state.

    If `filters` omit hidden messages, `hidden_of` is called with a reader. `hidden_of` must return a function that
    returns True for hidden posts.

    Raises ExportError for a folder with other files, StorageError if writing fails, CorruptStoreError for an unreadable
    store.
    """
    check(segment_size_bytes=segment_size_bytes, run_size_bytes=run_size_bytes, progress=progress)
    check_instance("filters", filters, (Filters, NoneType))
    check_location("out", out)
    place = folder_of(out)
    with engine.reading() as reader:
        versions = engine.catalog.versions
        store_id = None if engine.folder is None else engine.folder.header.store_id
        through = arrival_log.next_sequence(reader) - 1
        if filters is not None:
            filters = replace(filters, channels=frozenset(map(reader.dialect.channel_id, filters.channels)))
        arguments = [None if filters is None else filters.fields(), segment_size_bytes, run_size_bytes, dict(versions)]
        covered = None if store_id is None else CoveredLog(store_id, through, mark_at(reader, through).hex())
        seen = [store_id or secrets.token_hex(16), through, (reader.get(meta.SIZES_KEY) or b"").hex()]
        identity = blake3.blake3(json.dumps([*arguments, *seen]).encode()).hexdigest()
        with _claimed(place) as runs_folder:
            work = _begun(_Work(place, runs_folder, identity))
            if not work.is_read:
                work.segments.clear()
            writer = ExportWriter(
                place,
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
            reader.close()  # release the snapshot before the long merge
            if not work.is_merged:
                writer.add_records(_counted(merge(list(work.run_paths()), work.place()), progress))
                work.is_merged = True
                work.save()
            return _finish(work, writer, covered)


def _read(
    reader: Reader,
    selection: Selection | None,
    writer: ExportWriter,
    work: _Work,
    run_size_bytes: int,
    progress: Progress,
) -> None:
    """Write the posts in `selection` to sorted runs, and its other items to segments. None selects everything.

    A thread writes a run while the next run is read.
    """
    with ThreadPoolExecutor(1) as thread:  # only for writes to this disk, because Ctrl-C waits for them
        under_way: tuple[Future[None], str] | None = None
        for records, read_to in pieces(reader, selection, work.read_to, run_size_bytes, progress):
            if under_way is not None:
                work.add_run(*under_way)
            under_way = thread.submit(write_sorted, work.next_run(), records), read_to
        if under_way is not None:
            work.add_run(*under_way)
    stones = reader.tombstones()
    writer.add_tombstones(stones if selection is None else filter(selection.includes_tombstone, stones))
    said = all_remembered_consents(reader)
    statements = (each for each in said if reader.post(each.hash) is None)
    writer.add_consents(statements if selection is None else filter(selection.includes_consent, statements))
    work.is_read = True
    work.save()


def _counted(batches: Iterator[list[bytes]], progress: Progress) -> Iterator[list[bytes]]:
    for batch in batches:
        yield batch
        progress(len(batch))


def _finish(work: _Work, writer: ExportWriter, covered: CoveredLog | None) -> Manifest:
    """Remove the runs, and write arrivals.json and the manifest."""
    with storage_errors(work.runs_folder):
        for run in work.run_paths():
            run.unlink(missing_ok=True)
    if covered is not None:
        work.out.write(ARRIVALS, json.dumps(to_builtins(covered)).encode() + b"\n")
    work.reject_changes()
    manifest = writer.finish()
    work.out.remove(UNFINISHED)
    return manifest


# --- the folder --------------------------------------------------------------------------------


@contextmanager
def _claimed(out: ObjectFolder) -> Iterator[Path]:
    """Lock the folder `out` and yield the folder of its runs. The lock of a URI affects only this machine.

    Raises ExportError if the folder is a finished export, contains other files, or if another process exports to it.
    """
    if out.is_local and out.path.exists() and not out.path.is_dir():
        raise ExportError(f"{out} is a file, but an export is a folder. Choose a new or empty folder")
    runs = out if out.is_local else LocalFolder(cache_folder() / "exports" / _digest(out.uri))
    runs.make()
    with open_folder(runs.path) as descriptor:
        if not try_lock(descriptor):
            raise ExportError(f"another process is exporting to {out}. Wait until it ends")
        _reject_other(out, {*out.names(), *out.folders()})
        restrict(runs.path, _is_own, notify=False)
        yield runs.path


def _digest(text: str) -> str:
    return blake3.blake3(text.encode()).hexdigest()[:32]


def _is_own(name: str) -> bool:
    return name == MANIFEST or _OWN.fullmatch(name) is not None


def _reject_other(out: ObjectFolder, names: set[str]) -> None:
    if MANIFEST in names:
        raise ExportError(f"{out} is a finished export, and is not overwritten. Choose a new or empty folder")
    is_begun = any(name.startswith(UNFINISHED) and _OWN.fullmatch(name) for name in names)
    foreign = sorted(name for name in names if not (is_begun and _OWN.fullmatch(name)))
    if foreign:
        raise ExportError(f"{out} contains other files: {', '.join(foreign[:3])}. Choose a new or empty folder")


def _begun(new: _Work) -> _Work:
    """Return the saved progress if it matches the export `new`. Otherwise save and return `new`.

    Incomplete files and files of other exports are removed from the export's folder and from the folder of its runs.
    """
    continued = new.continued()
    for folder in {new.out, LocalFolder(new.runs_folder)}:
        for name in folder.names():
            if _is_own(name) and (name.endswith(".tmp") or (continued is None and name != UNFINISHED)):
                folder.remove(name)
    if continued is None:
        new.save()
    return continued or new
