"""Damage to any byte of an export is detected, and only errors of this package are raised."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blake3
import msgpack
import pytest
from exporting import copied, in_memory, scratch_folder, with_manifest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import engine_of
from msgspec import structs
from people import ANN

from cablestore import LEGACY, Tombstone, limits, zstd
from cablestore.errors import ExportError
from cablestore.export import Filters, Segment, read_manifest, verify_export
from cablestore.export.manifest import read_arrivals, read_consents, read_posts, read_tombstones, segment_name
from cablestore.export.segment import SegmentWriter, read_segment
from cablestore.export.writer import ExportWriter, post_record
from cablestore.files import folder_of
from cablestore.index.packing import pack
from cablestore.protocol.acts import Consent


def assert_found(folder: Path, name: str) -> None:
    report = verify_export(folder)
    assert not report.is_clean
    assert name in {problem.file for problem in report.problems}


@settings(max_examples=300)
@given(st.data())
def test_any_flipped_bit_is_detected(whole: Path, data: st.DataObject) -> None:
    with scratch_folder() as scratch:
        folder = copied(whole, Path(scratch) / "copy")
        path = data.draw(st.sampled_from(sorted(folder.iterdir())))
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        assert_found(folder, path.name)


def test_any_missing_or_truncated_file_is_detected(whole: Path, tmp_path: Path) -> None:
    for number, name in enumerate(sorted(path.name for path in whole.iterdir())):
        for size_bytes in (None, 0, 1, (whole / name).stat().st_size - 1):
            folder = copied(whole, tmp_path / f"{number} {size_bytes}")
            if size_bytes is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes((whole / name).read_bytes()[:size_bytes])
            if (name, size_bytes) == ("manifest.json", None):
                with pytest.raises(ExportError, match=r"is not an export: manifest\.json is missing"):
                    verify_export(folder)
            else:
                assert_found(folder, name)


@pytest.mark.parametrize(
    ("change", "is_damaged", "message"),
    [
        (lambda f: f.update(format=3), False, "format 3, but this version of cablestore reads 1 and 2"),
        (lambda f: f.update(dialect="klingon"), False, "unknown dialect 'klingon', expected one of legacy, draft8"),
        (
            lambda f: f["segments"][0].update(file="../posts-000000.seg"),
            True,
            "expected posts-000000.seg",
        ),
        (lambda f: f["segments"].reverse(), True, "expected posts-000000.seg"),
        (lambda f: f["segments"][0].update(items=1), True, "inconsistent fields"),
        (
            lambda f: f["segments"][0].update(posts={"unblock": 0} | f["segments"][0]["posts"]),
            True,
            "inconsistent fields",
        ),
        (
            lambda f: f["segments"][0].update(items=True),
            True,
            r"segments\[0\]\.items: expected whole number, got boolean",
        ),
        (
            lambda f: f["segments"][0].update(extra=1),
            True,
            r"segments\[0\]: object contains unknown field extra",
        ),
        (lambda f: f.update(tombstones=0), True, "do not match its segments"),
        (lambda f: f.update(more=0), True, "do not match its segments"),
        (lambda f: f.pop("views"), True, "missing required field views"),
    ],
)
def test_a_changed_manifest_is_rejected(
    copy: Path, change: Callable[[dict[str, Any]], object], is_damaged: bool, message: str
) -> None:
    with_manifest(copy, change)
    with pytest.raises(ExportError, match=message) as caught:
        read_manifest(copy)
    assert "manifest.json" in str(caught.value)
    assert ("manifest.json is damaged: " in str(caught.value)) is is_damaged
    if is_damaged:
        assert_found(copy, "manifest.json")
    else:
        with pytest.raises(ExportError, match=message):
            verify_export(copy)


@pytest.mark.parametrize(("name", "attribute"), [("start_ms", "after_ms"), ("end_ms", "before_ms")])
@pytest.mark.parametrize("at_ms", [-1, 0, limits.MAX_TIMESTAMP_MS, limits.MAX_TIMESTAMP_MS + 1])
def test_a_filter_with_an_impossible_time_is_rejected(copy: Path, name: str, attribute: str, at_ms: int) -> None:
    with_manifest(copy, lambda fields: fields.update(filters=Filters().fields() | {name: at_ms}))
    if 0 <= at_ms <= limits.MAX_TIMESTAMP_MS:
        assert getattr(read_manifest(copy).filters, attribute) == at_ms
        return
    with pytest.raises(ExportError, match=rf"filters\.{name}: expected whole number"):
        read_manifest(copy)


def rewritten(
    folder: Path, name: str, *blocks: list[Any], kind: str | None = None, items: int | None = None
) -> Segment:
    """Replace a segment, and its entry in the manifest as far as checksums are concerned."""
    with SegmentWriter(folder_of(folder).file(name), 1) as writer:
        for block in blocks:
            writer.write_packed(pack(block))
        written = writer.close()
    [entry] = [segment for segment in read_manifest(folder).segments if segment.file == name]
    return structs.replace(
        entry,
        kind=entry.kind if kind is None else kind,
        items=sum(map(len, blocks)) if items is None else items,
        size_bytes=written.size_bytes,
        blake3=written.blake3,
        content_blake3=written.content_blake3,
    )


STATEMENT: list[Any] = [bytes(32), 5, bytes(32), True]


WRONG_STATEMENTS: list[Any] = [
    b"text",
    STATEMENT[:3],
    [*STATEMENT, 1],
    [bytes(31), *STATEMENT[1:]],
    [bytes(33), *STATEMENT[1:]],
    [bytes(32), -1, *STATEMENT[2:]],
    [bytes(32), limits.MAX_TIMESTAMP_MS + 1, *STATEMENT[2:]],
    [bytes(32), True, *STATEMENT[2:]],
    [bytes(32), 5, bytes(31), True],
    [bytes(32), 5, bytes(33), True],
    [bytes(32), 5, bytes(32), 1],
]


def test_an_item_that_is_not_a_statement_is_damage(copy: Path) -> None:
    def read(item: Any) -> list[Consent]:
        segment = structs.replace(rewritten(copy, "tombstones-000000.seg", [item]), kind="consents")
        return [found for block in read_consents(copy, segment) for found in block]

    for at_ms in (0, limits.MAX_TIMESTAMP_MS):
        assert read([bytes(32), at_ms, bytes(32), False]) == [
            Consent(bytes(32), bytes(32), at_ms, False, is_claim=True)
        ]
    for item in WRONG_STATEMENTS:
        with pytest.raises(ExportError, match=r"tombstones-000000\.seg is damaged: .* not a statement about roles"):
            read(item)


def test_a_segment_has_the_kind_and_the_number_of_items_of_its_entry(copy: Path) -> None:
    tombstones, posts = read_manifest(copy).tombstone_segments[0], read_manifest(copy).post_segments[0]
    for read, other in ((read_posts, tombstones), (read_tombstones, posts), (read_consents, posts)):
        with pytest.raises(ValueError, match=f"{other.file} contains {other.kind}, expected"):
            list(read(copy, other))
    for items in (posts.items - 1, posts.items + 1):
        with pytest.raises(ExportError, match=f"it contains {posts.items} posts, expected {items} as in the manifest"):
            list(read_posts(copy, structs.replace(posts, items=items)))
    raw = bytes(limits.MAX_POST_SIZE_BYTES)
    assert list(read_posts(copy, rewritten(copy, posts.file, [raw], []))) == [[raw], []]
    for wrong in (raw + b"x", "text", [raw]):
        with pytest.raises(ExportError, match="not a post"):
            list(read_posts(copy, rewritten(copy, posts.file, [b"post", wrong])))


def test_the_order_of_items_begins_anew_for_each_kind(tmp_path: Path) -> None:
    post = ANN.text("default", "x")
    writer = ExportWriter(tmp_path, LEGACY, {})
    writer.add_records([[post_record(post.timestamp_ms, post.hash, post.raw, post.type)]])
    writer.add_tombstones([Tombstone(bytes(32), ANN.key, 1, post.hash)])
    writer.add_consents([Consent(bytes(32), post.hash, 1, accepts=False)])
    writer.finish()
    report = verify_export(tmp_path)
    assert (report.problems, report.posts, report.tombstones) == ([], 1, 1)


def test_a_segment_that_ends_within_a_block_is_damage(tmp_path: Path) -> None:
    for number, content in enumerate([b"\x92\x01", b"\xdd"]):
        file = folder_of(tmp_path).file(f"{number}.seg")
        with SegmentWriter(file, 1) as writer:
            writer.write_packed(pack([1]) + content)
            writer.close()
        with pytest.raises(ExportError, match="ends within a block"):
            list(read_segment(file))
        with pytest.raises(ExportError, match=r"is damaged: its BLAKE3 is [0-9a-f]{64}, expected 00"):
            list(read_segment(file, "0" * 64))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.thorough
@settings(max_examples=200)
@given(st.data())
def test_any_manifest_is_read_or_raises_an_export_error(whole: Path, data: st.DataObject) -> None:
    """Values are replaced anywhere under a valid checksum, or the file is garbage."""
    with scratch_folder() as scratch:
        folder = copied(whole, Path(scratch) / "copy")

        def change(fields: dict[str, Any]) -> None:
            place: Any = fields
            while True:
                key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
                if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
                    place[key] = data.draw(json_values)
                    return
                place = place[key]

        if data.draw(st.integers(0, 4)):
            with_manifest(folder, change)
        else:
            (folder / "manifest.json").write_bytes(data.draw(st.binary() | json_values.map(json.dumps).map(str.encode)))
        (folder / "arrivals.json").write_text(json.dumps(data.draw(json_values)))
        for read in (read_manifest, read_arrivals, verify_export):
            with contextlib.suppress(ExportError):
                read(folder)


def test_deeply_nested_json_is_rejected(copy: Path) -> None:
    for name, read in (("manifest.json", read_manifest), ("arrivals.json", read_arrivals)):
        (copy / name).write_text("[" * 200_000)
        with pytest.raises(ExportError, match=name):
            read(copy)


items = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**63) | st.binary(max_size=40) | st.binary(min_size=32, max_size=32),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)
values = st.tuples(
    st.integers(-1, 2**64 - 1) | st.booleans(),
    st.binary(min_size=31, max_size=32),
    st.none()
    | st.tuples(
        st.integers(-1, 11),
        st.integers(-1, 2**64 - 1),
        st.none() | st.text(max_size=70),
        st.lists(st.binary(min_size=31, max_size=32) | st.integers(0, 1), max_size=2),
    ),
).map(msgpack.packb)
stones_like = st.tuples(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), values)


@given(st.lists(st.lists(items | stones_like, min_size=1, max_size=3) | items, max_size=3), st.booleans(), st.binary())
def test_any_segment_is_read_or_raises_an_export_error(blocks: list[Any], is_posts: bool, tail: bytes) -> None:
    """Blocks have any bytes and a valid checksum. Only valid posts or tombstones are read."""
    with scratch_folder() as scratch:
        name = segment_name("posts" if is_posts else "tombstones", 0)
        data = b"".join(zstd.compress(msgpack.packb(block)) for block in blocks) + tail
        (Path(scratch) / name).write_bytes(data)
        count = sum(len(block) for block in blocks if isinstance(block, list))
        segment = Segment(
            name, "posts" if is_posts else "tombstones", count, len(data), blake3.blake3(data).hexdigest(), "0" * 64
        )
        try:
            if is_posts:
                assert all(isinstance(raw, bytes) for block in read_posts(Path(scratch), segment) for raw in block)
                return
            stones = [stone for block in read_tombstones(Path(scratch), segment) for stone in block]
        except ExportError:
            return
        with in_memory(LEGACY) as store, engine_of(store).transaction() as transaction:
            plan = transaction.plan()
            for stone in stones:
                plan.add_tombstone(stone)
            transaction.commit(plan.finish(), sync=False)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda posts: posts.reverse(), "is out of order"),
        (lambda posts: posts.append(posts[-1]), "is out of order"),
        (lambda posts: posts.insert(0, b"no post"), "cannot decode a post"),
        (lambda posts: posts.insert(0, bytes(limits.MAX_POST_SIZE_BYTES)), "cannot decode a post"),
        (lambda posts: posts.insert(0, bytes(limits.MAX_POST_SIZE_BYTES + 1)), "item that is not a post"),
        (lambda posts: posts.insert(0, "text"), "item that is not a post"),
        (lambda posts: posts.insert(0, 5), "item that is not a post"),
        (lambda posts: posts.pop(), "counts, first or last"),
    ],
)
def test_posts_that_differ_from_the_manifest_are_rejected(
    copy: Path, spoil: Callable[[list[Any]], object], message: str
) -> None:
    """A segment is written again with other posts, under valid checksums."""
    first = read_manifest(copy).segments[0]
    [posts] = map(list[Any], read_posts(copy, first))
    spoil(posts)
    with SegmentWriter(copy / first.file, 1) as writer:
        writer.write_packed(pack(posts))
        written = writer.close()

    def adapt(fields: dict[str, Any]) -> None:
        more = len(posts) - first.items
        entry = fields["segments"][0]
        entry.update(items=len(posts), size_bytes=written.size_bytes, blake3=written.blake3)
        entry.update(content_blake3=written.content_blake3)
        kind = next(iter(entry["posts"]))
        entry["posts"][kind] += more
        fields["posts"][kind] += more
        sums = b"".join(bytes.fromhex(segment["content_blake3"]) for segment in fields["segments"])
        fields["content_blake3"] = blake3.blake3(sums).hexdigest()

    with_manifest(copy, adapt)
    report = verify_export(copy)
    assert any(message in problem.what and problem.file == first.file for problem in report.problems), report.problems


@pytest.mark.parametrize("step", [-1, 1])
@pytest.mark.parametrize("at", [0, -1])
def test_a_wrong_file_size_in_the_manifest_is_detected(copy: Path, at: int, step: int) -> None:
    name = read_manifest(copy).segments[at].file

    def adapt(fields: dict[str, Any]) -> None:
        fields["segments"][at]["size_bytes"] += step

    with_manifest(copy, adapt)
    assert_found(copy, name)


def test_an_import_of_a_damaged_export_names_the_file(copy: Path) -> None:
    name = read_manifest(copy).segments[1].file
    (copy / name).write_bytes(bytes(10))
    with in_memory(LEGACY) as store, pytest.raises(ExportError, match=name):
        store.import_exports([copy])
