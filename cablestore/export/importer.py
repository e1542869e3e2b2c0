"""Import of exports: first the posts, then the skeletons of posts that were deleted before the export.

An imported post/delete creates its tombstones, but without skeletons of targets that the export lacks. Skeletons are
unsigned claims of another store: they are added only to tombstones whose post/delete is stored, and never contradict
this store's own data. Skeletons do not prevent requests for a post (`cablestore.index.tombstone`). Statements about
roles without their post/infos are claims too (`cablestore.index.consents`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from cablestore.errors import ExportError
from cablestore.export.manifest import Manifest, read_consents, read_manifest, read_posts, read_tombstones
from cablestore.files import Location
from cablestore.index.batches import batches
from cablestore.index.plan import Plan
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Tombstone
from cablestore.index.verdict import Outcome
from cablestore.protocol.acts import Consent
from cablestore.protocol.dialect import Dialect


@dataclass(slots=True)
class ImportSummary:
    """Counts of the posts and claims that an import stored and rejected."""

    exports: int = 0
    posts: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    """Number of posts by the store's verdict."""
    skeletons: int = 0
    """Tombstones whose skeleton was added or changed."""
    rejected_skeletons: int = 0
    """Tombstones that no stored post/delete confirms, or whose target is stored or was stored with another author."""
    consents: int = 0
    """Statements about roles that are new to the store and whose post/infos are not in the export."""

    def count(self, outcomes: list[Outcome]) -> None:
        """Count the outcomes of some posts."""
        self.posts += len(outcomes)
        self.verdicts.update(outcome.verdict.value for outcome in outcomes)


def manifests_of(folders: Iterable[Location], dialect: Dialect | None) -> list[Manifest]:
    """Read the manifests of exports that are imported together.

    All must have the given dialect, or the same dialect if `dialect` is None. Raises ExportError, also if a file of an
    export is missing, too short or too long.
    """
    manifests = [read_manifest(folder) for folder in folders]
    for manifest in manifests:
        _check_sizes(manifest)
        dialect = dialect or manifest.dialect
        if manifest.dialect != dialect:
            raise ExportError(
                f"{manifest.source} contains posts of the dialect {manifest.dialect.name}, expected {dialect.name}. "
                "Import it into another store"
            )
    return manifests


def _check_sizes(manifest: Manifest) -> None:
    sizes = manifest.source.sizes()
    for segment in manifest.segments:
        size_bytes = sizes.get(segment.file)
        if size_bytes != segment.size_bytes:
            found = "is missing" if size_bytes is None else f"is damaged: it has {size_bytes:,} bytes"
            raise ExportError(
                f"{manifest.source.file(segment.file)} {found}, expected {segment.size_bytes:,} bytes. Copy or write it again"
            )


def posts_of(manifests: Iterable[Manifest]) -> Iterator[bytes]:
    """Yield the posts of all exports, one export after another."""
    for manifest in manifests:
        for segment in manifest.post_segments:
            yield from chain.from_iterable(read_posts(manifest.source, segment))


def effective_tombstones(manifests: Iterable[Manifest]) -> Iterator[list[Tombstone]]:
    """Yield the tombstones with skeletons of all exports, in batches."""
    for manifest in manifests:
        for segment in manifest.tombstone_segments:
            stones = chain.from_iterable(read_tombstones(manifest.source, segment))
            yield from batches(
                (stone for stone in stones if stone.is_effective), lambda stone: 64 + len(stone.encode())
            )


def consents_of(manifests: Iterable[Manifest]) -> Iterator[list[Consent]]:
    """Yield the statements about roles of all exports, in batches."""
    for manifest in manifests:
        for segment in manifest.consent_segments:
            said = chain.from_iterable(read_consents(manifest.source, segment))
            yield from batches(said, lambda _: 80)


def add_skeletons(plan: Plan, reader: Reader, stones: Iterable[Tombstone]) -> tuple[int, int]:
    """Add the skeletons of tombstones to a plan over the state of `reader`.

    Return the numbers of added and of rejected skeletons. Known skeletons are not counted.
    """
    laid = refused = 0
    for stone in stones:
        known = reader.tombstone(stone.target, stone.author)
        if known is not None and known.merge(stone) == known:
            continue
        if not _is_proven(reader, stone):
            refused += 1
        elif plan.add_tombstone(stone):
            laid += 1
    return laid, refused


def _is_proven(reader: Reader, stone: Tombstone) -> bool:
    """Return True if the post/delete of a tombstone is stored and confirms it, and stored data do not contradict it."""
    return (
        reader.post(stone.deleted_by) is not None
        and reader.confirms(stone)
        and reader.post(stone.target) is None
        and reader.confirmed_author(stone.target) in (None, stone.author)
    )
