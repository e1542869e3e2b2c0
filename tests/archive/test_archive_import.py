"""Import of archives: atomic, limited to an archive's period and channels, and safe against forgery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from archives import CONTROL, FIRST_MS, KEY, WEEKS, archived, bring, plan_of, some_weeks, store_of
from exporting import forge
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN, BOB
from remote_stores import remote_of

from cablestore import DRAFT8, LEGACY, Dialect, Tombstone, Verdict, encode_post
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.period import WEEK_MS
from cablestore.archive.format.profile import Entry
from cablestore.archive.importer import import_archives, import_deletions
from cablestore.archive.writer import ArchivePlan
from cablestore.errors import ArchiveError, ArgumentError
from cablestore.index.tombstone import Skeleton
from cablestore.protocol.body import LOCAL_ONLY, Block
from cablestore.protocol.post import SIGNED_FROM, decode_post
from cablestore.store import answers

BOTH = pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda dialect: dialect.name)


@BOTH
@pytest.mark.parametrize("profile", ["rfc61", "status-go"])
@pytest.mark.parametrize("key", [None, KEY], ids=["public", "sealed"])
def test_importing_all_archives_results_in_an_equal_store(
    tmp_path: Path, dialect: Dialect, profile: str, key: bytes | None
) -> None:
    source, member = store_of(some_weeks(dialect), dialect), store_of((), dialect)
    plan = plan_of(profile, key, dialect)
    folder = archived(source, tmp_path, plan)
    found = bring(member, folder, plan)
    assert (found.archives, found.removed) == (WEEKS, [])
    assert member.dump_digest() == source.dump_digest()
    again = bring(member, folder, plan)
    assert again.posts == 0
    assert again.removed == []
    assert member.dump_digest() == source.dump_digest()


def test_posts_missing_from_an_archive_are_removed_and_reported(tmp_path: Path) -> None:
    """Only posts of its period and channels are removed."""
    plan = plan_of()
    source = store_of(some_weeks())
    folder = archived(source, tmp_path, plan)
    at = FIRST_MS + 2 * WEEK_MS
    extra = [BOB.text("default", "never archived", at=at + 1), BOB.join("other", at=at), BOB.named("Bob", at=at)]
    stays = [
        BOB.text("a channel of mine", "no archive knows it", at=at),
        BOB.text("default", "a week that is not over", at=FIRST_MS + (WEEKS + 1) * WEEK_MS),
        BOB.delete(extra[0], at=at + 2),
    ]
    block = Block("my reasons", LOCAL_ONLY, (bytes(32),), 0, 0)  # blocks an author without posts here
    kept = encode_post(block, links=(), timestamp_ms=at, identity=CONTROL, dialect=LEGACY)
    for merges in (True, False):
        member = store_of([*extra, *stays[:2], kept])
        found = bring(member, folder, plan, merges=merges)
        assert set(found.removed) == (set() if merges else {post.hash for post in extra})
        here = [member.get(post.hash) is not None for post in (*extra, *stays[:2])]
        assert here == [merges] * 3 + [True] * 2
        assert member.get(kept.hash) is not None
    member = store_of([*extra, *stays])
    assert set(bring(member, folder, plan).removed) == {post.hash for post in extra[1:]}
    assert member.get(stays[2].hash) is not None, "a deletion is never undone"


def test_false_tombstones_in_an_archive_do_not_reject_posts(tmp_path: Path) -> None:
    """An export contains two tombstones with invented skeletons; one names a deletion by another author."""
    alive, gone = (ANN.text("default", text, at=FIRST_MS) for text in ("I live", "gone"))
    not_his, deletion = BOB.delete(alive, at=FIRST_MS + 1), ANN.delete(gone, at=FIRST_MS + 2)
    made_up = Skeleton(0, FIRST_MS, "other", (bytes(32),))
    stones = [
        Tombstone(target.hash, by.author, by.timestamp_ms, by.hash, made_up)
        for target, by in ((alive, not_his), (gone, deletion))
    ]
    plan = plan_of()
    source, member = store_of([not_his, deletion]), store_of(())
    source.import_exports([forge(tmp_path / "export", [not_his, deletion], stones)])
    bring(member, archived(source, tmp_path / "archives", plan), plan)
    assert member.dump_digest() == source.dump_digest()
    with member.snapshot() as snapshot:
        asked = list(answers.worth_requesting(snapshot.reader, [alive.hash, gone.hash]))
    assert asked == [alive.hash, gone.hash]
    verdicts = [outcome.verdict for outcome in member.ingest([alive.raw, gone.raw])]
    assert verdicts == [Verdict.ACCEPTED, Verdict.DELETED]
    assert member.dump_digest() == store_of([not_his, deletion, alive, gone]).dump_digest()
    assert member.check().is_clean


@pytest.mark.parametrize("weeks", range(1, WEEKS + 1))
def test_an_old_archive_does_not_resurrect_deleted_posts(tmp_path: Path, weeks: int) -> None:
    texts = [ANN.text("default", f"text {week}", at=FIRST_MS + week * WEEK_MS) for week in range(WEEKS)]
    gone = ANN.delete(*texts, at=FIRST_MS + (WEEKS + 3) * WEEK_MS)
    plan = plan_of()
    source = store_of(texts)
    folder = archived(source, tmp_path, plan)
    source.ingest([gone.raw])
    archived(source, tmp_path, plan, FIRST_MS + WEEKS * WEEK_MS)
    member = store_of(())
    found = bring(member, folder, plan, weeks=weeks)
    assert (found.posts, found.deleted) == (0, weeks)
    assert all(member.get(text.hash) is None for text in texts)


def test_archives_of_the_same_week_are_combined_before_posts_are_removed(tmp_path: Path) -> None:
    """Posts are removed only if all archives of the week were received."""
    plan = plan_of()
    source = store_of(some_weeks())
    folder = archived(source, tmp_path, plan)
    late = BOB.text("default", "late", at=FIRST_MS + 5)
    source.ingest([late.raw])
    archived(source, tmp_path, plan)
    extra = BOB.text("default", "never archived", at=FIRST_MS + 6)
    verified = plan.verified(folder)
    assert verified is not None
    first, second = [entry for entry in verified.index.entries if entry.period.from_ms == FIRST_MS]
    for order in ([first, second], [second, first]):
        member = store_of([extra])
        fetched = ((entry, folder.stored(entry)) for entry in order)
        removed = [found.removed for _, found in import_archives(member, verified, fetched)]
        assert removed == [[], [extra.hash]]
        assert member.get(late.hash) is not None
    member = store_of([extra])
    [(_, found)] = import_archives(member, verified, [(first, folder.stored(first))])
    assert found.removed == []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bytes | None], tuple[ArchivePlan, ArchiveFolder]]:
    """Create archives in both profiles, public and encrypted."""
    found = {}
    for profile in ("rfc61", "status-go"):
        for key in (None, KEY):
            plan = plan_of(profile, key)
            found[profile, key] = plan, archived(store_of(some_weeks()), tmp_path_factory.mktemp("made"), plan)
    return found


@pytest.mark.thorough
@settings(max_examples=60)
@given(st.data())
def test_an_archive_with_any_flipped_bit_does_not_change_the_store(
    made: dict[tuple[str, bytes | None], tuple[ArchivePlan, ArchiveFolder]], data: st.DataObject
) -> None:
    profile, key = data.draw(st.sampled_from(["rfc61", "status-go"])), data.draw(st.sampled_from([None, KEY]))
    plan, folder = made[profile, key]
    verified = plan.verified(folder)
    assert verified is not None
    entry = data.draw(st.sampled_from(verified.index.entries))
    stored = bytearray(folder.stored(entry))
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= 1 << data.draw(st.integers(0, 7))
    member = store_of(some_weeks()[:10])
    import_deletions(member, verified)
    before = member.dump_digest()
    with pytest.raises(ArchiveError, match="SHA-256"):
        list(import_archives(member, verified, [(entry, bytes(stored))], key=key))
    assert member.dump_digest() == before


def test_swapped_archives_are_rejected(tmp_path: Path) -> None:
    plan = plan_of()
    folder = archived(store_of(some_weeks()), tmp_path, plan)
    verified = plan.verified(folder)
    assert verified is not None
    one, two, *_ = verified.index.entries
    member = store_of(())
    import_deletions(member, verified)
    before = member.dump_digest()
    with pytest.raises(ArchiveError):
        list(import_archives(member, verified, [(one, folder.stored(two))]))
    assert member.dump_digest() == before


def test_replace_is_atomic() -> None:
    good, forged = ANN.text("default", "good", at=FIRST_MS), bytearray(ANN.text("default", "bad", at=FIRST_MS).raw)
    forged[SIGNED_FROM - 1] ^= 1
    here = BOB.text("default", "here", at=FIRST_MS)
    store = store_of([here])
    for wrong in (decode_post(bytes(forged), LEGACY), ANN.text("default", "ahead", at=2**42)):
        with pytest.raises(ArgumentError, match="1 post was rejected"):
            store.parts.writer.replace(store.parts.intake.admit([good, wrong]), lambda _: [here.hash], sync=True)
        assert store.get(here.hash) is not None
        assert store.get(good.hash) is None
    stored, gone = store.parts.writer.replace(store.parts.intake.admit([good]), lambda _: [here.hash], sync=True)
    assert [(outcome.hash, outcome.verdict.value) for outcome in (*stored, *gone)] == [
        (good.hash, "accepted"),
        (here.hash, "discarded"),
    ]


def test_a_damaged_archive_does_not_prevent_the_import_of_others(tmp_path: Path) -> None:
    """The archive is reported and not imported, and posts of its week are not removed. All other weeks are imported."""
    plan = plan_of()
    source = store_of(some_weeks())
    late = BOB.text("default", "late", at=FIRST_MS + 2 * WEEK_MS + 5)
    folder = archived(source, tmp_path, plan)
    source.ingest([late.raw])
    archived(source, tmp_path, plan)
    verified = plan.verified(folder)
    assert verified is not None
    entries = verified.index.entries
    for damaged in [entry for entry in entries if entry.period.holds(late.timestamp_ms)]:
        extra = BOB.text("default", "never archived", at=late.timestamp_ms + 1)
        member, notified = store_of([extra]), []
        fetched = [
            (entry, folder.stored(entry)[::-1] if entry is damaged else folder.stored(entry)) for entry in entries
        ]
        found = import_archives(member, verified, fetched, on_damaged=lambda entry, _: notified.append(entry))  # noqa: B023 - called at once
        assert [entry for entry, _ in found] == [entry for entry in entries if entry is not damaged]
        assert notified == [damaged]
        assert member.get(extra.hash) is not None
        assert (member.get(late.hash) is None) == (damaged is not entries[2])
        whole = import_archives(member, verified, [(entry, folder.stored(entry)) for entry in entries])
        assert extra.hash in [digest for _, each in whole for digest in each.removed]
        assert member.dump_digest() == source.dump_digest()


def test_a_forged_post_is_reported_with_its_archive(tmp_path: Path) -> None:
    """The control node signed the archive, but the author's signature is invalid."""
    forged = bytearray(BOB.text("default", "forged", at=FIRST_MS + WEEK_MS + 5).raw)
    forged[SIGNED_FROM - 1] ^= 1
    plan = plan_of()
    source = store_of([*some_weeks(), decode_post(bytes(forged), LEGACY)])
    folder = archived(source, tmp_path, plan)
    verified = plan.verified(folder)
    assert verified is not None
    extra = BOB.text("default", "never archived", at=FIRST_MS + WEEK_MS + 6)
    member, notified = store_of([extra]), []
    fetched = [(entry, folder.stored(entry)) for entry in reversed(verified.index.entries)]
    found = [
        *import_archives(
            member, verified, fetched, on_damaged=lambda entry, error: notified.append((entry, str(error)))
        )
    ]
    assert len(found) == WEEKS - 1
    [(entry, words)] = notified
    assert entry.period.from_ms == FIRST_MS + WEEK_MS
    assert "not signed" in words or "signature" in words
    assert member.get(extra.hash) is not None


def test_deletions_report_removed_posts(tmp_path: Path) -> None:
    """The index has deletions of earlier weeks; an archive has deletions of its own posts."""
    plan = plan_of()
    text, other, kept = (ANN.text("default", words, at=FIRST_MS + n) for n, words in enumerate(("a", "b", "c")))
    later = ANN.text("default", "later", at=FIRST_MS + WEEK_MS)
    gone = [ANN.delete(text, at=FIRST_MS + WEEK_MS + 1), ANN.delete(later, at=FIRST_MS + WEEK_MS + 2)]
    foreign = BOB.delete(kept, at=FIRST_MS + WEEK_MS + 3)
    source = store_of([text, other, kept, later, *gone, foreign])
    folder = archived(source, tmp_path, plan)
    verified = plan.verified(folder)
    assert verified is not None
    member = store_of([text, later, kept])
    assert import_deletions(member, verified) == [text.hash]
    assert import_deletions(member, verified) == []
    assert bring(member, folder, plan, merges=True).deleted_here == 1
    assert [member.get(post.hash) is None for post in (text, later, kept)] == [True, True, False]
    assert bring(member, folder, plan).deleted_here == 0


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
def test_archives_before_a_failed_one_are_kept_and_reported(tmp_path: Path, is_remote: bool) -> None:
    """A damaged archive and a source that fails. A repeated import completes. Local and remote stores are equal."""
    plan, source = plan_of(), store_of(some_weeks())
    folder = archived(source, tmp_path, plan)
    verified = plan.verified(folder)
    assert verified is not None
    first, second, *_ = verified.index.entries

    def failing() -> Iterator[tuple[Entry, bytes]]:
        yield first, folder.stored(first)
        raise OSError("the source failed")

    damaged = iter([(first, folder.stored(first)), (second, folder.stored(second)[::-1])])
    sources: list[tuple[type[Exception], Iterator[tuple[Entry, bytes]]]] = [
        (ArchiveError, damaged),
        (OSError, failing()),
    ]
    for error, fetched in sources:
        served, expected = store_of(()), store_of(())
        [(_, report)] = import_archives(expected, verified, [(first, folder.stored(first))])
        with remote_of(served) if is_remote else nullcontext(served) as member:
            imports = import_archives(member, verified, fetched)
            assert next(imports) == (first, report)
            with pytest.raises(error):
                next(imports)
            assert served.dump_digest() == expected.dump_digest()
            bring(member, folder, plan)
            assert served.dump_digest() == source.dump_digest()


def test_a_closed_import_has_stored_the_archives_that_it_reported(tmp_path: Path) -> None:
    plan = plan_of()
    folder = archived(store_of(some_weeks()), tmp_path, plan)
    verified = plan.verified(folder)
    assert verified is not None
    fetched = [(entry, folder.stored(entry)) for entry in verified.index.entries]
    member, expected = store_of(()), store_of(())
    imports = import_archives(member, verified, fetched)
    next(imports)
    imports.close()  # type: ignore[attr-defined] # it is a generator
    list(import_archives(expected, verified, fetched[:1]))
    assert member.dump_digest() == expected.dump_digest()
