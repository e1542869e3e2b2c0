"""Declined roles apply if the user's post/info is stored, rejected, dropped, discarded or exported."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from random import Random

import pytest
from moderated import DAN, assert_clean, own, verdicts_of
from people import ANN, BOB, CYD, START_MS, Person

from cablestore import Block, CableStore, Info, Post, Role, Unblock, Verdict, limits
from cablestore.errors import ExportError
from cablestore.export import Filters, ImportSummary, read_manifest, verify_export
from cablestore.export.manifest import read_consents
from cablestore.export.writer import ExportWriter
from cablestore.index.consents import consent_key, consent_value, decode_consent
from cablestore.index.local import CONSENT, local_key
from cablestore.moderation import UserRole
from cablestore.protocol.acts import Consent
from cablestore.protocol.dialect import LEGACY
from cablestore.store import answers


def info(by: Person, at: int, *, accepts: bool) -> Post:
    return by.post(Info.of(name=f"{by.key.hex()[:4]} {at}", accept_role=accepts), at=START_MS + at)


def role(by: Person, to: Person, at: int, given: UserRole = UserRole.ADMIN) -> Post:
    return by.post(Role("", 0, "", to.key, given.in_post), at=START_MS + at)


def block(by: Person, user: Person, at: int, *, drop: int = 0) -> Post:
    return by.post(Block("", 0, (user.key,), drop, 0), at=START_MS + at)


def unblock(by: Person, user: Person, at: int) -> Post:
    return by.post(Unblock("", 0, (user.key,), 1), at=START_MS + at)


def role_in(store: CableStore, user: Person) -> UserRole:
    decisions = store.moderation.decisions
    assert decisions is not None
    return decisions.role(user.key)


def imported(store: CableStore, folder: Path) -> ImportSummary:
    return store.import_exports([folder])


def announced(store: CableStore) -> list[bytes]:
    with store.snapshot() as snapshot:
        return list(answers.moderation_state(snapshot.reader, []))


def consents(store: CableStore) -> int:
    with store.snapshot() as snapshot:
        return sum(1 for _ in snapshot.reader.local_rows(CONSENT))


def assert_role(store: CableStore, given: Post, *, holds: bool) -> None:
    """Check the role in the decisions and in the answers to peers."""
    assert role_in(store, BOB) is (UserRole.ADMIN if holds else UserRole.USER)
    assert (given.hash in announced(store)) is holds


@pytest.mark.parametrize("drop", [0, 1])
def test_a_role_of_a_user_who_declined_is_never_announced(drop: int) -> None:
    posts = [info(BOB, 10, accepts=False), role(ANN, BOB, 20), block(ANN, BOB, 30, drop=drop)]
    for ordered in permutations(posts):
        with own() as store:
            for post in ordered:
                verdicts_of(store, post)
            store.moderation.sweep()
            assert_role(store, posts[1], holds=False)
            assert_clean(store)


def test_a_discarded_post_info_still_declines_roles() -> None:
    declines, given = info(BOB, 10, accepts=False), role(ANN, BOB, 20)
    with own() as store:
        verdicts_of(store, declines, given)
        store.discard([declines.hash])
        assert_role(store, given, holds=False)
        store.rebuild()
        assert_role(store, given, holds=False)
        verdicts_of(store, BOB.delete(declines, at=START_MS + 40))
        assert_role(store, given, holds=True)
        assert_clean(store)


@pytest.mark.parametrize("drop", [0, 1])
def test_the_same_posts_in_any_order_and_by_exports_give_the_same_roles(tmp_path: Path, drop: int) -> None:
    """Two stores receive the posts in different orders, and a third imports the exports of both."""
    declines, accepts = info(BOB, 10, accepts=False), info(BOB, 15, accepts=True)
    deletion, given = BOB.delete(accepts, at=START_MS + 20), role(ANN, BOB, 50)
    posts = [declines, accepts, deletion, block(ANN, BOB, 30, drop=drop), unblock(ANN, BOB, 40), given]
    random = Random(drop)
    for number in range(12):
        exports = [tmp_path / f"{number}-{which}" for which in "ab"]
        for export in exports:
            with own() as store:
                for post in random.sample(posts, len(posts)):
                    verdicts_of(store, post)
                    if random.random() < 0.3:
                        store.moderation.sweep()
                assert_role(store, given, holds=False)
                assert_clean(store)
                store.export(export)
        random.shuffle(exports)
        with own() as store:
            for export in exports:
                imported(store, export)
            assert_role(store, given, holds=False)
            verdicts_of(store, BOB.delete(declines, at=START_MS + 25))
            assert_role(store, given, holds=True)


def declined_export(folder: Path) -> Post:
    """Export a store that dropped the post/info in which Bob declines roles. Returns the post/role."""
    given = role(ANN, BOB, 5)
    with own() as store:
        verdicts_of(store, given, info(BOB, 10, accepts=False), block(ANN, BOB, 20, drop=1))
        verdicts_of(store, unblock(ANN, BOB, 30))
        store.moderation.sweep()
        store.export(folder)
    return given


def test_an_export_does_not_restore_a_declined_role(tmp_path: Path) -> None:
    given = declined_export(tmp_path / "e")
    assert verify_export(tmp_path / "e", signatures=True).is_clean
    with own(tmp_path / "s") as store:
        assert imported(store, tmp_path / "e").consents == 1
        assert imported(store, tmp_path / "e").consents == 0
        assert_role(store, given, holds=False)
        verdicts_of(store, info(CYD, 90, accepts=True))
        assert_role(store, given, holds=False)
    with own(tmp_path / "s") as store:
        assert_role(store, given, holds=False)
        store.export(tmp_path / "f")
        verdicts_of(store, info(BOB, 60, accepts=True))
        assert_role(store, given, holds=True)
    with own() as store:
        imported(store, tmp_path / "f")
        assert_role(store, given, holds=False)


def test_a_claim_never_assigns_a_role_and_is_replaced_by_signed_statements(tmp_path: Path) -> None:
    given, declines, later = role(ANN, BOB, 5), info(BOB, 10, accepts=False), info(BOB, 40, accepts=True)
    far = START_MS + 10**12
    claims = [
        Consent(BOB.key, bytes(32), START_MS + 20, accepts=True),
        Consent(CYD.key, bytes(31) + b"\1", START_MS + 20, accepts=False),
        Consent(CYD.key, bytes(31) + b"\2", START_MS + 20, accepts=True),
        Consent(DAN.key, bytes(32), far, accepts=False),
        Consent(ANN.key, bytes(32), START_MS + 20, accepts=False),
    ]
    writer = ExportWriter(tmp_path / "e", LEGACY, {})
    writer.add_consents(sorted(claims, key=lambda said: (said.user, said.moment)))
    writer.finish()
    with own() as store:
        verdicts_of(store, given, declines, role(ANN, DAN, 5), role(ANN, CYD, 5))
        imported(store, tmp_path / "e")
        assert_role(store, given, holds=False)
        assert [role_in(store, user) for user in (ANN, CYD, DAN)] == [UserRole.ADMIN] * 3
        verdicts_of(store, later)
        assert_role(store, given, holds=True)


def test_claims_do_not_replace_signed_statements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CONSENTS_REMEMBERED", 3)
    given = role(ANN, BOB, 5)
    writer = ExportWriter(tmp_path / "e", LEGACY, {})
    writer.add_consents(Consent(BOB.key, bytes((n,)) * 32, START_MS + 100 + n, accepts=True) for n in range(9))
    writer.finish()
    with own() as store:
        assert verdicts_of(store, given, block(ANN, BOB, 7), info(BOB, 6, accepts=False))[-1] is Verdict.BLOCKED
        imported(store, tmp_path / "e")
        assert consents(store) == 3
        assert_role(store, given, holds=False)


def test_the_latest_statements_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CONSENTS_REMEMBERED", 3)
    given = role(ANN, BOB, 5)
    said = [info(BOB, 10 + number, accepts=number != 7) for number in range(8)]
    for ordered in (said, said[::-1]):
        with own() as store:
            verdicts_of(store, block(ANN, BOB, 9), given, *ordered)
            assert consents(store) == 3
            assert_role(store, given, holds=False)


def test_damaged_statements_of_an_export_are_rejected(tmp_path: Path) -> None:
    declined_export(tmp_path / "e")
    manifest = read_manifest(tmp_path / "e")
    (segment,) = manifest.consent_segments
    assert [len(block) for block in read_consents(tmp_path / "e", segment)] == [1]
    path = tmp_path / "e" / segment.file
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert not verify_export(tmp_path / "e").is_clean
    with own() as store, pytest.raises(ExportError, match=segment.file):
        imported(store, tmp_path / "e")


def test_a_filtered_export_has_the_statements_of_its_authors(tmp_path: Path) -> None:
    with own() as store:
        verdicts_of(
            store, block(ANN, BOB, 1), block(ANN, CYD, 2), info(BOB, 10, accepts=False), info(CYD, 11, accepts=False)
        )
        by_bob = store.export(tmp_path / "bob", filters=Filters(authors=frozenset([BOB.key])))
        in_channel = store.export(tmp_path / "c", filters=Filters(channels=frozenset(["c"])))
    assert [segment.items for segment in by_bob.consent_segments] == [1]
    assert [segment.items for segment in in_channel.consent_segments] == [2]


@pytest.mark.parametrize("accepts", [False, True])
@pytest.mark.parametrize("is_claim", [False, True])
def test_a_stored_statement_is_read_unchanged(accepts: bool, is_claim: bool) -> None:
    said = Consent(BOB.key, b"\x07" * 32, START_MS, accepts, is_claim)
    assert decode_consent((local_key(CONSENT, consent_key(said)), consent_value(said))) == said
