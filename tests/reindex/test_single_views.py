"""Single views of a store, without Spark: they become those of a rebuilt store, and all other rows stay."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from history import AUTHORS, NOW_MS, histories
from hypothesis import given
from hypothesis import strategies as st
from people import raws
from reindex_tasks import job_over, run_tasks, segments_of
from stores import scratch_folder

from cablestore import CableStore, Dialect, Post
from cablestore.files import Location
from cablestore.index.view import Catalog
from cablestore.reindex import reindex as reindexing
from cablestore.reindex.prepare import read_sources
from cablestore.reindex.reindex import ReindexReport, reindex
from cablestore.reindex.stages import DerivedRows
from cablestore.views import CATALOG

names = st.frozensets(st.sampled_from([view.name for view in CATALOG.views]), min_size=1)


def derive_here(exports: list[Location], work: Location, catalog: Catalog, **options: Any) -> DerivedRows:
    """Do in this process what `derive_rows` does on Spark."""
    sources = read_sources(exports)
    job = job_over(
        sources.inputs, work, sources.dialect, drops=options["drops"], views=options["views"], catalog=catalog
    )
    _, reports, _ = run_tasks(job, Random(0))
    return DerivedRows(job.folder, options["local"], sources.dialect, segments=segments_of(reports))


def rebuild_views(exports: list[Path], store: Path, views: frozenset[str], **options: Any) -> ReindexReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reindexing, "derive_rows", derive_here)
        return reindex(exports, store, views=views, **options)


def opened(folder: Path, dialect: Dialect, **options: Any) -> CableStore:
    return CableStore.open(folder, dialect=dialect, identity=AUTHORS[0], clock=lambda: NOW_MS + 1, **options)


@given(histories(), names)
def test_any_views_of_any_history_keep_all_rows(history: tuple[Dialect, list[Post]], views: frozenset[str]) -> None:
    dialect, posts = history
    with scratch_folder() as folder:
        with opened(folder / "store", dialect) as store:
            store.ingest(raws(*posts), verify=False)
            store.export(folder / "export")
            before = dict(store.dump())
        rebuild_views([folder / "export"], folder / "store", views)
        with opened(folder / "store", dialect) as store:
            assert dict(store.dump()) == before
            assert store.check().is_clean
