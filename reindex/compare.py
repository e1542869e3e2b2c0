"""Comparison of a store with the rows that Spark derives from its posts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from cablestore.files import Location
from cablestore.index import arrival_log, meta
from cablestore.index.database import Row
from cablestore.index.derive import side_by_side
from cablestore.index.folder import store_path
from cablestore.index.meta import SIZES_KEY
from cablestore.index.view import Catalog
from cablestore.protocol.post import Post
from cablestore.reindex.driver import Progress
from cablestore.reindex.job import claim_folder, claim_work, temporary_work
from cablestore.reindex.row_segments import read_rows, with_local_only
from cablestore.reindex.stages import DerivedRows, SparkOptions, derive_rows
from cablestore.reprs import hex_repr
from cablestore.store.options import StoreOptions
from cablestore.store.store import CableStore
from cablestore.views import CATALOG

MAX_EXAMPLES: Final = 5
"""Maximum number of example rows of each view in a comparison."""


@dataclass(slots=True)
class ViewDifference:
    """Numbers of rows of a view: expected (`rows`), `missing`, `extra`, and `different` in value."""

    rows: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    examples: list[tuple[str, bytes]] = field(default_factory=list)

    __repr__ = hex_repr

    def add(self, what: str, key: bytes) -> None:
        """Count a row that differs. `what` is the name of the counter."""
        setattr(self, what, getattr(self, what) + 1)
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append((what, key))


@dataclass(slots=True)
class Comparison:
    """Result of a comparison, by view."""

    derived: DerivedRows
    views: dict[str, ViewDifference]

    @property
    def is_equal(self) -> bool:
        """True if all rows are equal."""
        return not any(of.missing or of.extra or of.different for of in self.views.values())


def verify_store(
    path: Path,
    *,
    work: Location | None = None,
    spark: SparkOptions | None = None,
    catalog: Catalog = CATALOG,
    progress: Progress = lambda *_: None,
) -> Comparison:
    """Export a store, derive all rows from the export on Spark, and compare them with the rows of the store.

    The store must be closed, and is not changed. Rows of local-only posts are derived from the store, because exports
    omit these posts.
    """
    path = store_path(path).absolute()
    beside = path.with_name(f"{path.name}.verify")
    folder, local = claim_work(work or beside, beside)
    folder.remove_all()  # left by an interrupted comparison
    claim_folder(folder)
    export, rows = folder.child("export"), folder.child("rows")
    with (
        temporary_work(folder, local),
        CableStore.open(path, create=False, options=StoreOptions(catalog=catalog)) as store,
    ):
        store.export(export)
        derived = derive_rows([export], rows, catalog, local=local / "rows", spark=spark, progress=progress)
        with store.snapshot() as state:
            return compare(state.dump(), derived, state.reader.local_only_posts(), catalog)


def compare(dump: Iterable[Row], derived: DerivedRows, local_only: Iterable[Post], catalog: Catalog) -> Comparison:
    """Compare a store's rows, in order of keys, with the derived rows and the rows of its local-only posts."""
    views = {view.name: ViewDifference() for view in catalog.views}
    rows = chain.from_iterable(chain.from_iterable(read_rows(derived.folder, s) for s in derived.segments))
    expected = with_local_only(rows, local_only, catalog, catalog.versions)
    found = (
        row for row in dump if row[0] not in (meta.META_KEY, SIZES_KEY) and not row[0].startswith(arrival_log.PREFIX)
    )
    for key, due, present in side_by_side(expected, found):
        of = views.setdefault(catalog.view_of(key) or "none", ViewDifference())
        of.rows += due is not None
        if due == present:
            continue
        of.add("missing" if present is None else "extra" if due is None else "different", key)
    return Comparison(derived, views)
