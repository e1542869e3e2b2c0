"""Single views of a store, without Spark: they equal those of a rebuilt store, and all other rows are kept."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from claims import Claims, claims
from history import AUTHORS, NOW_MS, histories
from hypothesis import given
from hypothesis import strategies as st
from people import ANN, BOB, raws
from reindex_tasks import job_over, run_tasks, segments_of
from reindexing import conversation, digest_of, export_of, store_at
from stores import scratch_folder

from cablestore import CableStore, Dialect, Post, StoreOptions
from cablestore.errors import ExportError, OutdatedViewError
from cablestore.files import Location
from cablestore.index.view import Catalog
from cablestore.reindex import ReindexReport, reindex
from cablestore.reindex import new_generation as reindexing
from cablestore.reindex.job import Drops
from cablestore.reindex.prepare import read_sources
from cablestore.reindex.stages import DerivedRows
from cablestore.views import CATALOG

POSTS = conversation(40)

names = st.frozensets(st.sampled_from([view.name for view in CATALOG.views]), min_size=1)


def derive_here(exports: list[Location], work: Location, catalog: Catalog, **options: Any) -> DerivedRows:
    """Do the same as `derive_rows` in this process, without Spark."""
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
    return CableStore.open(
        folder, dialect=dialect, identity=AUTHORS[0], options=StoreOptions(clock=lambda: NOW_MS + 1), **options
    )


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


@pytest.mark.thorough
@given(claims(), names)
def test_claims_about_deleted_posts_are_not_lost(case: Claims, views: frozenset[str]) -> None:
    """The last export is imported after the store was exported. Its claims are not in the log."""
    with scratch_folder() as folder:
        claiming = case.write(folder)
        with opened(folder / "store", case.dialect) as store:
            store.ingest(raws(*case.offered), verify=False)
            store.import_exports(claiming[:-1])
            store.export(folder / "export")
            exported = dict(store.dump())
            store.import_exports(claiming[-1:])
            before = dict(store.dump())
        with nullcontext() if before == exported else suppress(ExportError):
            rebuild_views([folder / "export"], folder / "store", views)
        with opened(folder / "store", case.dialect) as store:
            assert dict(store.dump()) == before
            assert store.check().is_clean


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Create a store with an export beside it."""
    store_at(tmp_path / "store", POSTS)
    with CableStore.open(tmp_path / "store") as opened:
        opened.export(tmp_path / "export")
    return tmp_path / "store"


def test_claims_that_a_store_received_after_its_export_are_not_in_single_views(tmp_path: Path) -> None:
    """The store imports the skeleton of a deleted post that it never had. That is not an entry of its log."""
    gone, path = ANN.text("default", "gone"), tmp_path / "store"
    deletion = ANN.delete(gone)
    store_at(path, [*POSTS, deletion])
    with CableStore.open(path) as store:
        store.export(tmp_path / "export")
        store.import_exports([export_of([gone, deletion], tmp_path / "other")])
    before = digest_of(path)
    with pytest.raises(ExportError, match="Export the whole store again"):
        rebuild_views([tmp_path / "export"], path, frozenset(["links", "deleted"]))
    assert digest_of(path) == before


@pytest.mark.parametrize("other", [[BOB.text("elsewhere", "other")], [ANN.delete(POSTS[3])]])
def test_exports_with_other_posts_are_rejected_for_single_views(store: Path, tmp_path: Path, other: list[Post]) -> None:
    before = digest_of(store)
    merged = export_of(other, tmp_path / "other")
    with pytest.raises(ExportError, match=r"the exports do not match the store at"):
        rebuild_views([tmp_path / "export", merged], store, frozenset(["author"]))
    assert digest_of(store) == before


def test_an_export_of_some_of_the_posts_changes_nothing(store: Path, tmp_path: Path) -> None:
    before = digest_of(store)
    some = export_of(POSTS[:20], tmp_path / "some")
    rebuild_views([tmp_path / "export", some], store, frozenset(["author"]))
    assert digest_of(store) == before


def test_options_to_drop_posts_are_rejected_for_single_views(store: Path, tmp_path: Path) -> None:
    before = digest_of(store)
    with pytest.raises(ExportError, match="omit --views"):
        rebuild_views([tmp_path / "export"], store, frozenset(["author"]), drops=Drops(frozenset([ANN.key])))
    assert digest_of(store) == before


def test_single_views_are_not_rebuilt_beside_outdated_ones(store: Path, tmp_path: Path) -> None:
    """The new database would list these as views of the new version."""
    newer = Catalog(tuple(replace(v, version=9) if v.name in ("messages", "links") else v for v in CATALOG.views))
    with pytest.raises(OutdatedViewError, match="links"):
        rebuild_views([tmp_path / "export"], store, frozenset(["messages"]), catalog=newer)
    digest_of(store)
    rebuild_views([tmp_path / "export"], store, frozenset(["messages", "links"]), catalog=newer)
    with CableStore.open(store, options=StoreOptions(catalog=newer)) as opened:
        assert opened.check().is_clean
