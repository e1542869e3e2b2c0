"""Look-up of typed names, channels and abbreviated hashes: case and form are ignored, and ambiguous names are rejected."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from exporting import forge, in_memory
from hypothesis import given
from hypothesis import strategies as st
from moderated import own
from people import ANN, BOB, CYD, Person, raws

from cablestore import LEGACY, CableStore, Tombstone
from cablestore.errors import NotFoundError
from cablestore.index.tombstone import Skeleton
from cablestore.store.lookup import find_channel, require_one

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"
KINDS = [
    ("\u00c5ngstr\u00f6m", "A\u030angstro\u0308m"),
    ("\ud55c\uae00", "\u1112\u1161\u11ab\u1100\u1173\u11af"),  # Hangul, as macOS types it
    ("vi\u1ec7t nam", "vie\u0323\u0302t nam"),
    ("\u0439\u043e\u0433\u0430", "\u0438\u0306\u043e\u0433\u0430"),
    ("\u304c\u304e", "\u304b\u3099\u304d\u3099"),
    ("stra\u00dfe", "STRASSE"),
    ("\u212b", "\u00e5"),  # the angstrom sign
    ("\uff43\uff41\uff46\uff45", "cafe"),  # full width
]


@pytest.mark.parametrize(("stored", "typed"), [*KINDS, (COMPOSED, DECOMPOSED)], ids=ascii)
def test_users_are_found_by_any_form_of_their_name(store: CableStore, stored: str, typed: str) -> None:
    store.ingest(raws(BOB.named(stored), CYD.named("cyd")))
    for text in (stored, typed, typed.upper(), f" @{typed} ", unicodedata.normalize("NFD", typed)):
        assert [user.public_key for user in store.find_users(text)] == [BOB.key], ascii(text)


@pytest.mark.parametrize(("stored", "typed"), [*KINDS, (COMPOSED, DECOMPOSED)], ids=ascii)
def test_channels_are_found_by_any_form_of_their_name(stored: str, typed: str) -> None:
    for known in (stored, unicodedata.normalize("NFD", stored)):
        for text in (stored, typed, typed.upper(), f" #{typed} ", unicodedata.normalize("NFD", typed)):
            assert find_channel(text, ["default", known]) == known, ascii(text)


def test_users_are_found_by_their_first_digits(store: CableStore) -> None:
    store.ingest(raws(BOB.named("bob"), CYD.text("default", "hi")))
    digits = BOB.key.hex()
    for text in (digits[:4], digits[:8].upper(), f"@{digits[:12]}", digits):
        assert [user.name for user in store.find_users(text)] == ["bob"]
    assert store.find_users(digits[:3]) == []
    assert store.find_users("") == store.find_users(" @ ") == []
    assert [user.name for user in store.find_users(ANN.key.hex())] == [ANN.key.hex()]


def test_digits_of_a_name_and_of_a_key_find_both_users(store: CableStore) -> None:
    digits = BOB.key.hex()[:8]
    store.ingest(raws(BOB.text("default", "BUY"), CYD.named(digits)))
    assert {user.public_key for user in store.find_users(digits)} == {BOB.key, CYD.key}
    assert {user.public_key for user in store.find_users(f"@{digits.upper()}")} == {BOB.key, CYD.key}


def test_several_users_of_one_name_are_all_found(store: CableStore) -> None:
    store.ingest(raws(BOB.named(COMPOSED), CYD.named(DECOMPOSED.upper())))
    assert {user.public_key for user in store.find_users("Cafe\u0301")} == {BOB.key, CYD.key}


def test_a_long_name_is_not_parsed_as_a_key(store: CableStore) -> None:
    """On macOS, a name of 32 characters may be decomposed into 64 code points, the number of digits of a key."""
    name = "\u00e9" * 32
    store.ingest(raws(BOB.named(name)))
    assert [user.public_key for user in store.find_users(unicodedata.normalize("NFD", name))] == [BOB.key]


def test_an_abbreviated_hash_finds_local_only_posts_and_posts_that_their_authors_deleted() -> None:
    with own() as store:
        kept, deleted, unseen = (BOB.text("default", text) for text in ("kept", "deleted", "unseen"))
        store.ingest(
            raws(kept, deleted, BOB.delete(deleted), BOB.delete(deleted), CYD.delete(kept), CYD.delete(unseen))
        )
        store.moderation.hide(posts=[kept.hash], private=True)
        [act] = [found.hash for found in store.posts_by(ANN.key) if found.is_local_only]
        for digest in (kept.hash, act):
            assert store.find_hashes(digest.hex()[:12]) == [digest]
            assert store.find_hashes(digest.hex()[:12], with_deleted=True) == [digest]
        assert store.find_hashes(deleted.hash.hex()[:12], 1, with_deleted=True) == [deleted.hash]
        assert store.find_hashes(unseen.hash.hex()[:12], with_deleted=True) == []
        assert store.find_hashes("\u00e9") == []


def test_an_abbreviated_hash_finds_at_most_as_many_posts_as_the_limit() -> None:
    with own() as store:
        posts = [BOB.text("default", f"{number}") for number in range(7)]
        store.ingest(raws(*posts, BOB.delete(*posts[:4])))
        stored, deleted = store.find_hashes("", 100), {post.hash for post in posts[:4]}
        assert len(stored) == 4
        assert set(store.find_hashes("", 100, with_deleted=True)) == {*stored, *deleted}
        for limit in range(1, 9):
            assert store.find_hashes("", limit) == stored[:limit]
            found = store.find_hashes("", limit, with_deleted=True)
            assert found[:4] == stored[:limit]
            assert len(found) == limit
            assert set(found[4:]) <= deleted


def test_several_claims_about_one_deleted_post_are_one_hash(tmp_path: Path) -> None:
    """Stores that never had the post cannot know which claimed author is true."""
    post = CYD.text("default", "unseen")
    for deletion in (ANN.delete(post), BOB.delete(post)):
        claim = Tombstone(
            post.hash, deletion.author, deletion.timestamp_ms, deletion.hash, Skeleton(0, 7, "default", ())
        )
        forge(tmp_path / deletion.author.hex(), [deletion], [claim])
    with in_memory(LEGACY, []) as store:
        store.import_exports(sorted(tmp_path.iterdir()))
        assert store.find_hashes(post.hash.hex()[:12], 2, with_deleted=True) == [post.hash]


def test_a_snapshot_finds_the_users_of_its_state(store: CableStore) -> None:
    store.ingest(raws(BOB.named("bob")))
    with store.snapshot() as state:
        store.ingest(raws(Person("another bob").named("Bob")))
        assert len(state.find_users("bob")) == 1
        assert len(store.find_users("bob")) == 2


@pytest.mark.parametrize(
    ("text", "known", "meant"),
    [
        ("garden", ["Garden", "garden", "GARDEN"], "garden"),
        ("#garden", ["#garden"], "#garden"),
        ("##garden", ["#garden", "garden"], "#garden"),
        (DECOMPOSED, [COMPOSED, DECOMPOSED], COMPOSED),
        (DECOMPOSED, [DECOMPOSED, COMPOSED.upper()], DECOMPOSED),
        (COMPOSED, [DECOMPOSED, COMPOSED.upper()], DECOMPOSED),
        ("new", ["default"], "new"),
        (DECOMPOSED, ["default"], COMPOSED),
    ],
    ids=ascii,
)
def test_the_nearest_channel_is_found(text: str, known: list[str], meant: str) -> None:
    assert find_channel(text, known) == meant
    assert find_channel(text, known[::-1]) == meant


def test_channels_that_are_equally_near_are_ambiguous() -> None:
    for text, known in (
        ("garden", ["Garden", "GARDEN"]),
        (COMPOSED, ["Caf\u00e9", "CAFE\u0301"]),
        ("strasse", ["Stra\u00dfe", "STRASSE"]),
    ):
        with pytest.raises(NotFoundError, match="is ambiguous: #") as caught:
            find_channel(text, known)
        assert all(name in str(caught.value) for name in known)
    many = [f"{'a' * at}{'A' * (12 - at)}" for at in range(1, 12)]
    with pytest.raises(NotFoundError) as caught:
        find_channel("A" * 12, many)
    assert str(caught.value).count("#a") == 5
    assert " and 6 more. " in str(caught.value)
    with pytest.raises(NotFoundError) as caught:
        find_channel("A" * 12, many[:5])
    assert "more" not in str(caught.value)


def test_ambiguous_users_are_listed_by_name_and_first_digits(store: CableStore) -> None:
    store.ingest(raws(BOB.named("bob"), CYD.named("Bob")))
    with pytest.raises(NotFoundError) as caught:
        require_one("bob", store.find_users("bob"))
    for name, who in (("bob", BOB), ("Bob", CYD)):
        assert re.search(rf"'{name}' {who.key.hex()[:16]}[,.]", str(caught.value))


def test_ambiguous_channels_that_look_equal_are_listed_with_their_escapes() -> None:
    with pytest.raises(NotFoundError, match="is ambiguous: #") as caught:
        find_channel(COMPOSED.upper(), [COMPOSED, DECOMPOSED])
    assert all(ascii(name) in str(caught.value) for name in (COMPOSED, DECOMPOSED))


@given(st.lists(st.text(min_size=1), unique=True, max_size=4), st.data())
def test_every_channel_can_be_named(names: list[str], data: st.DataObject) -> None:
    """The exact name of a channel finds it, unless another channel has the normal form of this name."""
    if names:
        name = data.draw(st.sampled_from(names))
        found = find_channel(name, names)
        assert found == name or (
            found in names and found == unicodedata.normalize("NFC", name).strip().removeprefix("#").strip()
        )
