"""Ingest of other users' posts: every post gets a verdict, no post raises, and each batch is atomic."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from people import ANN, BOB, CYD, START_MS, Person, raws

from cablestore import DRAFT8, Block, CableStore, Delete, Outcome, StoreOptions, Text, Verdict, limits
from cablestore.index import signatures as verify_module
from cablestore.protocol import crypto
from cablestore.protocol.body import LOCAL_ONLY
from cablestore.store import answers

V = Verdict


def verdicts(store: CableStore, posts: list[bytes], **options: bool | int) -> list[Verdict]:
    return [outcome.verdict for outcome in store.ingest(posts, **options)]  # type: ignore[arg-type] # flags


def test_every_post_has_its_verdict_in_order(store: CableStore) -> None:
    good, doomed = ANN.text("default", "good"), ANN.text("default", "doomed")
    deletion = ANN.delete(doomed)
    forged = bytearray(BOB.text("default", "forged").raw)
    forged[40] ^= 1
    unknown = bytes(96) + b"\x00\x7b\x50"
    future = ANN.text("default", "x", at=2**52)
    private = BOB.post(Block("", LOCAL_ONLY, (ANN.key,), 0, 0))
    posts = [
        b"",
        good.raw,
        good.raw,
        bytes(forged),
        unknown,
        future.raw,
        private.raw,
        doomed.raw,
        deletion.raw,
        doomed.raw,
    ]
    found = store.ingest(posts)
    assert [outcome.verdict for outcome in found] == [
        V.MALFORMED,
        V.ACCEPTED,
        V.DUPLICATE,
        V.BAD_SIGNATURE,
        V.UNKNOWN_TYPE,
        V.TOO_FAR_AHEAD,
        V.LOCAL_ONLY,
        V.ACCEPTED,
        V.ACCEPTED,
        V.DELETED,
    ]
    assert [outcome.hash for outcome in found][1] == good.hash
    assert all(outcome.reason for outcome in found if outcome.verdict not in (V.ACCEPTED, V.DUPLICATE))
    assert "at byte" in found[0].reason
    assert store.get(good.hash) == good
    assert store.get(doomed.hash) is None


def test_an_invalid_post_does_not_affect_the_others_of_its_batch(store: CableStore) -> None:
    posts = raws(*(ANN.text("default", str(i)) for i in range(50)))
    posts[20] = posts[20][:-1] + b"?"
    posts[30] = b"garbage"
    found = verdicts(store, posts)
    assert found.count(V.ACCEPTED) == 48
    assert (found[20], found[30]) == (V.BAD_SIGNATURE, V.MALFORMED)


@pytest.mark.parametrize("batch_posts", [1, 7, 100, 10_000])
def test_batches_may_have_any_size(store: CableStore, batch_posts: int) -> None:
    posts = raws(*(ANN.text("default", str(i)) for i in range(230)))
    assert verdicts(store, posts, batch_posts=batch_posts) == [V.ACCEPTED] * 230
    assert verdicts(store, posts, batch_posts=batch_posts) == [V.DUPLICATE] * 230


def _batches(
    store: CableStore, posts: Iterable[bytes], *, batch_posts: int, verify: bool = True
) -> Iterator[list[Outcome]]:
    return store.parts.writer.ingest(posts, sync=False, batch_posts=batch_posts, verify=verify)


def test_a_batch_has_limits_of_posts_and_bytes(store: CableStore) -> None:
    small = raws(*(ANN.text("default", str(i)) for i in range(limits.MAX_BATCH_POSTS + 1)))
    assert [len(batch) for batch in _batches(store, small, batch_posts=10**6, verify=False)] == [
        limits.MAX_BATCH_POSTS,
        1,
    ]
    large = raws(*(ANN.post(Delete((bytes([i]) * 32,) * 8_000)) for i in range(20)))
    sizes = [len(batch) for batch in _batches(store, large, batch_posts=100, verify=False)]
    assert sum(sizes) == 20
    assert max(sizes) == limits.MAX_BATCH_SIZE_BYTES // len(large[0])


def test_posts_may_be_an_endless_stream(store: CableStore) -> None:
    taken = 0

    def stream() -> Generator[bytes, None, None]:
        nonlocal taken
        while True:
            taken += 1
            yield ANN.text("default", str(taken)).raw

    batches = _batches(store, stream(), batch_posts=10)
    assert [outcome.verdict for outcome in next(batches)] == [V.ACCEPTED] * 10
    assert taken <= 21  # at most one batch is read ahead
    batches.close()  # type: ignore[attr-defined] # a generator


def test_posts_dated_a_week_ahead_are_rejected_and_earlier_ones_accepted() -> None:
    with CableStore.in_memory(options=StoreOptions(clock=lambda: START_MS)) as store:
        last, first_refused = START_MS + limits.MAX_FUTURE_MS - 1, START_MS + limits.MAX_FUTURE_MS
        posts = raws(ANN.text("default", "x", at=last), ANN.text("default", "x", at=first_refused))
        assert verdicts(store, posts) == [V.ACCEPTED, V.TOO_FAR_AHEAD]


def test_a_rebuild_does_not_apply_the_limit_of_a_week_again() -> None:
    now = START_MS
    with CableStore.in_memory(options=StoreOptions(clock=lambda: now)) as store:
        post = ANN.text("default", "x", at=START_MS + 1000)
        store.ingest(raws(post))
        now = 0
        store.rebuild()
        assert store.get(post.hash) == post


def test_unverified_posts_are_accepted_only_on_request(store: CableStore) -> None:
    forged = ANN.text("default", "x").raw[:-1] + b"y"
    assert verdicts(store, [forged]) == [V.BAD_SIGNATURE]
    assert verdicts(store, [forged], verify=False) == [V.ACCEPTED]
    assert not store.check(signatures=True).is_clean
    store.discard([store.ingest([forged], verify=False)[0].hash])


def test_each_signature_is_verified_once_and_none_when_read(store: CableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def counting(verify: Callable[..., Any]) -> Callable[..., Any]:
        def counted(raws: Any, *threads: int) -> Any:
            seen.extend([raws] if isinstance(raws, bytes) else raws)
            return verify(raws, *threads)

        return counted

    if (extension := crypto.EXTENSION) is None:
        monkeypatch.setattr(verify_module, "is_signed", counting(crypto.is_signed))
        monkeypatch.setattr(crypto, "is_signed", counting(crypto.is_signed))
    else:
        counted = extension._replace(begin=counting(extension.begin))
        monkeypatch.setattr(verify_module, "EXTENSION", counted)
        monkeypatch.setattr(crypto, "EXTENSION", counted)
    posts = raws(*(ANN.text("default", str(i)) for i in range(100)))
    store.ingest(posts, batch_posts=30)
    assert sorted(seen) == sorted(posts)
    store.messages("default", 100)
    with store.snapshot() as snapshot:
        hashes = list(answers.channel_time_range(snapshot.reader, "default", 0, 0))
        assert len(list(answers.post_request(snapshot.reader, hashes))) == 100
    assert len(seen) == 100


def test_a_draft8_store_accepts_draft8_infos_and_folds_channels(tmp_path: Path) -> None:
    ann = Person("ann", DRAFT8)
    with CableStore.open(tmp_path, dialect=DRAFT8) as store:
        assert (
            verdicts(store, raws(ann.named("Ann"), ann.text("CABAL", "one"), ann.text("cabal", "two")))
            == [V.ACCEPTED] * 3
        )
        assert [channel.name for channel in store.channels()] == ["cabal"]
        assert [message.text for message in store.messages("CaBaL").messages] == ["two", "one"]
        assert store.user(ann.key).name == "Ann"
        assert verdicts(store, raws(ANN.named("legacy"))) == [V.MALFORMED]
        assert store.check().is_clean


# --- deletion --------------------------------------------------------------------------------------


def test_a_deletion_applies_to_a_target_that_arrives_later(store: CableStore) -> None:
    post = ANN.text("default", "x")
    deletion = ANN.delete(post)
    assert verdicts(store, raws(deletion)) == [V.ACCEPTED]
    assert store.deletion(post.hash) is None
    with store.snapshot() as snapshot:
        assert list(answers.worth_requesting(snapshot.reader, [post.hash])) == [post.hash]
    assert verdicts(store, raws(post)) == [V.DELETED]
    stone = store.deletion(post.hash)
    assert stone is not None
    assert stone.deleted_by == deletion.hash
    assert stone.skeleton is not None
    assert (stone.skeleton.channel, stone.skeleton.type, stone.skeleton.timestamp_ms) == (
        "default",
        0,
        post.timestamp_ms,
    )
    with store.snapshot() as snapshot:
        assert list(answers.channel_time_range(snapshot.reader, "default", 0, 0)) == [deletion.hash]
        assert not list(answers.worth_requesting(snapshot.reader, [post.hash, deletion.hash]))


def test_a_forged_target_does_not_complete_a_tombstone(store: CableStore) -> None:
    """Only the signed target proves that the peer has received it."""
    post = ANN.text("default", "x")
    store.ingest(raws(ANN.delete(post)))
    forged = bytearray(post.raw)
    forged[-1] ^= 1
    assert verdicts(store, [bytes(forged)]) == [V.BAD_SIGNATURE]
    assert store.deletion(post.hash) is None


def test_a_deletion_does_not_affect_posts_of_other_authors(store: CableStore) -> None:
    written, later = ANN.text("default", "written"), ANN.text("default", "later")
    store.ingest(raws(written, BOB.delete(written, later), later))
    assert [message.text for message in store.messages("default").messages] == ["later", "written"]


def test_a_deletion_of_own_and_foreign_posts_deletes_the_own_ones(store: CableStore) -> None:
    own, foreign = BOB.text("default", "own"), ANN.text("default", "foreign")
    store.ingest(raws(own, foreign, BOB.delete(own, foreign)))
    assert [message.text for message in store.messages("default").messages] == ["foreign"]


def test_deletions_cannot_be_deleted(store: CableStore) -> None:
    post = ANN.text("default", "x")
    deletion = ANN.delete(post)
    store.ingest(raws(post, deletion, ANN.delete(deletion)))
    assert store.get(deletion.hash) == deletion
    assert store.get(post.hash) is None


def test_of_two_deletions_the_earliest_counts_in_any_order() -> None:
    post = ANN.text("default", "x", at=1000)
    early, late = ANN.delete(post, at=2000), ANN.delete(post, at=3000)
    dumps = set()
    for order in ([post, early, late], [late, early, post], [late, post, early], [early, late, post]):
        with CableStore.in_memory() as store:
            for one in order:
                store.ingest(raws(one))
            stone = store.deletion(post.hash)
            assert stone is not None
            assert stone.deleted_by == early.hash
            assert store.check().is_clean
            dumps.add(store.dump_digest())
    assert len(dumps) == 1


def test_history_continues_through_deleted_posts(store: CableStore) -> None:
    first = ANN.text("default", "first")
    middle = BOB.text("default", "middle", links=(first.hash,))
    last = CYD.text("default", "last", links=(middle.hash,))
    store.ingest(raws(first, middle, last, BOB.delete(middle)))
    assert store.heads("default") == [last.hash]
    assert store.links(middle.hash) == (first.hash,)
    assert store.links(first.hash, incoming=True) == (middle.hash,)


def test_a_deleted_head_stays_a_head_until_it_is_answered(store: CableStore) -> None:
    first = ANN.text("default", "first")
    last = ANN.text("default", "last", links=(first.hash,))
    store.ingest(raws(first, last, ANN.delete(last)))
    assert store.heads("default") == [last.hash]
    answer = store.join("default")
    assert answer.links == (last.hash,)
    assert store.heads("default") == [answer.hash]


# --- local-only posts ------------------------------------------------------------------------------


def test_a_local_only_post_that_is_written_here_is_sealed(store: CableStore) -> None:
    written = store.write(Block("my reasons", LOCAL_ONLY, (BOB.key,), 0, 0))
    assert store.get(written.hash) == written
    assert all(b"my reasons" not in key + value for key, value in store.dump())
    me = store.identity.public_key
    assert list(store.posts_by(me)) == [written]
    assert written.is_local_only


def test_own_local_only_posts_never_leave_the_store(tmp_path: Path) -> None:
    private = ANN.post(Block("my reasons", LOCAL_ONLY, (BOB.key,), 0, 0))
    with CableStore.open(tmp_path, identity=ANN.identity) as store:
        assert verdicts(store, raws(private, ANN.text("default", "x"))) == [V.ACCEPTED, V.ACCEPTED]
        assert verdicts(store, raws(private)) == [V.DUPLICATE]
        assert store.get(private.hash) == private
        assert private in list(store.posts_by(ANN.key))
        with store.snapshot() as snapshot:
            assert not list(answers.post_request(snapshot.reader, [private.hash]))
        for key, value in store.dump():
            assert private.raw not in value
            assert b"my reasons" not in key + value
        before = list(store.dump())
        store.rebuild()
        assert list(store.dump()) == before
        assert store.check().is_clean
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"my reasons" not in file.read_bytes()


def test_a_local_only_post_is_discarded_instead_of_deleted() -> None:
    """A post/delete would reveal its hash to all peers."""
    private = ANN.post(Block("", LOCAL_ONLY, (BOB.key,), 0, 0))
    with CableStore.in_memory(identity=ANN.identity) as store:
        store.ingest(raws(private))
        assert store.delete(private.hash) == []
        assert store.get(private.hash) is None
        assert store.stats().posts == {}
        assert store.check().is_clean


# --- several threads -------------------------------------------------------------------------------


def test_many_threads_can_write_and_read_concurrently(store: CableStore) -> None:
    posts = [raws(*(person.text(f"c{n}", str(i)) for i in range(60))) for n, person in enumerate((ANN, BOB, CYD))]
    done = threading.Event()

    def write(own: list[bytes]) -> None:
        for at in range(0, len(own), 5):
            store.ingest(own[at : at + 5])
        store.post("mine", "x")  # the first of these also writes a post/join

    def read() -> None:
        while not done.is_set():
            with store.snapshot() as snapshot:
                for channel in snapshot.channels():
                    assert len(snapshot.messages(channel.name, 1000).messages) == channel.posts["text"]

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        writers = [pool.submit(write, own) for own in (*posts, *posts)]
        try:
            for writer in writers:
                writer.result()
        finally:
            done.set()
        for reader in readers:
            reader.result()
    assert store.stats().posts == {"text": 180 + 6, "join": 1}
    own = list(store.posts_by(store.identity.public_key))
    assert len({post.timestamp_ms for post in own}) == 7
    assert len(store.heads("mine")) == 1


def test_a_text_is_returned_as_it_was_signed(store: CableStore) -> None:
    body = Text("default", "\u202eאבג \x00\x1b[31m")
    post = ANN.post(body)
    store.ingest(raws(post))
    assert store.messages("default").messages[0].text == body.text
