"""Decisions from the rows of a store equal those from its posts: in any order, after deletions, with private actions."""

from __future__ import annotations

import pytest
from moderation_model import MemoryActs
from people import ANN, BOB, CYD, Person, raws

from cablestore import Block, Body, CableStore, Info, Moderation, Post, Role, Unblock
from cablestore.errors import CorruptStoreError
from cablestore.moderation import Action, Decisions, StoredActs, UserRole, act_of, consent_of
from cablestore.protocol.body import LOCAL_ONLY, PUBLIC
from cablestore.protocol.post import SIGNED_FROM
from cablestore.views import acts

ADMIN, MOD, USER = UserRole.ADMIN, UserRole.MOD, UserRole.USER


def decided(store: CableStore) -> Decisions:
    with store.snapshot() as snapshot:
        return Decisions.read(StoredActs(snapshot.reader, store.identity.public_key), store.identity.public_key)


def expected(store: CableStore) -> Decisions:
    """Return the decisions from all posts of a store, decoded one by one."""
    with store.snapshot() as snapshot:
        posts = list(snapshot.reader.posts())
    held = MemoryActs(
        [act for post in posts if (act := act_of(post)) is not None],
        [said for post in posts if (said := consent_of(post)) is not None],
    )
    return Decisions.read(held, store.identity.public_key)


def assert_equal(store: CableStore) -> Decisions:
    found, wanted = decided(store), expected(store)
    for channel in (None, "test", "a!b"):
        assert list(found.history(channel)) == list(wanted.history(channel))
    for person in (ANN, BOB, CYD):
        assert found.blocks_own_user(person.key) == wanted.blocks_own_user(person.key)
    return found


def chat(own: bytes, from_ms: int) -> list[Post]:
    """Return actions of three people, of whom Ann becomes admin."""
    many = tuple(bytes([number]) * 32 for number in range(16))
    said: list[tuple[Person, Body]] = [
        (ANN, Role("", PUBLIC, "", BOB.key, MOD.in_post)),
        (BOB, Moderation("off topic", PUBLIC, "a!b", (CYD.key,), Action.HIDE_USER)),
        (BOB, Moderation("", PUBLIC, "test", many, Action.DROP_POST)),
        (BOB, Moderation("", PUBLIC, "a!b", (), Action.DROP_CHANNEL)),
        (ANN, Block("spam", PUBLIC, (CYD.key,), 1, 1)),
        (CYD, Block("", PUBLIC, (ANN.key, own), 0, 1)),
        (BOB, Block("", PUBLIC, (own,), 0, 1)),
        (BOB, Unblock("", PUBLIC, (own,), 0)),
        (CYD, Role("", PUBLIC, "", BOB.key, ADMIN.in_post)),
        (BOB, Info.of(name="bob", accept_role=True)),
    ]
    return [person.post(body, at=from_ms + number) for number, (person, body) in enumerate(said)]


def test_rows_agree_with_the_posts(store: CableStore) -> None:
    own = store.identity.public_key
    given = store.write(Role("", PUBLIC, "", ANN.key, ADMIN.in_post))
    store.ingest(raws(*reversed(chat(own, given.timestamp_ms + 1))))
    assert store.check().is_clean
    found = assert_equal(store)
    assert [found.role(person.key) for person in (ANN, BOB, CYD)] == [ADMIN, MOD, USER]
    hidden = found.user_hidden_by(CYD.key, "a!b")
    assert hidden is not None
    assert (hidden.author, hidden.reason) == (BOB.key, "off topic")
    assert (found.channel_dropped_by("a!b") is not None, found.blocked_by(CYD.key) is not None) == (True, True)
    assert found.post_dropped_by(b"\x0f" * 32, CYD.key, "test") is not None
    assert [found.blocks_own_user(person.key) is not None for person in (ANN, BOB, CYD)] == [False, False, True]
    store.delete(given.hash)
    assert assert_equal(store).role(BOB.key) is USER


def test_a_declined_role_is_stored_in_rows(store: CableStore) -> None:
    store.write(Role("", PUBLIC, "", BOB.key, MOD.in_post))
    store.ingest(raws(BOB.post(Info.of(name="bob", accept_role=False))))
    assert assert_equal(store).role(BOB.key) is USER
    store.ingest(raws(BOB.post(Info.of(name="bob"))))
    assert assert_equal(store).role(BOB.key) is MOD


def test_private_actions_count_and_leave_no_rows(store: CableStore) -> None:
    store.write(Role("", LOCAL_ONLY, "", BOB.key, MOD.in_post))
    hide = store.write(Moderation("", LOCAL_ONLY, "test", (CYD.key,), Action.HIDE_USER))
    found = assert_equal(store)
    assert (found.role(BOB.key), found.role(BOB.key, public=True)) == (MOD, USER)
    assert found.user_hidden_by(CYD.key, "test") == act_of(hide)
    assert not [key for key, _ in store.dump() if key.startswith(b"!acts!")]


def test_forged_actions_and_private_actions_of_others_are_ignored(store: CableStore) -> None:
    store.write(Role("", PUBLIC, "", ANN.key, ADMIN.in_post))
    role = ANN.post(Role("", PUBLIC, "", BOB.key, MOD.in_post)).raw
    forged = (
        bytes([role[0] ^ 1]) + role[1:],
        role[: SIGNED_FROM - 1] + bytes([role[SIGNED_FROM - 1] ^ 1]) + role[SIGNED_FROM:],
    )
    store.ingest([*forged, ANN.post(Role("", LOCAL_ONLY, "", BOB.key, MOD.in_post)).raw])
    assert assert_equal(store).role(BOB.key) is USER


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"x" * 44,
        b"\x00" * 43 + b"\x01" + b"y" * 32,
        b"\x00" * 44 + b"\x93\x01\x02\x03",
        b"\x00" * 40 + b"\xff" * 4 + b"\xc0",
    ],
)
def test_a_damaged_record_is_reported(record: bytes) -> None:
    with pytest.raises(CorruptStoreError, match="rebuild"):
        acts.act_in(record)


@pytest.mark.parametrize("record", [b"", b"x" * 44, b"\x00" * 40 + b"\xff" * 4 + b"\xc0"])
def test_damaged_targets_are_reported(record: bytes) -> None:
    with pytest.raises(CorruptStoreError, match="rebuild"):
        acts.targets_in(record)


def test_a_change_of_name_does_not_recompute_the_roles(store: CableStore) -> None:
    store.write(Role("", PUBLIC, "", BOB.key, MOD.in_post))
    robert, declines = BOB.post(Info.of(name="Robert")), BOB.post(Info.of(accept_role=False))
    for info, is_rename in [
        (robert, True),
        (declines, False),
        (BOB.post(Info.of(name="Bobby", accept_role=False)), True),
        (BOB.post(Info.of(name="Bob", accept_role=True)), False),
    ]:
        before = store.moderation.decisions
        store.ingest(raws(info))
        after = assert_equal(store)
        assert before is not None
        assert store.moderation.decisions is not None
        assert store.moderation.decisions.has_roles_of(before) is is_rename
    store.ingest(raws(BOB.delete(declines)))
    assert assert_equal(store).role(BOB.key) is after.role(BOB.key) is MOD


def test_the_actions_of_a_dropped_user_are_read_from_what_is_remembered(store: CableStore) -> None:
    store.moderation.set_role(BOB.key, MOD)
    hide = BOB.post(Moderation("spam", PUBLIC, "", (CYD.key,), Action.HIDE_USER))
    given = BOB.post(Role("spam", PUBLIC, "c", CYD.key, MOD.in_post))
    store.ingest(raws(hide, given))

    def read() -> list[bytes]:
        with store.snapshot() as state:
            held = StoredActs(state.reader, store.identity.public_key)
            return [acts.act_in(each).hash for each in held.actions_of(BOB.key)] + [
                each.hash for each in held.roles_of(BOB.key)
            ]

    assert read() == [hide.hash, given.hash]
    store.moderation.drop(users=[BOB.key])
    assert (store.get(hide.hash), store.get(given.hash)) == (None, None)
    assert read() == [hide.hash, given.hash]
