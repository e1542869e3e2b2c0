"""Fuzz tests: any bytes are decoded to a value or raise the decoder's error.

A decoded value is encoded to the same bytes. There are ten million inputs in a soak, two hundred thousand in a normal
run. The seed is printed with a failure.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from io import BytesIO
from pathlib import PurePath

import pytest
from folders import KNOWN_ANSWERS
from fuzzing import INTERESTING, SOAK, VARINTS, run

from cablestore import DRAFT8, LEGACY, CableStore, CableStoreError, Dialect, StoreOptions, Tombstone, decode_post
from cablestore.errors import CorruptStoreError, DecodeError
from cablestore.index.meta import decode_sizes
from cablestore.index.reader import decode_tombstone
from cablestore.index.view import decode_counts
from cablestore.irc.days import stamp_of_words
from cablestore.irc.encodings import encoding_of, read_lines
from cablestore.irc.formats import FORMATS
from cablestore.irc.naming import conversation_of
from cablestore.protocol.body import write_body
from cablestore.protocol.fields import counted
from cablestore.protocol.keys import escape, parse_hex, unescape
from cablestore.protocol.varint import encode_varint, read_varint
from cablestore.store.key_file import parse_identity

INPUTS = 10_000_000 if SOAK else 200_000
VECTORS = json.loads((KNOWN_ANSWERS / "cable.json").read_text())
SEEDS = [
    bytes.fromhex(v["hex"])
    for v in [*VECTORS["vectors"], *VECTORS["recorded_from_cable_js"]["vectors"]]
    if v["kind"] == "post"
]


def mutated(rng: random.Random) -> bytes:
    """Return a known post with one to four damages after its signature, or noise."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(400))
    raw = bytearray(rng.choice(SEEDS))
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(96, len(raw)) if len(raw) > 97 else 96
        match rng.randrange(6):
            case 0:
                raw[at : at + 1] = bytes((rng.choice(INTERESTING),))
            case 1:
                raw[at : at + 1] = rng.choice(VARINTS)
            case 2:
                del raw[at : at + rng.randrange(1, 40)]
            case 3:
                raw[at:at] = rng.randbytes(rng.randrange(1, 40))
            case 4:
                other = rng.choice(SEEDS)
                raw[at:] = other[rng.randrange(96, len(other)) :]
            case _:
                raw[at : at + 1] = bytes((raw[at] ^ (1 << rng.randrange(8)) if at < len(raw) else 0,))
    return bytes(raw)


def check_post(raw: bytes, dialect: Dialect) -> bool:
    """Check that the result is a post with the same bytes, or a DecodeError with a valid position."""
    try:
        post = decode_post(raw, dialect)
    except DecodeError as error:
        return _is_within(error, raw)
    header = counted(post.links) + encode_varint(post.type) + encode_varint(post.timestamp_ms)
    assert raw[96:] == header + write_body(post.body, dialect)
    assert post.channel is None or len(post.channel) <= 64
    return True


def _is_within(error: DecodeError, raw: bytes) -> bool:
    assert 0 <= error.offset <= len(raw)
    assert error.reason
    return False


@pytest.mark.thorough
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)
def test_mutated_posts_are_decoded_or_rejected(dialect: Dialect) -> None:
    decoded = 0

    def work(rng: random.Random) -> None:
        nonlocal decoded
        decoded += check_post(mutated(rng), dialect)

    run(work, INPUTS // 2)
    assert decoded > INPUTS // 200  # the mutations pass the first check


@pytest.mark.timeout(7200)
def test_random_varints_are_decoded_or_rejected() -> None:
    decoded = 0

    def work(rng: random.Random) -> None:
        nonlocal decoded
        data = (
            rng.randbytes(rng.randrange(12)) if rng.random() < 0.5 else b"\xff" * rng.randrange(11) + rng.randbytes(2)
        )
        with contextlib.suppress(DecodeError):
            value, end = read_varint(data, 0)
            assert encode_varint(value) == data[:end]
            decoded += 1

    run(work, INPUTS // 10)
    assert decoded > INPUTS // 100


@pytest.mark.timeout(7200)
def test_random_hex_and_keys_are_parsed_or_rejected() -> None:
    digits = "0123456789abcdefABCDEF xyzü\x00\ud800"
    read = 0

    def work(rng: random.Random) -> None:
        nonlocal read
        known = digits[: rng.choice((22, len(digits)))]
        text = "".join(rng.choices(known, k=rng.choice((0, 1, 31, 32, 63, 64, 65, 128))))
        with contextlib.suppress(CableStoreError):
            assert parse_hex(text, "a hash") == bytes.fromhex(text)
            read += 1
        with contextlib.suppress(CableStoreError):
            parse_identity(text)

    run(work, INPUTS // 100)
    assert read > INPUTS // 2_000


@pytest.mark.timeout(7200)
def test_mutated_rows_of_the_database_are_decoded_or_rejected() -> None:
    stone = Tombstone(bytes(32), bytes(32), 1, bytes(32)).encode()
    decoded = 0

    def work(rng: random.Random) -> None:
        nonlocal decoded
        value = bytearray(stone)
        for _ in range(rng.randrange(4)):
            value[rng.randrange(len(value))] = rng.randrange(256)
        data = bytes(value) if rng.random() < 0.7 else rng.randbytes(rng.randrange(60))
        key = b"!chat!deleted!" + rng.choice((b"00" * 32 + b"!" + b"11" * 32, rng.randbytes(8), b"!", b""))
        for decode in (lambda: decode_tombstone((key, data)), lambda: decode_counts(data), lambda: decode_sizes(data)):
            with contextlib.suppress(CorruptStoreError):
                decode()
                decoded += 1

    run(work, INPUTS // 20)
    assert decoded > INPUTS // 200


@pytest.mark.timeout(7200)
def test_random_lines_of_logs_are_parsed_or_ignored() -> None:
    pieces = ["[12:34] ", "[99:99] ", "<nick>", "<", ">", "*** ", "* ", "=== ", " joined", " left", "is now known as ", "changes topic to: ",
              "[user@host]  has joined #c", "sets mode: ", "a", " ", "é", "\x00", "was kicked by x"]  # fmt: skip
    understood = 0

    def work(rng: random.Random) -> None:
        nonlocal understood
        line = "".join(rng.choices(pieces, k=rng.randrange(8)))
        for known in FORMATS:
            understood += known.parse(line) is not None

    run(work, INPUTS // 50)
    assert understood > INPUTS // 500


@pytest.mark.timeout(7200)
def test_random_bytes_of_logs_are_read() -> None:
    """Any bytes have an encoding that can decode them, and formats and day lines accept or reject each line."""
    pieces = [b"[12:34] <ann> ", "приве́т".encode(), "приве́т".encode("cp1251", "ignore"), "日本".encode("cp932"), b"\xff\xfe",
              b"\x00", b"\n", b"\r\n", b"\x0304,5", b"--- Day changed ", "вторник, 1 мая 2013".encode(), b"2013", b"a" * 99]  # fmt: skip
    names = ["libera", "#garden", "#", "irc.libera.#garden.weechatlog", "2013-01-07.log", "é", "ann.log", "."]
    read = 0

    def work(rng: random.Random) -> None:
        nonlocal read
        data = b"".join(rng.choices(pieces, k=rng.randrange(20))) + rng.randbytes(rng.randrange(5))
        for line in read_lines(BytesIO(data), encoding_of(data), Counter()):
            read += line is not None
            stamp_of_words(line or "")
            for known in FORMATS:
                known.parse(line or "")
        path = PurePath("/logs", *rng.choices(names, k=1 + rng.randrange(4)))
        assert conversation_of(path, PurePath("/logs"), "garden").name

    run(work, INPUTS // 200)
    assert read > INPUTS // 200


def test_any_text_is_restored_from_its_escaped_form() -> None:
    def work(rng: random.Random) -> None:
        text = "".join(
            chr(rng.choice((rng.randrange(64), rng.randrange(0x250), rng.randrange(0xE000, 0x10FFFF))))
            for _ in range(8)
        )
        assert unescape(escape(text)) == text

    run(work, 5_000)


@pytest.mark.timeout(7200)
def test_ingest_has_a_verdict_for_any_bytes_and_leaves_a_valid_store() -> None:
    with CableStore.in_memory(options=StoreOptions(clock=lambda: 2**52)) as store:
        for batch in range(INPUTS // 5_000):
            rng = random.Random(batch)
            posts = [mutated(rng) for _ in range(100)]
            outcomes = store.ingest(posts, verify=False)  # otherwise nearly all signatures would be invalid
            assert len(outcomes) == len(posts)
            if batch % 200 == 0:
                assert store.check().is_clean
        assert store.check().is_clean
        assert sum(store.stats().posts.values()) > 0
