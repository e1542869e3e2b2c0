"""Importing exports: their posts as any others, then the skeletons of posts that were deleted before.

A post/delete brings its tombstones itself. What it cannot bring is what is known of a target that the export no longer
has: the skeleton. Nobody signed it, so it is another store's word: it is laid only under a tombstone whose post/delete is
here, not against what this store saw itself, and it keeps no post from being requested (`cablestore.index.tombstone`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from cablestore.errors import ExportError
from cablestore.export.manifest import Manifest, read_manifest, read_posts, read_tombstones
from cablestore.index.batches import batches
from cablestore.index.plan import Plan
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Tombstone
from cablestore.index.verdict import Outcome
from cablestore.protocol.dialect import Dialect


@dataclass(slots=True)
class ImportSummary:
    """What became of what exports hold."""

    exports: int = 0
    posts: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    """What the store said to the posts."""
    skeletons: int = 0
    """Tombstones that were told what their target was, or told otherwise than before."""
    refused_skeletons: int = 0
    """Tombstones whose post/delete is not here or does not say so, or whose target is or was here and somebody else's."""

    def count(self, outcomes: list[Outcome]) -> None:
        """Count what became of some posts."""
        self.posts += len(outcomes)
        self.verdicts.update(outcome.verdict.value for outcome in outcomes)


def manifests_of(folders: Iterable[Path], dialect: Dialect | None) -> list[Manifest]:
    """Read the manifests of exports that are to be imported together. All must have the given dialect, or one.

    Raises ExportError.
    """
    manifests = [read_manifest(folder) for folder in folders]
    for manifest in manifests:
        dialect = dialect or manifest.dialect
        if manifest.dialect != dialect:
            raise ExportError(
                f"{manifest.folder} has posts of the dialect {manifest.dialect.name}, expected is {dialect.name}: import it "
                "into another store"
            )
    return manifests


def posts_of(manifests: Iterable[Manifest]) -> Iterator[bytes]:
    """Yield the posts of all exports, one export after the other."""
    for manifest in manifests:
        for segment in manifest.post_segments:
            yield from chain.from_iterable(read_posts(manifest.folder, segment))


def effective_tombstones(manifests: Iterable[Manifest]) -> Iterator[list[Tombstone]]:
    """Yield the tombstones with skeletons of all exports, in batches."""
    for manifest in manifests:
        for segment in manifest.tombstone_segments:
            stones = chain.from_iterable(read_tombstones(manifest.folder, segment))
            yield from batches(
                (stone for stone in stones if stone.is_effective), lambda stone: 64 + len(stone.encode())
            )


def lay_skeletons(plan: Plan, reader: Reader, stones: Iterable[Tombstone]) -> tuple[int, int]:
    """Add to a plan over the state that `reader` reads what tombstones say of their targets.

    Returns how many were added and how many refused; the others were known.
    """
    laid = refused = 0
    for stone in stones:
        known = reader.tombstone(stone.target, stone.author)
        if known is not None and known.merge(stone) == known:
            continue
        if not _is_proven(reader, stone):
            refused += 1
        elif plan.lay(stone):
            laid += 1
    return laid, refused


def _is_proven(reader: Reader, stone: Tombstone) -> bool:
    """Tell whether the post/delete of a tombstone is here and says so, and nothing here contradicts the tombstone."""
    return (
        reader.post(stone.deleted_by) is not None
        and reader.confirms(stone)
        and reader.post(stone.target) is None
        and reader.witnessed_author(stone.target) in (None, stone.author)
    )
