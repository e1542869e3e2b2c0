"""Tasks that build the segments of summaries (trees, censuses) from the segments of all other rows, in parts.

The sums of a tree's sets do not depend on each other, so several tasks can share a tree between two sets.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

from cablestore.index.batches import batches
from cablestore.index.census import summaries
from cablestore.index.database import Row
from cablestore.index.derive import key_of, measure
from cablestore.index.meta import Sizes, add_sizes
from cablestore.index.runs import AFTER_ALL
from cablestore.protocol.keys import SEPARATOR
from cablestore.reindex.job import ReindexJob
from cablestore.reindex.row_segments import RowSegment, RowSegmentWriter, read_rows
from cablestore.reindex.tasks import Batches, finish, reporting

ROWS_OF_A_PART: Final = 1_000_000
"""Number of rows after which another task gets the next sets of a tree. A task takes a few seconds."""


class SummaryPart(NamedTuple):
    """Part of the summary with this `number` in the catalog: it follows from source rows with start <= key < stop.

    `start` and `stop` do not include the prefixes of the rows.
    """

    number: int
    start: bytes = b""
    stop: bytes = AFTER_ALL


def parts_of(job: ReindexJob, segments: Sequence[RowSegment]) -> list[SummaryPart]:
    """Split the summaries of a job into parts, between the sets that segments begin with."""
    found: list[SummaryPart] = []
    for number in job.summaries:
        sources = summaries(job.catalog)[number].sources
        edges = [b"", *_edges(segments, sources), AFTER_ALL]
        found += [SummaryPart(number, start, stop) for start, stop in pairwise(edges)]
    return found


def _edges(segments: Sequence[RowSegment], sources: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the names of the sets, each with its `!`, at which a part begins.

    Each part but the last has at least ROWS_OF_A_PART rows of `sources`.
    """
    rows, last = 0, b""
    for first, count in sorted((s.first[len(p) :], s.rows) for p in sources for s in segments if s.first.startswith(p)):
        name = first[: first.find(SEPARATOR) + 1]
        if name > last and rows >= ROWS_OF_A_PART:
            yield name
            rows = 0
        rows, last = rows + count, max(name, last)


def add_up(
    job: ReindexJob, segments: Sequence[RowSegment], parts: Sequence[SummaryPart]
) -> Callable[[Batches], Batches]:
    """Return the task that builds `parts` from the segments of all rows. Its input is positions in `parts`."""

    def make(index: int) -> dict[str, Any]:
        part = parts[index]
        rows = summaries(job.catalog)[part.number].made_of(partial(_blocks, job, segments, part))
        made: list[dict[str, Any]] = []
        sizes: Sizes = {}
        with RowSegmentWriter(job.folder, f"summary-{index:06d}.seg") as writer:
            for batch in batches(rows, lambda row: len(row[1])):
                writer.write(batch)
                sizes = add_sizes(sizes, measure(batch, job.catalog))
            if sizes:
                made.append(writer.finish(sizes))
        return finish(job, f"added-{index:06d}.json", {"summary": part.number, "segments": made})

    return reporting(make)


def _blocks(job: ReindexJob, segments: Sequence[RowSegment], part: SummaryPart, prefix: bytes) -> Iterator[list[Row]]:
    """Yield the source rows of `part` under `prefix`. A segment begins at each prefix."""
    start, stop = prefix + part.start, prefix + part.stop
    for segment in segments:
        if segment.first.startswith(prefix) and start <= segment.last and segment.first < stop:
            is_whole = start <= segment.first and segment.last < stop
            for rows in read_rows(job.folder, segment):
                yield rows if is_whole else rows[_place(rows, start) : _place(rows, stop)]


def _place(rows: list[Row], key: bytes) -> int:
    return bisect_left(rows, key, key=key_of)
