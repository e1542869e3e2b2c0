"""Posts: known answers, round trips, limits, and decoding of any bytes."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from folders import KNOWN_ANSWERS
from hypothesis import example, given
from hypothesis import strategies as st

from cablestore import (
    DRAFT8,
    LEGACY,
    Block,
    Body,
    Delete,
    Dialect,
    Identity,
    Info,
    Join,
    Leave,
    Moderation,
    Post,
    Role,
    Text,
    Topic,
    Unblock,
    decode_post,
    encode_post,
    limits,
)
from cablestore.errors import ArgumentError, DecodeError, IdentityError
from cablestore.protocol.crypto import is_signed, post_hash
from cablestore.protocol.post import peek_type
from cablestore.protocol.varint import MAX_VARINT, encode_varint, read_varint

VECTORS: dict[str, Any] = json.loads((KNOWN_ANSWERS / "cable.json").read_text())
POSTS = [v for v in [*VECTORS["vectors"], *VECTORS["recorded_from_cable_js"]["vectors"]] if v["kind"] == "post"]
ANN = Identity.derive("posts", "ann")


def write(body: Body, *, links: tuple[bytes, ...] = (), timestamp_ms: int = 80, dialect: Dialect = LEGACY) -> Post:
    return encode_post(body, links=links, timestamp_ms=timestamp_ms, identity=ANN, dialect=dialect)


def unsigned(content: bytes) -> bytes:
    """Return a post with this content and without a valid signature."""
    return bytes(96) + content


# --- known answers ---------------------------------------------------------------------------------


def as_vector(post: Post) -> dict[str, Any]:
    """Return a post as the fields of the vectors."""
    fields: dict[str, Any] = {
        "public_key": post.author.hex(),
        "signature": post.raw[32:96].hex(),
        "links": [link.hex() for link in post.links],
        "post_type": post.type,
        "timestamp": post.timestamp_ms,
    }
    body = post.body
    match body:
        case Text() | Topic() | Join() | Leave():
            pass
        case Delete(hashes):
            return fields | {"hashes": [digest.hex() for digest in hashes]}
        case Info():
            return fields | {"info": _info(body)}
        case _:
            fields |= {"reason": body.reason, "privacy": body.privacy}
    for name in ("channel", "text", "topic", "role", "action", "drop", "undrop", "notify"):
        if hasattr(body, name):
            fields[name] = getattr(body, name)
    if isinstance(body, Role):
        fields["recipient"] = body.recipient.hex()
    if isinstance(body, Moderation | Block | Unblock):
        fields["recipients"] = [key.hex() for key in body.recipients]
    return fields


def _info(body: Info) -> list[list[Any]]:
    return [[key, value.decode() if key == "name" else read_varint(value, 0)[0]] for key, value in body.pairs]


@pytest.mark.parametrize("vector", POSTS, ids=lambda v: str(v.get("case") or v["name"]))
def test_known_posts_are_decoded(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    post = decode_post(raw, LEGACY)
    assert post.type == vector["type_id"]
    assert post.hash.hex() == vector["blake2b_256_of_all_bytes"]
    assert is_signed(raw)
    found = as_vector(post)
    assert found == vector["fields"]


@pytest.mark.parametrize("vector", POSTS, ids=lambda v: str(v.get("case") or v["name"]))
def test_known_posts_are_encoded_byte_for_byte(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    post = decode_post(raw, LEGACY)
    seeds = [VECTORS["parameters"]["values"]["keypair"]["secretKey"][:64], VECTORS["recorded_key"]["seed"]]
    writers = {Identity(bytes.fromhex(seed)).public_key: Identity(bytes.fromhex(seed)) for seed in seeds}
    writer = writers.get(post.author)
    if writer is None:
        pytest.skip("the secret key of this vector is not published")
    again = encode_post(post.body, links=post.links, timestamp_ms=post.timestamp_ms, identity=writer, dialect=LEGACY)
    assert again.raw == raw


@pytest.mark.parametrize(
    "vector", [v for v in POSTS if v["type_id"] != 2], ids=lambda v: str(v.get("case") or v["name"])
)
def test_only_post_info_differs_between_dialects(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    assert decode_post(raw, DRAFT8).body == decode_post(raw, LEGACY).body


def test_posts_inside_known_responses_are_decoded() -> None:
    """Post responses have posts too: length, bytes, until a length of 0."""
    responses = [v for v in VECTORS["vectors"] if v["kind"] == "message" and v["type_id"] == 1]
    responses += [
        v for v in VECTORS["recorded_from_cable_js"]["vectors"] if v["kind"] == "message" and v["type_id"] == 1
    ]
    count = 0
    for vector in responses:
        frame = bytes.fromhex(vector["hex"])
        at = read_varint(frame, read_varint(frame, 0)[1])[1] + 8
        while (size := read_varint(frame, at))[0]:
            start, at = size[1], size[1] + size[0]
            raw = frame[start:at]
            assert is_signed(raw)
            assert decode_post(raw, LEGACY).raw == raw
            count += 1
        assert size[1] == len(frame)
    assert count >= 5


@pytest.mark.parametrize(("value", "encoded"), VECTORS["varint"]["pairs"])
def test_known_varints_are_decoded_and_encoded(value: int, encoded: str) -> None:
    assert encode_varint(value).hex() == encoded
    assert read_varint(bytes.fromhex(encoded), 0) == (value, len(encoded) // 2)


def test_info_in_draft8_counts_its_pairs() -> None:
    body = Info((("name", b"ann"), ("accept-role", b"\x00")))
    legacy, draft8 = write(body), write(body, dialect=DRAFT8)
    pairs = b"\x04name\x03ann" + b"\x0baccept-role\x01\x00"
    assert legacy.raw.endswith(pairs + b"\x00")
    assert draft8.raw.endswith(b"\x02" + pairs)
    assert decode_post(draft8.raw, DRAFT8).body == body
    with pytest.raises(DecodeError):
        decode_post(draft8.raw, LEGACY)


# --- round trips -----------------------------------------------------------------------------------

hashes = st.binary(min_size=32, max_size=32)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=64)
reasons = st.text(st.characters(codec="utf-8"), max_size=128)
users = st.lists(hashes, min_size=1, max_size=16).map(tuple)
flags = st.integers(0, 1)
pairs = st.one_of(
    st.tuples(st.just("name"), st.text(st.characters(codec="utf-8"), min_size=1, max_size=32).map(str.encode)),
    st.tuples(st.just("accept-role"), st.integers(0, MAX_VARINT).map(encode_varint)),
    st.tuples(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=128).filter(
            lambda k: k not in ("name", "accept-role")
        ),
        st.binary(max_size=64),
    ),
)
bodies: st.SearchStrategy[Body] = st.one_of(
    st.builds(Text, names, st.text(st.characters(codec="utf-8"), max_size=1024)),
    st.builds(Delete, st.lists(hashes, max_size=5).map(tuple)),
    st.builds(Info, st.lists(pairs, max_size=4).map(tuple)),
    st.builds(Topic, names, st.text(st.characters(codec="utf-8"), max_size=512)),
    st.builds(Join, names),
    st.builds(Leave, names),
    st.builds(Role, reasons, flags, st.one_of(st.just(""), names), hashes, st.integers(0, 2)),
    st.builds(Moderation, reasons, flags, st.one_of(st.just(""), names), users, st.integers(0, 7)),
    st.builds(Block, reasons, flags, users, flags, flags),
    st.builds(Unblock, reasons, flags, users, flags),
)


@given(
    bodies,
    st.lists(hashes, max_size=3).map(tuple),
    st.integers(0, limits.MAX_TIMESTAMP_MS),
    st.sampled_from((LEGACY, DRAFT8)),
)
def test_encoded_posts_are_decoded_unchanged(
    body: Body, links: tuple[bytes, ...], timestamp_ms: int, dialect: Dialect
) -> None:
    post = write(body, links=links, timestamp_ms=timestamp_ms, dialect=dialect)
    assert (post.body, post.links, post.timestamp_ms, post.author) == (body, links, timestamp_ms, ANN.public_key)
    assert is_signed(post.raw)
    assert post.hash == post_hash(post.raw)
    again = decode_post(post.raw, dialect)
    assert again == post
    assert again.body == body


@given(bodies, st.sampled_from((LEGACY, DRAFT8)), st.data())
def test_a_post_cut_or_extended_anywhere_is_an_error(body: Body, dialect: Dialect, data: st.DataObject) -> None:
    raw = write(body, links=(bytes(32),), dialect=dialect).raw
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(DecodeError) as cut_short:
        decode_post(raw[:cut], dialect)
    assert 0 <= cut_short.value.offset <= cut
    with pytest.raises(DecodeError) as extended:
        decode_post(raw + b"\x00", dialect)
    assert extended.value.offset <= len(raw)


@given(st.integers(0, MAX_VARINT), st.binary(max_size=3), st.binary(max_size=3))
def test_varints_round_trip(value: int, before: bytes, behind: bytes) -> None:
    encoded = encode_varint(value)
    assert read_varint(before + encoded + behind, len(before)) == (value, len(before) + len(encoded))


@given(st.binary(max_size=12))
@example(b"\xff" * 10)
@example(b"\x80" * 9 + b"\x02")
@example(b"\x80" * 9 + b"\x01")
@example(b"\x80\x00")
def test_a_varint_is_its_only_encoding_or_an_error(data: bytes) -> None:
    try:
        value, end = read_varint(data, 0)
    except DecodeError:
        return
    assert encode_varint(value) == data[:end]


# --- rejected posts --------------------------------------------------------------------------------

HEADER = b"\x00\x00\x50"  # no links, post/text, timestamp 80


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "a varint is missing at the end of the data"),
        (b"\x00\x0a\x50\x01a", "unknown post type 10"),
        (b"\x00\xff\x01\x50", "unknown post type 255"),
        (b"\x80\x00\x00\x50\x01a\x00", "not minimal"),
        (b"\x00\x80\x00\x50\x01a\x00", "not minimal"),
        (b"\x00\x00" + b"\x80" * 10 + b"\x01" + b"\x01a\x00", "longer than 10 bytes"),
        (b"\x00\x00" + b"\xff" * 9 + b"\x7f" + b"\x01a\x00", "more than 64 bits"),
        (b"\x00\x00" + encode_varint(limits.MAX_TIMESTAMP_MS + 1) + b"\x01a\x00", "the timestamp is"),
        (HEADER + b"\x05abc", "the channel name is truncated: its length is 5 bytes, but only 3 remain"),
        (HEADER + b"\x00\x00", "the channel name has 0 code points"),
        (HEADER + b"\x02\xc3\x28\x00", "not valid UTF-8"),
        (HEADER + b"\x03\xed\xa0\x80\x00", "not valid UTF-8"),  # a surrogate
        (HEADER + b"\x01a\x01\xff", "the text is not valid UTF-8"),
        (HEADER + b"\x01a\x01xx", "extra bytes after the end of the post/text: 1"),
        (b"\x02" + bytes(32) + b"\x00\x50\x01a\x00", "the list of links is truncated: its length is 2"),
        (b"\xff\xff\xff\xff\x0f" + HEADER, "the list of links is truncated"),
        (b"\x00\x01\x50\x01" + bytes(31), "the list of deletions is truncated: its length is 1"),
        (b"\x00\x02\x50\x04name\x00\x00", "the user name has 0 code points"),
        (b"\x00\x02\x50\x04name\x01\xff\x00", "the user name is not valid UTF-8"),
        (b"\x00\x02\x50\x0baccept-role\x00\x00", "exactly one varint"),
        (b"\x00\x02\x50\x0baccept-role\x02\x00\x00\x00", "exactly one varint"),
        (b"\x00\x02\x50\x01k\x01v", "a varint is missing at the end of the data"),
        (b"\x00\x06\x50\x00\x02\x00" + bytes(32) + b"\x00", "the privacy is 2"),
        (b"\x00\x06\x50\x00\x00\x00" + bytes(32) + b"\x03", "the role is 3"),
        (b"\x00\x06\x50\x00\x00\x00" + bytes(31), "it has 31 bytes, expected 32"),
        (b"\x00\x07\x50\x00\x00\x00\x00\x08", "the action is 8"),
        (b"\x00\x08\x50\x00\x00\x00\x00\x00", "the post has 0 recipients, expected 1 to 16"),
        (b"\x00\x08\x50\x00\x00\x11" + bytes(32 * 17) + b"\x00\x00", "the post has 17 recipients"),
        (b"\x00\x08\x50\x00\x00\x01" + bytes(32) + b"\x02\x00", "the drop flag is 2"),
        (b"\x00\x09\x50\x00\x00\x01" + bytes(32) + b"\x02", "the undrop flag is 2"),
    ],
)
def test_malformed_posts_report_the_position_and_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as error:
        decode_post(unsigned(content), LEGACY)
    assert reason in str(error.value)
    assert 96 <= error.value.offset <= 96 + len(content)
    assert error.value.is_unknown_type == ("unknown post type" in reason)


def test_a_post_that_is_too_large_is_rejected_at_its_start() -> None:
    with pytest.raises(DecodeError, match="the maximum is") as error:
        decode_post(bytes(limits.MAX_POST_SIZE_BYTES + 1), LEGACY)
    assert error.value.offset == 0


@pytest.mark.parametrize("size", [0, 1, 32, 95])
def test_a_post_that_ends_in_its_header_is_rejected(size: int) -> None:
    with pytest.raises(DecodeError, match="the post is truncated: its key and signature"):
        decode_post(bytes(size), LEGACY)


@pytest.mark.parametrize(
    "content",
    [
        encode_varint(2**62) + HEADER,
        HEADER + encode_varint(2**63) + b"a",
        HEADER + b"\x01a" + encode_varint(2**40),
        b"\x00\x01\x50" + encode_varint(2**58),
        b"\x00\x08\x50\x00\x00" + encode_varint(2**59),
    ],
)
def test_numbers_of_a_peer_do_not_cause_allocations(content: bytes) -> None:
    raw = unsigned(content)
    tracemalloc.start()
    try:
        for dialect in (LEGACY, DRAFT8):
            with pytest.raises(DecodeError):
                decode_post(raw, dialect)
        _, peak_size_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_size_bytes < 100_000


@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)
def test_a_post_info_may_have_no_pairs(dialect: Dialect) -> None:
    assert decode_post(write(Info(()), dialect=dialect).raw, dialect).body == Info(())


def test_arguments_of_other_types_are_rejected() -> None:
    raw = write(Text("a", "x")).raw
    others: tuple[Any, ...] = (raw.hex(), bytearray(raw), None, "legacy")
    for wrong in others:
        with pytest.raises(ArgumentError, match="raw"):
            decode_post(wrong, LEGACY)
        with pytest.raises(ArgumentError, match="dialect"):
            decode_post(raw, wrong)


@pytest.mark.parametrize("size", [31, 33])
def test_a_seed_of_another_size_is_rejected(size: int) -> None:
    with pytest.raises(IdentityError, match=f"has {size} bytes, expected 32"):
        Identity(bytes(size))


def test_a_seed_of_another_type_is_rejected_and_not_shown() -> None:
    others: tuple[Any, ...] = ("5e" * 16, bytearray(b"5e" * 16))
    for seed in others:
        with pytest.raises(ArgumentError, match="seed") as error:
            Identity(seed)
        assert "5e5e" not in str(error.value)


def test_an_impossible_count_of_pairs_is_rejected() -> None:
    with pytest.raises(DecodeError, match="list of pairs is truncated"):
        decode_post(unsigned(b"\x00\x02\x50" + encode_varint(2**60)), DRAFT8)


SMILE = "🙂"  # one code point, four bytes


@pytest.mark.parametrize(
    ("fits", "too_long"),
    [
        (Text(SMILE * limits.MAX_CHANNEL_CODEPOINTS, "x"), Text(SMILE * (limits.MAX_CHANNEL_CODEPOINTS + 1), "x")),
        (Text("a", "x" * limits.MAX_TEXT_SIZE_BYTES), Text("a", "x" * (limits.MAX_TEXT_SIZE_BYTES + 1))),
        (Text("a", SMILE * 1024), Text("a", SMILE * 1024 + "x")),
        (Topic("a", SMILE * limits.MAX_TOPIC_CODEPOINTS), Topic("a", SMILE * (limits.MAX_TOPIC_CODEPOINTS + 1))),
        (
            Info.of(name=SMILE * limits.MAX_USER_NAME_CODEPOINTS),
            Info.of(name=SMILE * (limits.MAX_USER_NAME_CODEPOINTS + 1)),
        ),
        (
            Info(((SMILE * limits.MAX_INFO_KEY_CODEPOINTS, b""),)),
            Info(((SMILE * (limits.MAX_INFO_KEY_CODEPOINTS + 1), b""),)),
        ),
        (
            Info((("k", bytes(limits.MAX_INFO_VALUE_SIZE_BYTES)),)),
            Info((("k", bytes(limits.MAX_INFO_VALUE_SIZE_BYTES + 1)),)),
        ),
        (
            Block(SMILE * limits.MAX_REASON_CODEPOINTS, 0, (bytes(32),), 0, 0),
            Block(SMILE * (limits.MAX_REASON_CODEPOINTS + 1), 0, (bytes(32),), 0, 0),
        ),
        (
            Unblock("", 0, (bytes(32),) * limits.MAX_RECIPIENTS, 0),
            Unblock("", 0, (bytes(32),) * (limits.MAX_RECIPIENTS + 1), 0),
        ),
        (Delete((bytes(32),) * 8_000), Delete((bytes(32),) * (limits.MAX_POST_SIZE_BYTES // 32))),
    ],
)
@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)
def test_limits_are_checked_in_code_points_and_bytes(fits: Body, too_long: Body, dialect: Dialect) -> None:
    assert write(fits, dialect=dialect).body == fits
    with pytest.raises(ArgumentError, match=r"cannot write this post.*(the maximum is|expected)"):
        write(too_long, dialect=dialect)


@pytest.mark.parametrize(
    "body",
    [Text("", "x"), Join(""), Info((("", b""),)), Info((("name", b""),)), Text("a", "\ud800"), Block("", 0, (), 0, 0)],
)
def test_invalid_bodies_are_rejected_with_a_reason(body: Body) -> None:
    with pytest.raises(ArgumentError, match="post/"):
        write(body)


@pytest.mark.parametrize("timestamp_ms", [-1, limits.MAX_TIMESTAMP_MS + 1, 2**64])
def test_timestamps_out_of_range_are_rejected(timestamp_ms: int) -> None:
    with pytest.raises(ArgumentError, match=r"cannot write .*(timestamp|varint is 0 to)"):
        write(Text("a", "x"), timestamp_ms=timestamp_ms)


def test_draft8_folds_the_case_of_channels_and_legacy_does_not() -> None:
    body = Text("cAbAL Straße İ ΟΔΟΣ", "x")
    assert write(body).channel == "cAbAL Straße İ ΟΔΟΣ"
    folded = write(body, dialect=DRAFT8)
    assert folded.channel == "cabal straße İ οδοσ"
    assert folded.body == body


@given(st.text(max_size=64))
def test_folding_case_is_idempotent_and_never_longer(name: str) -> None:
    folded = DRAFT8.channel_id(name)
    assert DRAFT8.channel_id(folded) == folded
    assert len(folded) == len(name)


@given(st.integers(0, 500), st.integers(0, 255))
def test_a_changed_byte_invalidates_the_signature(place: int, value: int) -> None:
    raw = bytearray(write(Text("default", "hello")).raw)
    place %= len(raw)
    if raw[place] != value:
        raw[place] = value
        assert not is_signed(bytes(raw))


@pytest.mark.parametrize("links", [0, 1, 127, 128, 129, 256])
def test_the_type_is_read_after_any_number_of_links(links: int) -> None:
    """The encoding of the number has one byte up to 127, and two from 128 on."""
    for body in (Text("c", "x"), Join("c"), Delete((bytes(32),))):
        post = write(body, links=tuple(bytes([number % 256]) * 32 for number in range(links)))
        assert peek_type(post.raw) == post.type
        assert peek_type(post.raw[: 97 + (links > 127) + 32 * links]) is None
