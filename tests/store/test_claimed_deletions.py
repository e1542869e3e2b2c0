"""Skeletons of deleted posts from other stores are used, do not prevent a post's arrival, and are replaced by it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import reduce
from itertools import permutations
from pathlib import Path
from random import Random

from claims import Claims, claims, skeletons
from exporting import export, forge, in_memory
from history import Model
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import engine_of
from people import ANN, BOB, CYD, raws
from stores import scratch_folder

from cablestore import LEGACY, CableStore, Post, StoreOptions, Tombstone, Verdict
from cablestore.export import verify_export
from cablestore.index.arrival_log import EventKind
from cablestore.index.database import Row
from cablestore.index.leveldb import LevelDB
from cablestore.index.local import CONFIRMED, SWEPT, local_key
from cablestore.index.reader import tombstone_key
from cablestore.index.tombstone import Skeleton
from cablestore.store import answers
from cablestore.store.closed import ClosedStore, locked_folder

FORGED = Skeleton(0, 7, "a!b", (bytes([9]) * 32,))


def claimed(target: Post, deletion: Post, skeleton: Skeleton | None = FORGED) -> Tombstone:
    """Return the tombstone in an export for a target of a post/delete."""
    return Tombstone(target.hash, deletion.author, deletion.timestamp_ms, deletion.hash, skeleton)


def requested(store: CableStore, posts: Iterable[Post]) -> set[bytes]:
    with store.snapshot() as snapshot:
        return set(answers.worth_requesting(snapshot.reader, [post.hash for post in posts]))


def witnessed(store: CableStore) -> dict[bytes, bytes]:
    with store.snapshot() as snapshot:
        return {bytes.fromhex(key.decode()): author for key, author in snapshot.reader.local_rows(CONFIRMED)}


def time_of(store: CableStore, post: Post) -> int | None:
    with store.snapshot() as snapshot:
        return answers.time_of(snapshot.reader, post.hash)


def assert_whole(store: CableStore) -> None:
    report = store.check()
    assert report.is_clean, [str(problem) for problem in report.problems]


# --- one post ------------------------------------------------------------------------------------


def test_a_claim_of_another_store_does_not_reject_a_post(tmp_path: Path) -> None:
    post = ANN.text("default", "I live", links=())
    not_his = BOB.delete(post)
    forge(tmp_path / "forged", [not_his], [claimed(post, not_his)])
    assert verify_export(tmp_path / "forged", signatures=True).is_clean
    with in_memory(LEGACY) as store, in_memory(LEGACY, [not_his, post]) as expected:
        assert store.import_exports([tmp_path / "forged"]).skeletons == 1
        assert store.heads("a!b") == [post.hash], "the claim counts until the post arrives"
        assert requested(store, [post]) == {post.hash}
        assert time_of(store, post) is None, "an unsigned time must not split pages of answers"
        assert store.ingest([post.raw])[0].verdict is Verdict.ACCEPTED
        assert time_of(store, post) == post.timestamp_ms
        assert store.deletion(post.hash) is None
        assert list(store.dump()) == list(expected.dump())
        assert_whole(store)
        again = store.import_exports([tmp_path / "forged"])
        assert (again.skeletons, again.rejected_skeletons) == (0, 1)
        assert list(store.dump()) == list(expected.dump())


def test_the_true_skeleton_of_a_deleted_post_replaces_a_forged_one(tmp_path: Path) -> None:
    post, last = ANN.text("default", "gone"), BOB.text("default", "stays")
    deletion = ANN.delete(post)
    forge(tmp_path / "forged", [deletion], [claimed(post, deletion)])
    with in_memory(LEGACY) as store, in_memory(LEGACY, [deletion, last, post]) as expected:
        store.import_exports([tmp_path / "forged"])
        assert requested(store, [post]) == {post.hash}
        assert witnessed(store) == {}
        assert store.ingest(raws(last, post))[1].verdict is Verdict.DELETED
        assert requested(store, [post]) == set()
        assert witnessed(store) == {post.hash: ANN.key}
        assert time_of(store, post) == post.timestamp_ms
        assert list(store.dump()) == list(expected.dump())
        assert [event.kind for event in store.events(timeout_s=0) if event.hash == post.hash] == [EventKind.DELETED]
        again = store.import_exports([tmp_path / "forged"])
        assert again.skeletons == 0
        assert list(store.dump()) == list(expected.dump())
        assert store.ingest([post.raw])[0].verdict is Verdict.DELETED
        assert len(list(store.events(timeout_s=0))) == 3
        assert_whole(store)


def test_a_claim_about_a_confirmed_deletion_is_ignored(tmp_path: Path) -> None:
    post = ANN.text("default", "gone")
    deletion, not_his = ANN.delete(post), BOB.delete(post)
    forge(tmp_path / "forged", [not_his], [claimed(post, not_his)])
    with in_memory(LEGACY) as store, in_memory(LEGACY, [post, deletion, not_his]) as expected:
        store.import_exports([tmp_path / "forged"])
        store.ingest(raws(deletion, post))
        assert list(store.dump()) == list(expected.dump())
        assert store.import_exports([tmp_path / "forged"]).rejected_skeletons == 1
        assert list(store.dump()) == list(expected.dump())


def test_a_deletion_that_is_claimed_to_be_deleted_is_accepted(tmp_path: Path) -> None:
    """A post/delete cannot be deleted, even if a skeleton under a deletion by its author claims another type."""
    deletion = ANN.delete(BOB.text("default", "x"))
    second = ANN.delete(deletion)
    forge(tmp_path / "forged", [second], [claimed(deletion, second)])
    with in_memory(LEGACY) as store, in_memory(LEGACY, [second, deletion]) as expected:
        store.import_exports([tmp_path / "forged"])
        assert requested(store, [deletion]) == {deletion.hash}
        assert store.ingest([deletion.raw])[0].verdict is Verdict.ACCEPTED
        assert list(store.dump()) == list(expected.dump())


def test_several_claimed_authors_of_one_post_are_distinguished(tmp_path: Path) -> None:
    post, linked = CYD.text("default", "unseen"), CYD.text("default", "linked to")
    stones = [
        claimed(post, deletion, Skeleton(0, 7, "default", (linked.hash,)))
        for deletion in (ANN.delete(post), BOB.delete(post))
    ]
    deletions = [ANN.delete(post, at=stones[0].deleted_at_ms), BOB.delete(post, at=stones[1].deleted_at_ms)]
    exports = [forge(tmp_path / str(n), [deletions[n]], [stones[n]]) for n in (0, 1)]
    dumps = []
    for order in (exports, exports[::-1]):
        with in_memory(LEGACY, [linked]) as store:
            assert [store.import_exports([one]).skeletons for one in order] == [1, 1]
            assert store.links(linked.hash, incoming=True) == (post.hash,)
            assert store.heads("default") == [post.hash]
            assert_whole(store)
            dumps.append(list(store.dump()))
            store.rebuild()
            assert list(store.dump()) == dumps[0]
            store.ingest([post.raw])
            assert sorted(store.heads("default")) == sorted([post.hash, linked.hash])
            assert_whole(store)
    assert dumps[0] == dumps[1]


# --- any order -----------------------------------------------------------------------------------

claimed_deletions = st.builds(
    Tombstone,
    target=st.just(bytes(32)),
    author=st.just(bytes([1]) * 32),
    deleted_at_ms=st.integers(0, 2),
    deleted_by=st.integers(0, 2).map(lambda n: bytes([n]) * 32),
    skeleton=st.none() | skeletons,
)


@given(st.lists(claimed_deletions, min_size=1, max_size=4))
def test_tombstones_merge_in_any_order(stones: list[Tombstone]) -> None:
    merged = {reduce(Tombstone.merge, order) for order in permutations([*stones, stones[0]][:4])}
    assert len(merged) == 1
    whole = merged.pop()
    assert all(whole.merge(stone) == whole for stone in stones[:4])
    if len(stones) > 2:
        one, two, three = stones[:3]
        assert one.merge(two.merge(three)) == one.merge(two).merge(three)


def take(store: CableStore, part: Path | list[Post]) -> None:
    if isinstance(part, Path):
        store.import_exports([part])
    else:
        store.ingest(raws(*part), verify=False)


def parts_of(case: Claims, exports: list[Path], random: Random) -> list[Path | list[Post]]:
    """Return the steps in random order: imports, some of them twice, and posts in batches."""
    posts = random.sample(case.offered, len(case.offered))
    parts: list[Path | list[Post]] = [*exports, *random.sample(exports, random.randint(0, len(exports)))]
    while posts:
        size = random.randint(1, 4)
        parts.append(posts[:size])
        posts = posts[size:]
    random.shuffle(parts)
    return parts


@settings(max_examples=max(settings().max_examples // 2, 10))
@given(claims(), st.randoms(use_true_random=False))
def test_claims_create_the_same_database_in_any_order(case: Claims, random: Random) -> None:
    model = Model(case.seen)
    with scratch_folder() as folder:
        exports = case.write(folder)
        with in_memory(case.dialect, case.offered) as store:
            store.import_exports(exports)
            expected = list(store.dump())
        with in_memory(case.dialect) as store:
            for part in parts_of(case, exports, random):
                take(store, part)
                if random.random() < 0.2:
                    store.rebuild()
            assert list(store.dump()) == expected
            assert_whole(store)
            assert witnessed(store) == {digest: post.author for digest, post in model.dead.items()}
            unseen = {post.hash for post in case.posts} - {post.hash for post in case.seen}
            assert requested(store, case.posts) == unseen
            store.rebuild()
            assert list(store.dump()) == expected
            assert requested(store, case.posts) == unseen
            store.ingest(raws(*case.posts), verify=False)
            assert_whole(store)
            named = {stone.target for _, stones in case.exports for stone in stones}
            if named <= {post.hash for post in case.posts}:
                with in_memory(case.dialect, case.posts) as honest:
                    assert list(store.dump()) == list(honest.dump()), "a claim remained after the posts"


@settings(max_examples=max(settings().max_examples // 8, 10))
@given(claims(), st.randoms(use_true_random=False))
def test_a_reopened_store_has_the_same_claims(case: Claims, random: Random) -> None:
    with scratch_folder() as folder:
        exports = case.write(folder)
        with in_memory(case.dialect, case.offered) as store:
            store.import_exports(exports)
            expected, seen = list(store.dump()), witnessed(store)
        path = folder / "store"
        CableStore.open(path, dialect=case.dialect, options=StoreOptions(verify_threads=1)).close()
        for part in parts_of(case, exports, random):
            with CableStore.open(path, options=StoreOptions(verify_threads=1)) as store:
                take(store, part)
            if random.random() < 0.2:
                ClosedStore(path).rebuild(processes=1)
        with CableStore.open(path, options=StoreOptions(verify_threads=1)) as store:
            assert list(store.dump()) == expected
            assert witnessed(store) == seen
            assert_whole(store)


# --- maintenance -----------------------------------------------------------------------------------


def plant(path: Path, generation: str, rows: dict[bytes, bytes | None]) -> None:
    database = LevelDB(path / generation)
    database.write(rows, sync=True)
    database.close()


def test_a_stored_post_with_a_tombstone_in_effect_is_found_and_repaired(tmp_path: Path) -> None:
    post = ANN.text("default", "I live")
    not_his = BOB.delete(post)
    with CableStore.open(tmp_path) as store:
        store.ingest(raws(post, not_his))
        before = store.dump_digest()
    stone = claimed(post, not_his)
    key = tombstone_key(stone.target_hex, BOB.key.hex().encode())
    plant(tmp_path, "generation-000001", {key: stone.encode()})
    with CableStore.open(tmp_path) as store:
        said = [str(problem) for problem in store.check().problems]
        assert any("a stored post with a tombstone that claims to be in effect" in problem for problem in said)
        store.export(tmp_path / "export")
    assert post.hash.hex() in str(verify_export(tmp_path / "export").problems)
    ClosedStore(tmp_path).rebuild()
    with CableStore.open(tmp_path) as store:
        assert_whole(store)
        assert store.dump_digest() == before


def test_an_export_that_claims_the_deletion_of_its_own_post_is_invalid(tmp_path: Path) -> None:
    post = ANN.text("default", "gone")
    deletion = ANN.delete(post)
    for skeleton in (Skeleton.of(post), None):
        export = forge(tmp_path / str(skeleton is None), [post, deletion], [claimed(post, deletion, skeleton)])
        problems = verify_export(export).problems
        assert [post.hash.hex() in problem.what for problem in problems] == ([] if skeleton is None else [True])


def test_a_confirmed_deletion_counts_only_with_its_tombstone(tmp_path: Path) -> None:
    """If the skeleton is lost, the post is requested once more."""
    post = ANN.text("default", "gone")
    with CableStore.open(tmp_path) as store:
        store.ingest(raws(post, ANN.delete(post)))
        before = store.dump_digest()
    plant(tmp_path, "generation-000001", {tombstone_key(post.hash_hex, ANN.key.hex().encode()): None})
    with CableStore.open(tmp_path) as store:
        assert any(
            "a post recorded as deleted, without a tombstone" in str(problem) for problem in store.check().problems
        )
    ClosedStore(tmp_path).rebuild()
    with CableStore.open(tmp_path) as store:
        assert_whole(store)
        assert requested(store, [post]) == {post.hash}
        assert store.ingest([post.raw])[0].verdict is Verdict.DELETED
        assert store.dump_digest() == before


def test_a_post_with_a_lost_confirmed_deletion_is_requested_once_more(tmp_path: Path) -> None:
    """If the row is lost, the tombstone of the deleted post counts as received from another store."""
    post = ANN.text("default", "gone")
    with CableStore.open(tmp_path) as store:
        store.ingest(raws(post, ANN.delete(post)))
        before = store.dump_digest()
    plant(tmp_path, "generation-000001", {local_key(CONFIRMED, post.hash_hex): None})
    ClosedStore(tmp_path).rebuild()
    with CableStore.open(tmp_path) as store:
        assert_whole(store)
        assert requested(store, [post]) == {post.hash}
        assert store.ingest([post.raw])[0].verdict is Verdict.DELETED
        assert requested(store, [post]) == set()
        assert store.dump_digest() == before


def two_generations(path: Path) -> None:
    """Keep two generations of the store's database: the first one, and a live copy."""
    with locked_folder(path) as folder:
        copy = path.with_name("copy")
        shutil.copytree(folder.database_path, copy)
        folder.activate(folder.adopt(copy), keep=True)


def test_going_back_keeps_claims_about_deleted_posts(tmp_path: Path) -> None:
    first = ANN.text("default", "first")
    gone = ANN.text("default", "gone", links=(first.hash,))
    last = ANN.text("default", "last", links=(gone.hash,))
    deletion = ANN.delete(gone)
    export([first, gone, deletion], tmp_path / "other", LEGACY)
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.ingest(raws(first, last, deletion))
        assert len(store.heads("default")) == 2
    two_generations(path)
    with CableStore.open(path) as store:
        store.import_exports([tmp_path / "other"])
        before = list(store.dump())
        assert store.heads("default") == [last.hash]
    ClosedStore(path).roll_back("generation-000001")
    with CableStore.open(path) as store:
        assert list(store.dump()) == before
        assert requested(store, [gone]) == {gone.hash}
        assert_whole(store)


def test_going_back_keeps_confirmed_deletions_and_every_local_row(tmp_path: Path) -> None:
    """The earlier generation has other skeletons, and local rows that were removed since."""
    post, other = ANN.text("default", "gone"), ANN.text("default", "gone as well")
    deletion, not_his = ANN.delete(post, other), BOB.delete(post)
    forge(
        tmp_path / "forged",
        [deletion, not_his],
        [claimed(post, deletion), claimed(post, not_his), claimed(other, deletion)],
    )
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.import_exports([tmp_path / "forged"])
    two_generations(path)
    changed, removed, new = (local_key(b"test", name) for name in (b"changed", b"removed", b"new"))
    plant(path, "generation-000001", {changed: b"1", removed: b"1"})
    plant(path, "generation-000002", {changed: b"2", new: b"3"})
    with CableStore.open(path) as store:
        store.ingest([post.raw])
        before = list(store.dump())
    ClosedStore(path).roll_back("generation-000001")
    with CableStore.open(path) as store:
        assert list(store.dump()) == before
        assert witnessed(store) == {post.hash: ANN.key}
        assert requested(store, [post, other]) == {other.hash}
        assert local_rows(store) == {changed: b"2", new: b"3", local_key(CONFIRMED, post.hash_hex): ANN.key}
        assert_whole(store)


# --- local rows ----------------------------------------------------------------------------------


def local_rows(store: CableStore) -> dict[bytes, bytes]:
    """Return the local rows, except the row SWEPT that every store has."""
    with store.snapshot() as snapshot:
        return {key: value for key, value in snapshot.reader.prefix(b"!local!") if key != local_key(SWEPT)}


def test_local_rows_are_kept_and_not_exported(tmp_path: Path) -> None:
    path = tmp_path / "store"
    post = ANN.text("default", "gone")
    with CableStore.open(path) as store:
        store.ingest(raws(post, ANN.delete(post), BOB.text("default", "stays")))
    planted: dict[bytes, bytes | None] = {local_key(b"test", bytes([number])): b"%d" % number for number in range(256)}
    plant(path, "generation-000001", planted)
    with CableStore.open(path) as store:
        rows = local_rows(store)
        assert rows == {**planted, local_key(CONFIRMED, post.hash_hex): ANN.key}
        assert_whole(store)
        before = list(store.dump())
        assert not any(is_local(row) for row in before)
        store.rebuild()
        assert (local_rows(store), list(store.dump())) == (rows, before)
        store.export(tmp_path / "export")
    for processes in (1, 2):
        ClosedStore(path).rebuild(processes=processes)
        assert ClosedStore(path).check(processes=processes).is_clean
        with CableStore.open(path) as store:
            assert (local_rows(store), list(store.dump())) == (rows, before)
    assert not any(b"!local!" in file.read_bytes() for file in (tmp_path / "export").iterdir())
    with in_memory(LEGACY) as member:
        member.import_exports([tmp_path / "export"])
        assert local_rows(member) == {}
        assert list(member.dump()) == before


def test_a_local_row_changes_in_the_single_write_of_its_plan() -> None:
    with in_memory(LEGACY) as store:
        post = ANN.text("default", "x")
        before: dict[bytes, bytes] = {}
        for value in (b"1", b"2", None):
            with engine_of(store).transaction() as transaction:
                plan = transaction.plan()
                plan.add(post)
                plan.set_local(b"test", b"key", value)
                changes = plan.finish()
                assert local_rows(store) == before
                transaction.commit(changes, sync=False)
            before = {} if value is None else {b"!local!test!key": value}
            assert local_rows(store) == before
            assert_whole(store)
        with in_memory(LEGACY, [post]) as other:
            assert list(store.dump()) == list(other.dump())


def is_local(row: Row) -> bool:
    return row[0].startswith(b"!local!")
