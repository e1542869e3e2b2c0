"""The answer to a Moderation State Request: every sentence of moderation.md 5.2.1.1 that a store can implement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from inside import write_rows
from people import ANN, BOB, CYD, START_MS, Person, raws

from cablestore import DRAFT8, LEGACY, Block, CableStore, Info, Moderation, Post, Role, Unblock, limits
from cablestore.errors import CorruptStoreError
from cablestore.protocol.body import LOCAL_ONLY
from cablestore.store import answers
from cablestore.views import moderation

HIDE_USER, UNHIDE_USER, HIDE_POST, UNHIDE_POST, DROP_POST, _, DROP_CHANNEL, UNDROP_CHANNEL = range(8)
ADMIN, MOD, USER = range(3)


def role(to: Person, channel: str = "", what: int = MOD, *, by: Person = ANN, at: int | None = None) -> Post:
    return by.post(Role("", 0, channel, to.key, what), at=at)


def act(
    action: int, *on: bytes, channel: str = "default", by: Person = ANN, privacy: int = 0, at: int | None = None
) -> Post:
    return by.post(Moderation("", privacy, channel, on, action), at=at)


def block(*users: Person, by: Person = ANN, at: int | None = None) -> Post:
    return by.post(Block("", 0, tuple(user.key for user in users), 0, 0), at=at)


def unblock(*users: Person, by: Person = ANN, at: int | None = None) -> Post:
    return by.post(Unblock("", 0, tuple(user.key for user in users), 0), at=at)


def answer_of(store: CableStore, *channels: str, oldest_ms: int = 0) -> list[bytes]:
    with store.snapshot() as snapshot:
        return list(answers.moderation_state(snapshot.reader, channels, oldest_ms))


def hashes(posts: Iterable[Post]) -> list[bytes]:
    return [post.hash for post in posts]


# --- blocks ----------------------------------------------------------------------------------------


def test_the_answer_has_all_blocks_and_unblocks_of_all_authors(store: CableStore) -> None:
    posts = [block(BOB), unblock(BOB), block(BOB, CYD), block(ANN, by=BOB), unblock(CYD, by=BOB), block(BOB)]
    store.ingest(raws(*reversed(posts)))
    assert answer_of(store) == answer_of(store, "default") == answer_of(store, "nowhere") == hashes(posts)


def test_blocks_older_than_oldest_are_in_the_answer(store: CableStore) -> None:
    old, unblocked, late = block(BOB, at=80), unblock(BOB, at=81), block(CYD, at=START_MS)
    store.ingest(raws(late, unblocked, old, role(BOB, at=80), act(HIDE_USER, BOB.key, at=80)))
    assert answer_of(store, "default", oldest_ms=START_MS) == hashes([old, unblocked, late])
    assert answer_of(store, "default", oldest_ms=2**64 - 1) == hashes([old, unblocked, late])


# --- roles -----------------------------------------------------------------------------------------


def test_the_answer_has_roles_of_the_requested_channels_and_of_the_cabal(store: CableStore) -> None:
    everywhere, here, there = role(BOB), role(BOB, "default", ADMIN), role(BOB, "other", USER)
    store.ingest(raws(there, here, everywhere))
    assert answer_of(store) == [everywhere.hash]
    assert answer_of(store, "default") == hashes([everywhere, here])
    assert answer_of(store, "other", "default", "nowhere") == hashes([everywhere, there, here])


def test_the_answer_has_one_role_for_each_author_recipient_and_context(store: CableStore) -> None:
    """moderation.md 4.2.3: a role is active while it is its author's latest for the recipient and the context."""
    obsolete = [role(BOB), role(BOB, what=ADMIN), role(BOB, "default")]
    active = [role(BOB, what=USER), role(CYD), role(BOB, by=CYD), role(BOB, "default", USER)]
    store.ingest(raws(*active, *obsolete))
    assert answer_of(store, "default") == hashes(active)


def test_roles_of_a_user_who_declines_them_are_not_in_the_answer(store: CableStore) -> None:
    """The latest post/info decides, also if it omits the property: accepting is the default."""
    for_bob, for_cyd = role(BOB), role(CYD, "default")
    store.ingest(raws(for_bob, for_cyd, BOB.post(Info.of(accept_role=True))))
    assert answer_of(store, "default") == hashes([for_bob, for_cyd])
    no = BOB.post(Info.of(accept_role=False))
    store.ingest(raws(no))
    assert answer_of(store, "default") == [for_cyd.hash]
    with store.snapshot() as snapshot:
        assert not answers.is_relevant_moderation(snapshot.reader, role(BOB, "default"))
    store.ingest(raws(BOB.named("bob")))
    assert answer_of(store, "default") == hashes([for_bob, for_cyd])
    store.ingest(raws(BOB.post(Info.of(accept_role=False)), role(ANN, by=BOB)))
    assert len(answer_of(store, "default")) == 2  # a user that accepts no roles may assign them


# --- actions ---------------------------------------------------------------------------------------


def test_the_answer_has_actions_of_the_requested_channels_and_of_the_cabal(store: CableStore) -> None:
    everywhere = act(HIDE_USER, BOB.key, channel="")
    here, there = act(DROP_CHANNEL), act(HIDE_POST, bytes(32), channel="other")
    store.ingest(raws(there, here, everywhere))
    assert answer_of(store) == [everywhere.hash]
    assert answer_of(store, "default") == hashes([everywhere, here])
    assert answer_of(store, "default", "other") == hashes([everywhere, here, there])


@pytest.mark.parametrize("does", [HIDE_USER, HIDE_POST, DROP_POST, DROP_CHANNEL])
def test_an_undoing_action_replaces_the_action_it_undoes(store: CableStore, does: int) -> None:
    target = () if does == DROP_CHANNEL else (BOB.key,)
    posts = [act(does, *target), act(does + 1, *target), act(does, *target), act(does + 1, *target)]
    for length in range(1, 5):
        store.ingest(raws(posts[length - 1]))
        assert answer_of(store, "default") == [posts[length - 1].hash]


def test_only_the_same_author_context_kind_and_target_undo(store: CableStore) -> None:
    hidden = act(HIDE_USER, BOB.key)
    others = [
        act(UNHIDE_USER, BOB.key, by=CYD),
        act(UNHIDE_POST, BOB.key),
        act(UNHIDE_USER, CYD.key),
        act(UNDROP_CHANNEL),
        act(HIDE_USER, BOB.key),  # repeats it, and undoes nothing
    ]
    elsewhere = act(UNHIDE_USER, BOB.key, channel="")
    store.ingest(raws(hidden, *others, elsewhere))
    assert answer_of(store, "default") == hashes([elsewhere, hidden, *others])


def test_an_action_is_in_the_answer_until_all_its_targets_are_undone(store: CableStore) -> None:
    both, bob = act(HIDE_USER, BOB.key, CYD.key), act(UNHIDE_USER, BOB.key)
    store.ingest(raws(both, bob))
    assert answer_of(store, "default") == hashes([both, bob])
    cyd = act(UNHIDE_USER, CYD.key)
    store.ingest(raws(cyd))
    assert answer_of(store, "default") == hashes([bob, cyd])


def test_actions_on_a_channel_need_no_recipients_and_ignore_them(store: CableStore) -> None:
    dropped, undropped = act(DROP_CHANNEL, BOB.key), act(UNDROP_CHANNEL)
    on_nobody, undone = act(HIDE_USER), act(UNHIDE_USER)
    store.ingest(raws(dropped, on_nobody))
    assert answer_of(store, "default") == hashes([dropped, on_nobody])
    store.ingest(raws(undropped, undone))
    assert answer_of(store, "default") == hashes([undropped, undone])


def test_an_action_may_have_many_and_duplicate_targets(store: CableStore) -> None:
    targets = [bytes([n // 256, n % 256]) * 16 for n in range(1000)]
    many = act(HIDE_POST, *targets, *targets)
    store.ingest(raws(many))
    assert answer_of(store, "default") == [many.hash]
    store.ingest(raws(act(UNHIDE_POST, *targets[1:])))
    assert answer_of(store, "default")[0] == many.hash
    store.ingest(raws(act(UNHIDE_POST, targets[0])))
    assert many.hash not in answer_of(store, "default")


# --- channels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a!b", "!", "~", "\x00", '"', "日本", "a"])
def test_unusual_channel_names_are_distinguished(store: CableStore, name: str) -> None:
    post, hidden = role(BOB, name), act(HIDE_USER, BOB.key, channel=name)
    store.ingest(raws(post, hidden, *(role(CYD, other) for other in ("a!", "b", "!!", "\x00\x00"))))
    assert answer_of(store, name) == hashes([post, hidden])
    assert answer_of(store) == []


def test_unknown_channels_are_ignored_and_repeated_ones_count_once(store: CableStore) -> None:
    everywhere, here = role(BOB), role(BOB, "default")
    store.ingest(raws(everywhere, here))
    assert answer_of(store, "nowhere", "", "x" * 1000) == [everywhere.hash]
    assert answer_of(store, "default", "", "default") == hashes([everywhere, here])
    with store.snapshot() as snapshot:
        assert list(answers.channel_list(snapshot.reader)) == []


def test_channel_names_match_in_any_case_in_draft8() -> None:
    ann = Person("ann", DRAFT8)
    with CableStore.in_memory(dialect=DRAFT8) as store:
        first, second = role(BOB, "cAbAL", by=ann), role(BOB, "Cabal", by=ann)
        hidden = act(HIDE_USER, BOB.key, channel="CABAL", by=ann)
        store.ingest(raws(first, second, hidden))
        assert answer_of(store, "cabaL", "CABAL") == hashes([second, hidden])
        assert answers.concerns_moderation(hidden, frozenset(["cABal"]), 0, DRAFT8)
        assert store.check().is_clean


def test_case_counts_in_the_legacy_dialect(store: CableStore) -> None:
    post = role(BOB, "Cabal")
    store.ingest(raws(post))
    assert answer_of(store, "cabal") == []
    assert answer_of(store, "Cabal") == [post.hash]


# --- oldest ----------------------------------------------------------------------------------------


def test_oldest_is_inclusive_and_zero_means_no_limit(store: CableStore) -> None:
    posts = [act(HIDE_POST, bytes([n]) * 32, at=START_MS + n) for n in range(4)]
    roles = [role(BOB, "default", by=by, at=START_MS + n) for n, by in enumerate((ANN, CYD))]
    store.ingest(raws(*posts, *roles))
    assert set(answer_of(store, "default")) == {*hashes(posts), *hashes(roles)}
    assert set(answer_of(store, "default", oldest_ms=START_MS)) == {*hashes(posts), *hashes(roles)}
    assert set(answer_of(store, "default", oldest_ms=START_MS + 1)) == {*hashes(posts[1:]), roles[1].hash}
    assert answer_of(store, "default", oldest_ms=START_MS + 3) == [posts[3].hash]
    for oldest_ms in (START_MS + 4, limits.MAX_TIMESTAMP_MS, limits.MAX_TIMESTAMP_MS + 1, 2**64 - 1):
        assert answer_of(store, "default", oldest_ms=oldest_ms) == []


def test_actions_older_than_oldest_are_not_read(store: CableStore) -> None:
    def rows_read() -> int:
        count = 0
        with store.snapshot() as snapshot:
            scan = snapshot.reader.scan

            def counting(
                start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0
            ) -> Iterator[tuple[bytes, bytes]]:
                nonlocal count
                for row in scan(start, stop, reverse=reverse, at_once=at_once):
                    count += 1
                    yield row

            snapshot.reader.scan = counting
            assert list(answers.moderation_state(snapshot.reader, ["default"], START_MS)) == [new.hash]
        return count

    new = role(BOB, "default", at=START_MS)
    store.ingest(raws(new))
    few = rows_read()
    store.ingest(raws(*(act(HIDE_POST, bytes([n]) * 32, at=80 + n) for n in range(200))), verify=False)
    assert rows_read() == few


def test_each_part_is_oldest_first(store: CableStore) -> None:
    posts = [act(HIDE_POST, bytes([n]) * 32, at=START_MS + n, by=(ANN, BOB, CYD)[n % 3]) for n in range(9)]
    blocks = [block(BOB, at=START_MS + n) for n in range(3)]
    store.ingest(raws(*posts[5:], *reversed(blocks), *posts[:5]))
    assert answer_of(store, "default") == hashes([*blocks, *posts])


# --- omitted posts ---------------------------------------------------------------------------------


def test_local_only_posts_do_not_change_the_answer() -> None:
    """The target of a local-only undo is sent as before, because its absence would reveal the post."""
    private = [
        ANN.post(Role("", LOCAL_ONLY, "", BOB.key, USER)),
        act(UNHIDE_USER, BOB.key, privacy=LOCAL_ONLY),
        ANN.post(Block("", LOCAL_ONLY, (BOB.key,), 0, 0)),
        ANN.post(Unblock("", LOCAL_ONLY, (BOB.key,), 0)),
    ]
    public = [role(BOB, at=START_MS - 1), act(HIDE_USER, BOB.key, at=START_MS - 1)]
    with CableStore.in_memory(identity=ANN.identity) as store:
        store.ingest(raws(*private, *public))
        assert store.stats().posts == {"role": 2, "moderation": 2, "block": 1, "unblock": 1}
        assert answer_of(store, "default") == hashes(public)
        assert not any(moderation.rows(post) for post in private)
        with store.snapshot() as snapshot:
            for post in private:
                assert not answers.concerns_moderation(post, frozenset(["default"]), 0, LEGACY)
                assert not answers.is_relevant_moderation(snapshot.reader, post)
        assert store.check().is_clean


def test_other_posts_are_not_in_the_answer(store: CableStore) -> None:
    posts = [ANN.text("default", "x"), ANN.join("default"), ANN.topic("default", "x"), ANN.named("ann")]
    posts.append(ANN.delete(posts[0]))
    store.ingest(raws(*posts))
    assert answer_of(store, "default") == []
    assert not any(answers.concerns_moderation(post, frozenset(["default"]), 0, LEGACY) for post in posts)
    with store.snapshot() as snapshot:
        assert not any(answers.is_relevant_moderation(snapshot.reader, post) for post in posts)


# --- deletion --------------------------------------------------------------------------------------


def test_a_deleted_action_is_undone_and_leaves_no_rows(store: CableStore) -> None:
    """moderation.md 4.4.4: a deleted action has no effect, so the action that it undid is relevant again."""
    first = [role(BOB), act(HIDE_USER, BOB.key, CYD.key)]
    second = [role(BOB, what=USER), act(UNHIDE_USER, CYD.key, BOB.key)]
    blocks = [block(BOB), unblock(BOB)]
    store.ingest(raws(*first, *second, *blocks))
    assert answer_of(store, "default") == hashes([*blocks, *second])
    store.ingest(raws(ANN.delete(*second, blocks[1])))
    assert answer_of(store, "default") == hashes([blocks[0], *first])
    store.ingest(raws(ANN.delete(blocks[0], *first)))
    assert answer_of(store, "default") == []
    assert not [key for key, _ in store.dump() if key.startswith(b"!moderation!")]


# --- live requests ---------------------------------------------------------------------------------


def test_live_requests_concern_exactly_the_posts_of_the_answer(store: CableStore) -> None:
    posts = [
        *(role(BOB, channel, at=at) for channel in ("", "default", "other", "a!b") for at in (80, START_MS)),
        *(act(HIDE_USER, BOB.key, channel=channel, at=at) for channel in ("", "default", "a!b") for at in (79, 81)),
        block(BOB, at=80),
        unblock(BOB, by=CYD, at=80),
        ANN.text("default", "x", at=START_MS),
    ]
    store.ingest(raws(*posts))
    with store.snapshot() as snapshot:
        for channels in ([], ["default"], ["default", "a!b"], ["nowhere"]):
            for oldest_ms in (0, 80, START_MS, START_MS + 1):
                concerned = [p for p in posts if answers.concerns_moderation(p, frozenset(channels), oldest_ms, LEGACY)]
                given = {p.hash for p in concerned if answers.is_relevant_moderation(snapshot.reader, p)}
                assert given == set(answers.moderation_state(snapshot.reader, channels, oldest_ms))


# --- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"", b"\x00" * 33])
def test_a_damaged_row_raises_an_error(value: bytes) -> None:
    with CableStore.in_memory() as store:
        store.ingest(raws(role(BOB)))
        (key,) = (key for key, _ in store.dump() if key.startswith(moderation.STATE_PREFIX))
        write_rows(store, {key: value})
        with pytest.raises(CorruptStoreError, match="cablestore rebuild"):
            answer_of(store)
