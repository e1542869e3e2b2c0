"""End-to-end tests of the Spark job, on one long-lived local session: its store equals the incremental one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from exporting import forge
from history import Model, histories
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import Result, run_here
from people import ANN, BOB, CYD, START_MS, raws
from reindexing import conversation, digest_of, digest_of_all, export_of, small_shares, spark_session, store_at

from cablestore import StoreOptions
from cablestore.index.tombstone import Skeleton
from cablestore.store import ClosedStore

pytest.importorskip("pyspark")

from pyspark.cloudpickle import register_pickle_by_value
from reindex_tasks import Plan, plans, write_exports
from stores import scratch_folder, store_of

from cablestore import DRAFT8, Block, CableStore, Dialect, Post, Tombstone, Verdict, encode_post
from cablestore.errors import ExportError
from cablestore.index.check import CheckReport
from cablestore.index.leveldb import LevelDB
from cablestore.index.local import CONFIRMED
from cablestore.index.parallel import check_in_parts
from cablestore.index.view import Catalog
from cablestore.reindex import new_generation, reindex
from cablestore.reindex.compare import verify_store
from cablestore.reindex.job import Drops
from cablestore.store import answers
from cablestore.views import CATALOG

Run = Callable[..., Result]

POSTS = conversation(800)


@pytest.fixture(scope="module", autouse=True)
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with spark_session(tmp_path_factory.mktemp("spark")), small_shares():
        yield


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command in this process, with the exit status that a shell would see."""

    def command(*arguments: str | Path, expect: int = 0) -> Result:
        result = run_here(arguments)
        assert result.exit_code == expect, result.stdout + result.stderr
        assert "Traceback" not in result.stdout + result.stderr
        return result

    return command


def json_of(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Create three overlapping exports of stores with different parts. Deletions and targets are in different ones."""
    folder = tmp_path_factory.mktemp("exports")
    random = Random(7)
    shares = [[post for post in POSTS if random.random() < 0.5 or number == 0] for number in range(3)]
    shares[0] = [post for post in POSTS if post not in shares[1] or random.random() < 0.5]
    return [
        export_of(share, folder / str(number), segment_size_bytes=40_000, run_size_bytes=60_000)
        for number, share in enumerate(shares)
    ]


@pytest.fixture(scope="module")
def expected() -> str:
    return digest_of_all(POSTS)


def add_local_only(store: CableStore) -> None:
    """Store a local-only post of the store's user."""
    identity, dialect = store.identity, store.dialect
    block = encode_post(
        Block("why", 1, (BOB.key,), 0, 1), links=(), timestamp_ms=START_MS, identity=identity, dialect=dialect
    )
    assert block.is_local_only
    assert [outcome.verdict for outcome in store.ingest([block.raw])] == [Verdict.ACCEPTED]


# --- checks ----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_check_derives_all_rows_a_second_time(
    run: Run, exports: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: str
) -> None:
    reports: list[CheckReport] = []

    def check(*arguments: Any, **named: Any) -> CheckReport:
        reports.append(check_in_parts(*arguments, **named))
        return reports[-1]

    monkeypatch.setattr(new_generation, "check_in_parts", check)
    run("reindex", *exports, "--out", tmp_path / "plain")
    assert not reports
    run("reindex", *exports, "--out", tmp_path / "checked", "--check")
    (report,) = reports
    assert report.is_clean
    assert report.tombstones > 10
    assert digest_of(tmp_path / "plain") == digest_of(tmp_path / "checked") == expected


# --- equality --------------------------------------------------------------------------------------


@pytest.mark.thorough
@settings(max_examples=max(5, settings().max_examples // 100))
@given(histories(), plans, st.randoms(use_true_random=False))
def test_reindexing_has_the_rows_of_storing_and_of_a_rebuild(
    history: tuple[Dialect, list[Post]], plan: Plan, random: Random
) -> None:
    dialect, posts = history
    with scratch_folder() as folder, store_of(dialect, posts) as store:
        exports = write_exports(dialect, posts, plan, folder, random)
        report = reindex(exports, folder / "store")
        assert report.derived.posts == Model(posts).counts()
        with CableStore.open(folder / "store") as made:
            assert made.dialect == dialect
            assert list(made.dump()) == list(store.dump())
            made.rebuild()
            assert list(made.dump()) == list(store.dump())
            logged = {event.hash for event in made.events(timeout_s=0)}
            assert logged == Model(posts).live.keys()


def test_a_new_store_from_overlapping_exports(run: Run, exports: list[Path], tmp_path: Path, expected: str) -> None:
    result = run("reindex", *exports, "--out", tmp_path / "store", "--json")
    said = json_of(result)
    assert digest_of(tmp_path / "store") == expected
    with CableStore.open(tmp_path / "store") as store:
        stats = store.stats()
        assert said["posts"] == stats.posts
        with store.snapshot() as snapshot:
            witnessed = sum(1 for _ in snapshot.reader.local_rows(CONFIRMED))
        assert said["rows"] == sum(rows for rows, _ in stats.views.values()) + witnessed
        assert {name: (of["rows"], of["size_bytes"]) for name, of in said["views"].items()} == {
            name: tuple(size) for name, size in stats.views.items()
        }
    assert said["counts"]["duplicates"] > 100
    assert said["counts"]["tombstones: of a dead post"] == len(Model(POSTS).dead)
    assert said["counts"]["tombstones: of another author, without effect"] > 10
    assert said["counts"]["tombstones: of a deletion, without effect"] > 10
    assert said["left_out"] == {}
    assert not (tmp_path / "store.reindex").exists()
    assert not (tmp_path / "store.loading").exists()


# --- an existing store ---------------------------------------------------------------------------


def test_changes_since_the_export_are_added(run: Run, tmp_path: Path) -> None:
    """Later posts, deletions of exported posts, discards, local-only posts and the identity are kept."""
    path = tmp_path / "store"
    store_at(path, POSTS[:800])
    with CableStore.open(path) as store:
        me = store.identity
        own = store.post("default", "before the export")
        store.export(tmp_path / "export", segment_size_bytes=60_000)
        through = store.last_sequence
        store.ingest(raws(*POSTS[800:]), verify=False)
        store.delete(own.hash)
        add_local_only(store)
        gone = next(post for post in POSTS[:800] if post.type_name == "text" and store.get(post.hash))
        store.discard([gone.hash])
        store.post("a!b", "after the export")
        before, last = list(store.dump()), store.last_sequence
        events = list(store.events(timeout_s=0))
    said = json_of(run("reindex", tmp_path / "export", "--out", path, "--json"))
    assert said["generation"] == "generation-000002"
    assert said["arrived_since"] == last - through
    assert said["local_only"] == 1
    with CableStore.open(path) as store:
        assert list(store.dump()) == before
        assert store.check().is_clean
        assert store.identity == me
        assert list(store.events(timeout_s=0)) == events
        assert store.last_sequence == last
        store.post("default", "life goes on")


@pytest.mark.thorough
def test_posts_of_other_exports_are_added_and_reported_to_subscribers(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store_at(path, POSTS[:600])
    with CableStore.open(path) as store:
        store.export(tmp_path / "own")
        last = store.last_sequence
        held = {key for key, _ in store.dump() if key.startswith(b"!data!")}
    victims = [post for post in POSTS[:400] if post.type_name == "text" and post.author == ANN.key][:5]
    deletion = ANN.delete(*victims)
    other = export_of([*POSTS[400:], deletion], tmp_path / "other")
    run("reindex", tmp_path / "own", other, "--out", path)
    assert digest_of(path) == digest_of_all([*POSTS, deletion])
    with CableStore.open(path) as store:
        now = {key for key, _ in store.dump() if key.startswith(b"!data!")}
        news: dict[str, set[bytes]] = {"accepted": set(), "deleted": set()}
        for event in store.events(last, timeout_s=0):
            news[event.kind.name.lower()].add(b"!data!" + event.hash.hex().encode())
    assert news == {"accepted": now - held, "deleted": held - now}
    assert len(news["deleted"]) >= 4


@pytest.mark.thorough
def test_posts_that_the_store_dropped_do_not_return_from_exports(run: Run, tmp_path: Path) -> None:
    """The job does not apply moderation: dropped posts from exports are removed when the store is opened."""
    path = tmp_path / "store"
    store_at(path, POSTS[:600])
    with CableStore.open(path) as store:
        store.export(tmp_path / "before")
        store.moderation.drop(users=[BOB.key])
        store.moderation.sweep()
        store.export(tmp_path / "own")
    other = export_of(POSTS[400:], tmp_path / "other")
    imported = tmp_path / "imported"
    shutil.copytree(path, imported)
    with CableStore.open(imported) as store:
        store.import_exports([tmp_path / "before", other])
        store.moderation.sweep()
        expected = store.dump_digest()
    run("reindex", tmp_path / "own", tmp_path / "before", other, "--out", path)
    with CableStore.open(path) as store:
        store.moderation.sweep()
        assert {post.type_name for post in store.posts_by(BOB.key)} == {"delete"}  # deletions are never dropped
    assert digest_of(path) == expected


@pytest.mark.thorough
def test_dropping_posts_has_the_result_of_discarding_them(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store_at(path, POSTS)
    drops = Drops(frozenset([BOB.key]), frozenset(["a!b"]), POSTS[100].timestamp_ms)
    with CableStore.open(path) as store:
        store.export(tmp_path / "export")
    with CableStore.in_memory() as oracle:
        oracle.ingest(raws(*POSTS), verify=False)
        oracle.discard([post.hash for post in POSTS if drops.reason(post)])
        expected = oracle.dump_digest()
    when = datetime.fromtimestamp(POSTS[100].timestamp_ms / 1000, UTC).isoformat()
    options = ("--drop-author", BOB.key.hex(), "--drop-channel", "a!b", "--before", when)
    said = json_of(run("reindex", tmp_path / "export", "--out", path, *options, "--json"))
    assert digest_of(path) == expected
    for reason in ("by an author to drop", "in a channel to drop", "dated before the time to keep"):
        assert said["counts"][f"dropped: {reason}"] > 10


@pytest.mark.thorough
def test_an_open_store_is_rejected_and_stays_unchanged(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store_at(path, POSTS[:200])
    with CableStore.open(path) as store:
        store.export(tmp_path / "export")
        before = store.dump_digest()
        assert "is open in this process" in run("reindex", tmp_path / "export", "--out", path, expect=2).stderr
        store.post("default", "still here")
    said = json_of(run("reindex", tmp_path / "export", "--out", path, "--json"))
    assert said["seconds"].get("derive", 0) == 0, "finished work was repeated"
    with CableStore.open(path) as store:
        assert store.dump_digest() != before
        assert store.check().is_clean
        assert [m.text for m in store.messages("default", 1).messages] == ["still here"]


# --- rejections ------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_unsuitable_exports_and_options_are_rejected(run: Run, exports: list[Path], tmp_path: Path) -> None:
    with CableStore.in_memory(dialect=DRAFT8) as store:
        store.post("default", "x")
        store.export(tmp_path / "foreign")
    out = ("--out", tmp_path / "store")
    assert "A store has one dialect" in run("reindex", exports[0], tmp_path / "foreign", *out, expect=2).stderr
    assert "view not found: nonsense" in run("reindex", exports[0], *out, "--views", "nonsense", expect=2).stderr
    assert "is not an export" in run("reindex", tmp_path, *out, expect=2).stderr
    assert "missing input: pass an export" in run("reindex", *out, expect=2).stderr
    assert "exactly one of --out STORE and --verify STORE" in run("reindex", exports[0], expect=2).stderr
    assert "cannot be combined with exports" in run("reindex", exports[0], "--verify", tmp_path, expect=2).stderr
    assert "expected NAME=VALUE" in run("reindex", exports[0], *out, "--conf", "x", expect=2).stderr
    assert not (tmp_path / "store").exists()
    with CableStore.open(tmp_path / "draft8", dialect=DRAFT8) as store:
        store.post("default", "x")
    run("reindex", exports[0], "--out", tmp_path / "draft8", expect=2)
    with CableStore.open(tmp_path / "draft8") as store:
        assert store.dialect == DRAFT8


def damage(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)


@pytest.mark.thorough
@pytest.mark.parametrize("segment", ["posts-000001.seg", "tombstones-000000.seg"])
def test_a_damaged_segment_stops_the_job_or_is_omitted_and_named(
    run: Run, exports: list[Path], tmp_path: Path, segment: str
) -> None:
    copies = [Path(shutil.copytree(export, tmp_path / export.name)) for export in exports]
    damage(copies[1] / segment)
    path = tmp_path / "store"
    error = run("reindex", *copies, "--out", path, expect=2).stderr
    assert str(copies[1] / segment) in error
    assert "--skip-corrupt" in error
    assert not path.exists()
    said = json_of(run("reindex", *copies, "--out", path, "--skip-corrupt", "--json"))
    assert list(said["left_out"]) == [str(copies[1] / segment)]
    with CableStore.open(path) as store:
        assert store.check(signatures=True).is_clean
        assert store.stats().posts["text"] > 500


@pytest.mark.thorough
def test_the_store_keeps_posts_that_a_damaged_export_lacks(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store_at(path, POSTS[:800])
    with CableStore.open(path) as store:
        store.export(tmp_path / "export", segment_size_bytes=30_000)
        before = store.dump_digest()
    damage(tmp_path / "export" / "posts-000001.seg")
    shown = run("reindex", tmp_path / "export", "--out", path, "--skip-corrupt").stdout
    assert f"left out {tmp_path / 'export' / 'posts-000001.seg'}" in shown.replace("\n", "")
    assert "live post/text" in shown
    assert "now uses generation-000002, which was checked" in shown.replace("\n", " ")
    assert digest_of(path) == before


# --- single views ----------------------------------------------------------------------------------


MESSAGES = next(view for view in CATALOG.views if view.name == "messages")


def other_rows(post: Post) -> list[tuple[bytes, bytes]]:
    return [(key, value[::-1]) for key, value in MESSAGES.rows(post)]


def changed_catalog() -> Catalog:
    """Return the catalog with a newer version of messages, whose rows have another value."""
    register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call] # Spark's workers lack this file
    changed = replace(MESSAGES, version=MESSAGES.version + 1, rows=other_rows)
    return Catalog(tuple(changed if view is MESSAGES else view for view in CATALOG.views))


def test_single_views_are_rebuilt_and_all_other_rows_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store_at(path, POSTS)
    with CableStore.open(path) as store:
        add_local_only(store)
        store.export(tmp_path / "export")
        store.local.set_draft("default", "later")  # is in no view
        before = dict(store.dump())
        log = list(store.events(timeout_s=0))
    catalog = changed_catalog()
    report = reindex([tmp_path / "export"], path, views=frozenset(["messages", "author"]), catalog=catalog)
    assert report.checked.is_clean
    with CableStore.open(path, options=StoreOptions(catalog=catalog)) as store:
        assert store.check().is_clean
        after = dict(store.dump())
        assert store.local.draft("default") == "later"
        assert list(store.events(timeout_s=0)) == log
        store.rebuild()
        assert dict(store.dump()) == after
    changed = {key for key in before if before[key] != after[key]}
    assert after.keys() == before.keys()
    # The tree of sync is over the messages, so it is rebuilt with them.
    assert {CATALOG.view_of(key) for key in changed - {b"!meta"}} == {"messages", "sync"}


@pytest.mark.thorough
def test_all_views_by_name_keep_the_posts(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store_at(path, POSTS[:200])
    with CableStore.open(path) as store:
        store.export(tmp_path / "export")
    before = digest_of(path)
    run("reindex", tmp_path / "export", "--out", path, "--views", ",".join(CATALOG.versions))
    assert digest_of(path) == before


@pytest.mark.thorough
def test_single_views_need_an_unchanged_store(run: Run, exports: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "store"
    assert "no store found" in run("reindex", exports[0], "--out", path, "--views", "messages", expect=2).stderr
    store_at(path, POSTS[:100])
    with CableStore.open(path) as store:
        store.export(tmp_path / "export")
        store.post("default", "later")
    before = digest_of(path)
    said = run("reindex", tmp_path / "export", "--out", path, "--views", "messages", expect=2).stderr
    assert "new entries in its log: 2" in said
    assert digest_of(path) == before


# --- verify ----------------------------------------------------------------------------------------


def test_verify_reports_missing_extra_and_different_rows(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store_at(path, POSTS)
    with CableStore.open(path) as store:
        store.post("default", "own")
        add_local_only(store)
    assert "the store equals a rebuilt store" in run("reindex", "--verify", path).stdout
    database = LevelDB(path / "generation-000001")
    with database.snapshot() as state:
        texts = [key for key, _ in state.scan(b"!chat!text!", b'!chat!text"')]
        author = next(key for key, _ in state.scan(b"!author!", b'!author"'))
        topic = next(key for key, _ in state.scan(b"!channel!topic!", b'!channel!topic"'))
    planted: dict[bytes, bytes | None] = {texts[3]: None, texts[7]: None, author + b"x": b"extra", topic: b"different"}
    database.write(planted, sync=True)
    database.close()
    shown = run("reindex", "--verify", path, expect=1).stdout
    assert "cablestore rebuild" in shown
    report = verify_store(path)
    assert not report.is_equal
    found = {name: (of.missing, of.extra, of.different) for name, of in report.views.items() if of.examples}
    assert found == {"messages": (2, 0, 0), "author": (0, 1, 0), "channel_topic": (0, 0, 1)}
    assert report.views["messages"].examples == [("missing", texts[3]), ("missing", texts[7])]
    assert {name for name, of in report.views.items() if of.rows} >= {"messages", "author", "links", "deleted"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]
    ClosedStore(path).rebuild()
    assert verify_store(path).is_equal


# --- generations -----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_generations_can_be_listed_restored_and_removed(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "store"
    store_at(path, POSTS[:300])
    with CableStore.open(path) as store:
        store.export(tmp_path / "export")
    run("reindex", tmp_path / "export", "--out", path, "--drop-author", BOB.key.hex())
    here = ("--store", path)

    def states() -> dict[str, str]:
        listed = run("generations", *here, "--json").stdout.splitlines()
        return {found["generation"]: found["state"] for found in map(json.loads, listed)}

    assert states() == {"generation-000001": "kept", "generation-000002": "live"}
    store_at(path, [CYD.text("default", "since")])
    assert (
        "does not keep the generation" in run("generations", *here, "--back-to", "generation-000007", expect=2).stderr
    )
    assert "use only one of" in run("generations", *here, "--back-to", "x", "--remove", "y", expect=2).stderr
    run("generations", *here, "--back-to", "generation-000001")
    assert states() == {"generation-000001": "live", "generation-000002": "kept"}
    with CableStore.open(path) as store:
        assert store.check().is_clean
        assert [m.text for m in store.messages("default", 1).messages] == ["since"]
        assert any(store.posts_by(BOB.key)), "dropped posts are missing"
        sequences = [event.sequence for event in store.events(timeout_s=0)]
        assert sequences == sorted(set(sequences))
    run("generations", *here, "--remove", "generation-000001", expect=2)
    run("generations", *here, "--remove", "kept")
    assert states() == {"generation-000001": "live"}
    assert [p.name for p in path.glob("generation-*")] == ["generation-000001"]


@pytest.mark.thorough
def test_claims_about_deleted_posts_equal_those_of_an_import_and_survive_going_back(run: Run, tmp_path: Path) -> None:
    """One export has a true skeleton, one a false one of a stored post, and one is imported in between."""
    path = tmp_path / "store"
    first, seen, since = (BOB.text("default", text) for text in ("first", "seen", "told of since the export"))
    gone = ANN.text("default", "gone", links=(first.hash,))
    last = ANN.text("default", "last", links=(gone.hash,))
    deletions = [ANN.delete(gone), BOB.delete(seen), BOB.delete(since)]
    store_at(path, [first, last, seen, *deletions])
    with CableStore.open(path) as store:
        store.export(tmp_path / "own")
        forge(tmp_path / "since", [deletions[2]], [tombstone_of(since, deletions[2])])
        store.import_exports([tmp_path / "since"])
        assert set(store.heads("default")) == {first.hash, last.hash, seen.hash}
    other = export_of([first, gone, deletions[0]], tmp_path / "other")
    forged = forge(tmp_path / "forged", deletions[1:2], [tombstone_of(seen, deletions[1])])
    with CableStore.in_memory() as oracle:
        oracle.ingest(raws(first, last, seen, *deletions))
        oracle.import_exports([tmp_path / "since", other, forged])
        expected = oracle.dump_digest()
    run("reindex", tmp_path / "own", other, forged, "--out", path)
    for generation in ("generation-000002", "generation-000001"):
        if generation != "generation-000002":
            run("generations", "--store", path, "--back-to", generation)
        assert digest_of(path) == expected, generation
        with CableStore.open(path) as store, store.snapshot() as snapshot:
            assert set(store.heads("default")) == {last.hash, seen.hash}
            assert deletions[0].hash in answers.channel_time_range(snapshot.reader, "default", 0, 0)
            asked = list(answers.worth_requesting(snapshot.reader, [gone.hash, seen.hash, since.hash]))
            assert asked == [gone.hash, since.hash]


def tombstone_of(target: Post, deletion: Post) -> Tombstone:
    skeleton = Skeleton(0, 7, "a!b", ())
    return Tombstone(target.hash, deletion.author, deletion.timestamp_ms, deletion.hash, skeleton)


# --- resuming --------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_finished_work_is_kept_and_reused(exports: list[Path], tmp_path: Path, expected: str) -> None:
    work = tmp_path / "work"
    reindex(exports, tmp_path / "one", work=work, keep_work=True)
    made = {path.name: path.stat().st_mtime_ns for path in work.glob("*.seg")}
    assert len(made) > 10
    for lost in ("derived.done", "derived-000001.json", "built-000003.json"):
        (work / lost).unlink(missing_ok=True)
    again = reindex(exports, tmp_path / "two", work=work, keep_work=True)
    now = {path.name: path.stat().st_mtime_ns for path in work.glob("*.seg")}
    changed = {name for name in made if made[name] != now[name]}
    assert now.keys() == made.keys()
    assert changed <= {"posts-000001.seg", "reverse-000001.seg", "rows-000003.seg"}
    assert "posts-000001.seg" in changed
    assert digest_of(tmp_path / "one") == digest_of(tmp_path / "two") == expected
    assert again.derived.seconds.keys() >= {"derive"}
    reindex(exports[:1], tmp_path / "three", work=work, keep_work=True)
    assert all(path.stat().st_mtime_ns != now.get(path.name) for path in work.glob("*.seg")), (
        "another job's work was used"
    )


@pytest.mark.thorough
def test_errors_keep_their_types(exports: list[Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(exports[0], tmp_path / "copy"))
    damage(copy / "posts-000000.seg")
    with pytest.raises(ExportError, match=r"posts-000000\.seg"):
        reindex([copy], tmp_path / "store")
    (copy / "manifest.json").unlink()
    with pytest.raises(ExportError, match="is not an export"):
        reindex([copy], tmp_path / "store")
