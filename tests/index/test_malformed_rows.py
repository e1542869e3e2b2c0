"""Malformed values of rows: each decoder raises an error with advice, and never returns half of a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from people import ANN, START_MS

from cablestore import DRAFT8, LEGACY, CableStore, limits
from cablestore.errors import CorruptStoreError, OpenError, OutdatedViewError
from cablestore.index import arrival_log, local, meta
from cablestore.index.consents import decode_consent
from cablestore.index.drops import decode_drop, decode_dropped
from cablestore.index.local_forms import is_damaged
from cablestore.index.memory import MemoryDB
from cablestore.index.packing import pack
from cablestore.index.reader import Reader, data_key, decode_tombstone, tombstone_key
from cablestore.index.tombstone import Skeleton, Tombstone
from cablestore.index.tree import SUM_MODULUS, NodePart, encode_part, encode_root, split_parts, split_root, with_part
from cablestore.index.view import REVERSE_PREFIX, reverse_keys
from cablestore.protocol.body import DELETE, INFO, TEXT
from cablestore.protocol.post import SIGNED_FROM
from cablestore.views import CATALOG

HASH, KEY = bytes(range(32)), bytes(range(1, 33))
HEX, KEY_HEX = HASH.hex().encode(), KEY.hex().encode()
BONES = [TEXT, START_MS, "default", [HASH]]
SORT_TIME = b"0000000000000005." + b"a" * 32
PART = NodePart(b"12345", 2, 7, 9)


def rejects(decode: Callable[[Any], object], *values: Any) -> None:
    for value in values:
        with pytest.raises(CorruptStoreError, match=r"Run `cablestore rebuild`"):
            decode(value)


# --- tombstones -----------------------------------------------------------------------------------


def test_a_malformed_tombstone_is_rejected() -> None:
    def decode(fields: object) -> Tombstone:
        return Tombstone.decode(HASH, KEY, pack(fields))

    assert decode([1, HASH, BONES, [[2, KEY]]]) == Tombstone(
        HASH, KEY, 1, HASH, Skeleton(TEXT, START_MS, "default", (HASH,)), ((2, KEY),)
    )
    rejects(
        decode, 1, [], [1, HASH], ["1", HASH, None], [1, "h", None], [1, HASH, 0], [1, HASH, [TEXT, 1, "c"]],
        [1, HASH, [TEXT, 1, 2, []]], [1, HASH, [TEXT, 1, "c", "l"]], [1, HASH, None, []], [1, HASH, None, 1],
        [1, HASH, None, [[2]]], [1, HASH, None, [[2, KEY], [3, "k"]]], [1, HASH, None, [[2, KEY]], []],
    )  # fmt: skip
    key = tombstone_key(HEX, KEY_HEX)
    assert decode_tombstone((key, pack([1, HASH, None]))) == Tombstone(HASH, KEY, 1, HASH)
    for broken in (key[:-2], key + b"00", key.replace(b"!" + KEY_HEX, b"!" + b"zz" * 32), tombstone_key(HEX[2:], HEX)):
        rejects(lambda each: decode_tombstone((each, pack([1, HASH, None]))), broken)


LONGEST_LINKS = (limits.MAX_POST_SIZE_BYTES - SIGNED_FROM - 1) // 32
CLAIMS: dict[str, tuple[dict[str, Any], bool]] = {
    "the first time": ({"deleted_at_ms": 0}, True),
    "a time before 1970": ({"deleted_at_ms": -1}, False),
    "the last time": ({"deleted_at_ms": limits.MAX_TIMESTAMP_MS}, True),
    "a time after the last": ({"deleted_at_ms": limits.MAX_TIMESTAMP_MS + 1}, False),
    "a hash of 31 bytes": ({"deleted_by": HASH[:-1]}, False),
    "several deletions": ({"later": ((2, KEY),)}, False),
    "an unknown type": ({"skeleton": Skeleton(99, 1, "c", ())}, False),
    "a deletion": ({"skeleton": Skeleton(DELETE, 1, None, ())}, False),
    "the first target": ({"skeleton": Skeleton(TEXT, 0, "c", ())}, True),
    "a target before 1970": ({"skeleton": Skeleton(TEXT, -1, "c", ())}, False),
    "the last target": ({"skeleton": Skeleton(TEXT, limits.MAX_TIMESTAMP_MS, "c", ())}, True),
    "a target after the last": ({"skeleton": Skeleton(TEXT, limits.MAX_TIMESTAMP_MS + 1, "c", ())}, False),
    "a text without a channel": ({"skeleton": Skeleton(TEXT, 1, None, ())}, False),
    "a text in a channel without a name": ({"skeleton": Skeleton(TEXT, 1, "", ())}, False),
    "the longest channel": ({"skeleton": Skeleton(TEXT, 1, "c" * limits.MAX_CHANNEL_CODEPOINTS, ())}, True),
    "a longer channel": ({"skeleton": Skeleton(TEXT, 1, "c" * (limits.MAX_CHANNEL_CODEPOINTS + 1), ())}, False),
    "an info": ({"skeleton": Skeleton(INFO, 1, None, ())}, True),
    "an info in a channel": ({"skeleton": Skeleton(INFO, 1, "c", ())}, False),
    "a link of 33 bytes": ({"skeleton": Skeleton(TEXT, 1, "c", (HASH, HASH + b"x"))}, False),
    "the most links": ({"skeleton": Skeleton(TEXT, 1, "c", (HASH,) * LONGEST_LINKS)}, True),
    "more links": ({"skeleton": Skeleton(TEXT, 1, "c", (HASH,) * (LONGEST_LINKS + 1))}, False),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_tombstone_of_another_store_has_only_values_of_real_posts(name: str) -> None:
    changes, is_valid = CLAIMS[name]
    stone = replace(Tombstone(HASH, KEY, 1, HASH), **changes)
    item = [stone.target, stone.author, stone.encode()]
    if is_valid:
        assert Tombstone.read(item) == stone
    else:
        with pytest.raises(ValueError, match="invalid tombstone"):
            Tombstone.read(item)


def test_a_malformed_tombstone_of_another_store_is_rejected() -> None:
    value = Tombstone(HASH, KEY, 1, HASH).encode()
    items: list[object] = [
        None, [], [HASH, KEY], [HASH, KEY, value, 1], [HASH[1:], KEY, value], [HASH, KEY[1:], value],
        [HASH, KEY, "text"], [HASH, KEY, b"\xc1"], [HASH, KEY, value.replace(b"\x01", b"\xcc\x01", 1)],
    ]  # fmt: skip
    for item in items:
        with pytest.raises(ValueError, match="invalid tombstone"):
            Tombstone.read(item)


def test_the_smaller_of_two_skeletons_is_kept() -> None:
    stone = Tombstone(HASH, KEY, 1, HASH)
    smaller, larger = (Tombstone(HASH, KEY, 1, HASH, Skeleton(TEXT, 1, name, ())) for name in ("a", "b"))
    assert smaller.merge(larger) == larger.merge(smaller) == smaller
    assert stone.merge(larger) == larger.merge(stone) == larger
    several = [Tombstone(HASH, KEY, at_ms, HASH) for at_ms in range(limits.MAX_DELETIONS_LISTED + 1)]
    assert reduce(Tombstone.merge, several).deletions == tuple((each.deleted_at_ms, HASH) for each in several[:-1])


# --- posts and their keys ---------------------------------------------------------------------------


def test_a_damaged_post_and_its_keys_are_reported() -> None:
    post = ANN.text("default", "x")
    database = MemoryDB()
    with CableStore.in_memory() as store:
        store.ingest([post.raw])
        with store.snapshot() as state:
            expected = reverse_keys(state.reader, post)
            value = state.reader.get(REVERSE_PREFIX + post.hash_hex)
    assert expected
    assert all(key.startswith(b"!") for key in expected)
    rows = {REVERSE_PREFIX + post.hash_hex: value, data_key(post.hash_hex): post.raw}
    for damage in (None, b"", pack(1), pack([b"!a!", "text"]), pack({b"!a!": 1})):
        database.write(rows | {REVERSE_PREFIX + post.hash_hex: damage}, sync=False)
        reader = Reader(database.live(), LEGACY)
        if damage is None:
            assert reverse_keys(reader, post) is None
        else:
            rejects(lambda found: reverse_keys(found, post), reader)
    database.write({data_key(post.hash_hex): post.raw[:-1]}, sync=False)
    reader = Reader(database.live(), LEGACY)
    rejects(reader.post, post.hash)
    rejects(lambda found: list(found.posts()), reader)
    with pytest.raises(ValueError, match="without `unseal`"):
        reader.unseal(b"sealed")


def test_a_damaged_tombstone_does_not_count_as_a_deletion() -> None:
    key = tombstone_key(HEX, KEY_HEX)
    found = []
    for value in (None, b"\xc1", pack([1, HASH, None]), pack([1, HASH, BONES])):
        database = MemoryDB()
        database.write({key: value}, sync=False)
        found.append(Reader(database.live(), LEGACY).is_buried(HEX, KEY))
    assert found == [False, False, False, True]


# --- sums -----------------------------------------------------------------------------------------


def test_malformed_sums_are_rejected() -> None:
    whole = encode_part(PART)
    root = encode_root(PART, whole)
    tail, parts = split_root(root)
    assert (tail, parts) == (PART, whole)
    assert split_root(root[: 1 + len(whole)]) == (PART, b"")
    rejects(split_root, b"", root[: len(whole)], b"\x00" + root[1:], b"\x04" + root[1:])
    assert split_parts(whole * 2, 0) == {PART.label: whole}
    rejects(lambda value: split_parts(value, 0), whole[:-1], whole + b"x")
    rejects(encode_part, PART._replace(posts=-1), PART._replace(posts=2**64))
    change = PART._replace(posts=-2, sum=-9)
    assert with_part(whole, change) == b""
    rejects(lambda value: with_part(value, change), whole + b"x")
    rejects(lambda part: with_part(whole, part), PART._replace(posts=-3))
    largest = PART._replace(xor=SUM_MODULUS - 1, sum=SUM_MODULUS - 1)
    assert split_root(encode_root(largest, b""))[0] == largest


# --- the whole database ---------------------------------------------------------------------------


def test_a_meta_row_of_another_format_or_dialect_is_rejected() -> None:
    key, value = meta.meta_row(CATALOG, LEGACY, 5)
    assert key == b"!meta"
    assert meta.dialect_of(value, 5, "s") is LEGACY
    assert (
        meta.dialect_of(None, 5, "s") is meta.dialect_of(b"\xc1", 5, "s") is meta.dialect_of(pack([]), 5, "s") is None
    )
    for version in (4, 6):
        with pytest.raises(OpenError, match=f"s has format 5, but this version of cablestore reads {version}"):
            meta.dialect_of(value, version, "s")
    meta.check_meta(value, CATALOG, LEGACY, "s")
    with pytest.raises(OpenError, match="s has the dialect draft8, but its database has legacy"):
        meta.check_meta(value, CATALOG, DRAFT8, "s")
    rejects(
        lambda fields: meta.check_meta(pack(fields), CATALOG, LEGACY, "s"), [], {"dialect": "legacy"}, {"views": {}}
    )
    older = pack({"dialect": "legacy", "views": CATALOG.versions | {"messages": 0, "other": 7}})
    with pytest.raises(OutdatedViewError, match=r": messages \(found 0, expected [0-9]+\)\. Run"):
        meta.check_meta(older, CATALOG, LEGACY, "s")
    assert meta.missing_views(older, CATALOG) == {"other": 7}
    assert meta.missing_views(value, CATALOG) == meta.missing_views(b"\xc1", CATALOG) == {}
    assert meta.missing_views(None, CATALOG) == meta.missing_views(pack({}), CATALOG) == {}


def test_malformed_sizes_are_rejected() -> None:
    sizes = {"posts": (1, 2), "empty": (0, 0)}
    value = meta.encode_sizes(sizes)
    assert meta.decode_sizes(value) == {"posts": (1, 2)}
    assert meta.encode_sizes({"empty": (0, 0)}) is None
    assert meta.decode_sizes(None) == {}
    rejects(
        lambda fields: meta.decode_sizes(pack(fields)), 1, [], {"a": 1}, {"a": [1]}, {"a": [1, "2"]}, {"a": [1, 2, 3]}
    )


def test_malformed_entries_of_the_arrival_log_are_rejected() -> None:
    key, value = arrival_log.log_row(7, [(arrival_log.EventKind.ACCEPTED, HASH), (arrival_log.EventKind.LOCAL, KEY)])
    assert arrival_log.span_of((key, value)) == (7, 9)
    log = MemoryDB()
    log.write({key: value}, sync=False)
    assert [entry.sequence for entry in arrival_log.entries(Reader(log.live(), LEGACY), 7)] == [8]
    rejects(
        arrival_log.span_of, (key[:-1], value), (key + b"1", value), (key[:-1] + b"x", value), (key, b""),
        (key, value[:-1]), (key, value + b"\x01"), (key, b"\x05" + value[1:]), (key, value[:33] + b"\x00" + value[34:]),
    )  # fmt: skip
    numbers = {b"1": 1, b"9" * 16: 10**16 - 1, b"0": None, b"": None, b"-1": None, b"1" * 17: None, b"x": None}
    for stored, expected in numbers.items():
        database = MemoryDB()
        database.write({arrival_log.NEXT_KEY: stored}, sync=False)
        if expected is None:
            rejects(arrival_log.next_sequence, Reader(database.live(), LEGACY))
        else:
            assert arrival_log.next_sequence(Reader(database.live(), LEGACY)) == expected


# --- local rows -----------------------------------------------------------------------------------

DROP_VALUE = pack([HASH, KEY, 5, b""])
DROPPED_VALUE = pack([KEY, HASH, *BONES, True])
ACT_VALUE = KEY + (START_MS + 7).to_bytes(8) + (1).to_bytes(4) + HASH + pack([HASH, 1, 2, None, "reason", True])
VALID: dict[str, tuple[bytes, bytes, bytes]] = {
    "confirmed": (local.CONFIRMED, HEX, KEY),
    "dropped user": (local.DROP, b"user!" + KEY_HEX, DROP_VALUE),
    "dropped channel": (local.DROP, b"channel!default", pack([HASH, None, None, None])),
    "dropped post": (local.DROP, b"post!" + HEX, DROP_VALUE),
    "dropped": (local.DROPPED, HEX, DROPPED_VALUE),
    "dropped link": (local.DROPPED_LINK, b"default!" + HEX + b"!" + KEY_HEX, b""),
    "dropped head": (local.DROPPED_HEAD, b"default!" + HEX, b""),
    "consent": (local.CONSENT, KEY_HEX + b"!" + SORT_TIME, HASH + b"\x01"),
    "act": (local.ACT, KEY_HEX + b"!" + SORT_TIME, ACT_VALUE),
    "seed": (local.SEED, b"", pack([b"seed", 5, None, HASH])),
    "read mark": (local.READ, b"default", pack([SORT_TIME, 3])),
    "empty read mark": (local.READ, b"default", pack([b"", 3])),
    "late": (local.LATE, b"default!" + SORT_TIME, HASH + KEY),
    "mention": (local.MENTION, SORT_TIME, HASH + KEY),
    "mention in a channel": (local.MENTION_IN, b"default!" + SORT_TIME, HASH + KEY),
    "touched": (local.TOUCHED, b"0" * 15 + b"5", pack([b"!a!b", b"!c!d"])),
}
"""For each kind of local row with a form: its name, the rest of its key, and its value."""


@pytest.mark.parametrize("kind", VALID)
def test_a_local_row_of_another_form_is_damaged(kind: str) -> None:
    name, rest, value = VALID[kind]
    key = local.local_key(name, rest)
    assert not is_damaged(key, value)
    assert not is_damaged(local.local_key(b"unknown", rest), value)
    damage = {
        "another value": (key, pack([1, 2])),
        "a longer value": (key, value + b"\x00"),
        "a longer key": (key + b"!", value),
        "a key with a part before": (local.local_key(name, b"x!" + rest), value),
    }
    if value:
        damage |= {"a shorter value": (key, value[:-1]), "no value": (key, b"")}
    assert [what for what, row in damage.items() if not is_damaged(*row)] == []


def test_a_local_row_with_fields_of_other_types_is_damaged() -> None:
    rows = [
        (local.SEED, b"", [5, 5, None]), (local.SEED, b"", [b"s", "5", None]), (local.SEED, b"", [b"s", 5, "x"]),
        (local.SEED, b"", [b"s", 5, None, "x"]), (local.READ, b"c", [SORT_TIME + b"0", 1]), (local.READ, b"c", [b"", b""]),
        (local.TOUCHED, b"0" * 16, b"keys"), (local.TOUCHED, b"0" * 16, [b"key", 1]),
    ]  # fmt: skip
    assert [row for row in rows if not is_damaged(local.local_key(row[0], row[1]), pack(row[2]))] == []
    for fields in (
        [KEY, None, None],
        [1, None, None, b""],
        [HASH, 1, 2, b""],
        [HASH, KEY, "2", b""],
        [HASH, KEY, 2, 1],
    ):
        rejects(lambda value: decode_drop(b"post!", value), pack(fields))
    whole = [KEY, HASH, *BONES, True]
    for number, wrong in enumerate([1, 1, "t", "t", 1, "links"]):
        rejects(lambda value: decode_dropped(HEX, value), pack([*whole[:number], wrong, *whole[number + 1 :]]))
    assert decode_dropped(HEX, pack(whole)).was_held
    key = local.local_key(local.CONSENT, KEY_HEX + b"!" + SORT_TIME)
    for size in (32, 34):
        rejects(lambda value: decode_consent((key, value)), bytes(size))
    with pytest.raises(CorruptStoreError, match=f"the local row consent!{KEY.hex()}!"):
        decode_consent((key, b""))


def test_a_damaged_number_of_a_local_row_counts_as_0() -> None:
    values = (None, b"", b"5", b"x", b"-5", b"9" * 16, b"9" * 17)
    assert [local.number_in(value) for value in values] == [0, 0, 5, 0, 0, 10**16 - 1, 0]
