"""Import of exports into an open store."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from cablestore import limits
from cablestore.export import importer
from cablestore.files import Location
from cablestore.index.batches import Progress
from cablestore.store.parts import StoreParts


def import_exports(parts: StoreParts, folders: Iterable[Location], progress: Progress) -> importer.ImportSummary:
    """Store the posts, tombstones and role claims of exports: see `CableStore.import_exports`."""
    manifests = importer.manifests_of(folders, parts.engine.dialect)
    summary = importer.ImportSummary(len(manifests))
    posts = parts.writer.ingest(
        importer.posts_of(manifests), sync=False, batch_posts=limits.MAX_BATCH_POSTS, verify=True
    )
    for outcomes in posts:
        summary.count(outcomes)
        progress(len(outcomes))
    for claims in importer.consents_of(manifests):
        summary.consents += parts.writer.store_claims(claims)
    for stones in chain(importer.effective_tombstones(manifests), [[]]):
        # The last write, which may be empty, also flushes all earlier writes to disk.
        laid, refused = parts.writer.store_skeletons(stones, sync=not stones)
        summary.skeletons += laid
        summary.rejected_skeletons += refused
    return summary
