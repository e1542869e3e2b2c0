"""Content ids: known answers of Codex nodes, trees of data in arbitrary parts, and rejection of other strings."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from hashlib import sha256
from typing import Any

import pytest
from content_nodes import tree_cid
from folders import KNOWN_ANSWERS
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cablestore import limits
from cablestore.archive.format.cid import (
    BLOCK_SIZE_BYTES,
    CODEC_BLOCK,
    CODEC_MANIFEST,
    CODEC_TREE,
    Cid,
    DatasetHasher,
    DatasetManifest,
    ManifestFormat,
    leaf_of,
    manifest_cid,
)
from cablestore.errors import ArchiveError

VECTORS: dict[str, Any] = json.loads((KNOWN_ANSWERS / "codex.json").read_text())
OBSERVED = VECTORS["observed_in_real_codex_runs"]
DERIVED = VECTORS["derived_here_not_observed"]
FILENAMES = st.one_of(st.none(), st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=60))
MEDIA_TYPES = st.one_of(st.none(), st.from_regex(r"[a-z]{1,9}/[a-z.+-]{1,20}", fullmatch=True).filter(lambda t: t.split("/")[1][0].isalpha()))  # fmt: skip
DIGESTS = st.binary(min_size=32, max_size=32)


def hashed(data: bytes, cuts: list[int] | None = None) -> tuple[Cid, bytes]:
    """Return the tree and the joined leaves of bytes that arrive in these parts."""
    hasher = DatasetHasher()
    leaves, at = b"", 0
    for cut in [*sorted(cuts or []), len(data)]:
        leaves += hasher.update(data[at:cut])
        at = max(at, cut)
    tree, last = hasher.finish()
    assert hasher.size_bytes == len(data)
    return tree, leaves + last


def root_by_layers(leaves: list[bytes]) -> bytes:
    """Return the root layer by layer, by a method other than that of the tested code."""
    layer, is_bottom = leaves, True
    while len(layer) > 1 or is_bottom:
        above = []
        for i in range(0, len(layer), 2):
            key = 1 if is_bottom else 0
            right = layer[i + 1] if i + 1 < len(layer) else bytes(32)
            key += 2 if i + 1 >= len(layer) else 0
            above.append(sha256(layer[i] + right + bytes([key])).digest())
        layer, is_bottom = above, False
    return layer[0]


# --- known answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", OBSERVED, ids=lambda vector: vector["manifest_generation"] + vector["data_utf8"][:8])
def test_ids_equal_those_of_real_nodes(vector: dict[str, Any]) -> None:
    manifest = DatasetManifest.decode(bytes.fromhex(vector["manifest_hex"]))
    assert manifest.encode().hex() == vector["manifest_hex"]
    assert str(manifest_cid(manifest)) == vector["manifest_cid"]
    assert str(manifest.tree) == vector["tree_cid"]
    assert (manifest.filename, manifest.mimetype) == (vector["filename"], vector["mimetype"])
    assert manifest.manifest_format == vector["manifest_generation"]
    data = vector["data_utf8"].encode()
    assert str(hashed(data)[0]) == vector["tree_cid"]
    assert len(data) == manifest.dataset_size_bytes


def test_the_tree_id_equals_that_of_another_fork() -> None:
    for vector in VECTORS["tree_cid_only"]:
        assert str(hashed(vector["data_utf8"].encode())[0]) == vector["tree_cid"]


def test_roots_equal_those_of_the_nim_codex_tests() -> None:
    for vector in VECTORS["merkle_roots_from_nim_codex_test_shapes"]:
        leaves = [b"%032d" % i for i in range(1, vector["n"] + 1)]
        assert tree_cid(leaves).digest.hex() == vector["root_hex"]


@pytest.mark.parametrize("vector", DERIVED, ids=lambda vector: str(vector["size"]))
def test_datasets_of_several_blocks_have_the_derived_ids(vector: dict[str, Any]) -> None:
    data = bytes((31 * i + 7) & 255 for i in range(vector["size"]))
    tree, leaves = hashed(data)
    assert str(tree) == vector["tree_cid"]
    assert len(leaves) == 32 * vector["blocks"]
    manifest = DatasetManifest(
        tree, len(data), vector["filename"], vector["mimetype"], ManifestFormat(vector["generation"])
    )
    assert str(manifest_cid(manifest)) == vector["manifest_cid"]
    assert manifest.block_count == vector["blocks"]


def test_manifests_of_the_second_logos_generation_match_its_source() -> None:
    tree, _ = hashed(b"payload")
    manifest = DatasetManifest(tree, 7, "a", "b/c", ManifestFormat.LOGOS2)
    inner = (
        bytes.fromhex("0800 1226") + tree.encode() + bytes.fromhex("18808004 2007 28829a03 3012 3802 420161 4a03622f63")
    )
    assert manifest.encode() == bytes([0x0A, len(inner)]) + inner
    assert DatasetManifest.decode(manifest.encode()) == manifest


# --- trees -------------------------------------------------------------------------------------------


@given(
    data=st.one_of(st.binary(min_size=1, max_size=300), st.builds(lambda b, n: (b * n)[:n], st.binary(min_size=1, max_size=9), st.integers(1, 400_000))),
    cuts=st.lists(st.integers(0, 400_000), max_size=8),
)  # fmt: skip
@example(data=bytes(3 * BLOCK_SIZE_BYTES), cuts=[BLOCK_SIZE_BYTES, BLOCK_SIZE_BYTES, 2 * BLOCK_SIZE_BYTES - 1])
@settings(max_examples=150)
def test_the_id_of_a_dataset_does_not_depend_on_its_chunks(data: bytes, cuts: list[int]) -> None:
    tree, leaves = hashed(data, cuts)
    blocks = [data[at : at + BLOCK_SIZE_BYTES] for at in range(0, len(data), BLOCK_SIZE_BYTES)]
    expected = [sha256(block.ljust(BLOCK_SIZE_BYTES, b"\0")).digest() for block in blocks]
    assert leaves == b"".join(expected)
    assert tree == Cid(CODEC_TREE, root_by_layers(expected)) == tree_cid(expected)


@pytest.mark.parametrize("count", [*range(1, 40), 63, 64, 65, 127, 128, 129, 1000, 4097])
def test_roots_of_any_number_of_leaves_equal_their_definition(count: int) -> None:
    leaves = [sha256(b"%d" % i).digest() for i in range(count)]
    assert tree_cid(leaves).digest == root_by_layers(leaves)


def test_an_empty_dataset_has_no_id() -> None:
    with pytest.raises(ArchiveError, match="at least one byte"):
        DatasetHasher().finish()
    with pytest.raises(ArchiveError, match="at least one byte"):
        tree_cid([])


def test_the_memory_of_hashing_does_not_depend_on_the_size() -> None:
    part = bytes(range(256)) * 4096

    def peak(parts: int) -> int:
        tracemalloc.start()
        hasher = DatasetHasher()
        for _ in range(parts):
            hasher.update(part)
        hasher.finish()
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    assert peak(64) < peak(4) + 4_000


# --- text and bytes of ids ---------------------------------------------------------------------------


@given(st.sampled_from([CODEC_MANIFEST, CODEC_BLOCK, CODEC_TREE]), DIGESTS)
@example(CODEC_BLOCK, bytes(32))
@example(CODEC_TREE, b"\xff" * 32)
def test_ids_survive_a_round_trip_through_strings_and_bytes(codec: int, digest: bytes) -> None:
    cid = Cid(codec, digest)
    assert Cid.parse(str(cid)) == cid == Cid.decode(cid.encode())
    assert len(str(cid)) == 52
    assert len(cid.encode()) == 38


@given(st.one_of(st.text(max_size=60), st.from_regex(r"z[1-9A-HJ-NP-Za-km-z]{51}", fullmatch=True)))
@example("")
@example("z" + "z" * 51)
@example("z" + "1" * 51)
@example("zDvZRwzmBEaJ338xaCHbKbGAJ4X41YyccS6eyorrYBbmPnWuLxC0")
@example("QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnFiHrznzPFL")
def test_a_string_is_its_id_or_rejected(text: str) -> None:
    with suppress(ArchiveError):
        assert str(Cid.parse(text)) == text


def test_the_leaf_of_a_block_equals_that_of_the_padded_block() -> None:
    assert leaf_of(b"a") == leaf_of(b"a\0") == sha256(b"a".ljust(BLOCK_SIZE_BYTES, b"\0")).digest()
    assert leaf_of(b"a") != leaf_of(b"b")
    for size in (0, BLOCK_SIZE_BYTES + 1):
        with pytest.raises(ArchiveError, match="invalid block size"):
            leaf_of(bytes(size))


@given(st.binary(max_size=45))
def test_random_bytes_are_rejected_as_ids(data: bytes) -> None:
    with pytest.raises(ArchiveError):
        Cid.decode(data)


# --- manifests ---------------------------------------------------------------------------------------


@given(DIGESTS, st.integers(1, limits.MAX_DATASET_SIZE_BYTES), FILENAMES, MEDIA_TYPES, st.sampled_from(ManifestFormat))
def test_manifests_of_all_generations_survive_a_round_trip(
    digest: bytes, size_bytes: int, filename: str | None, mimetype: str | None, manifest_format: ManifestFormat
) -> None:
    manifest = DatasetManifest(Cid(CODEC_TREE, digest), size_bytes, filename, mimetype, manifest_format)
    found = DatasetManifest.decode(manifest.encode())
    assert found.encode() == manifest.encode()
    assert (found.tree, found.dataset_size_bytes) == (manifest.tree, size_bytes)
    assert (found.filename, found.mimetype) == (filename, mimetype)
    if filename or mimetype or manifest_format is ManifestFormat.LOGOS2:
        assert found.manifest_format is manifest_format


@given(st.sampled_from(OBSERVED), st.data())
def test_a_changed_manifest_is_decoded_without_loss_or_rejected(vector: dict[str, Any], data: st.DataObject) -> None:
    whole = bytes.fromhex(vector["manifest_hex"])
    at, to = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.binary(max_size=3))
    changed = whole[:at] + to + whole[at + data.draw(st.integers(0, 2)) :]
    assume(changed != whole)
    with suppress(ArchiveError):
        assert DatasetManifest.decode(changed).encode() == changed


@given(st.binary(max_size=200))
@example(b"\x0a\x00")
@example(b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01")
def test_random_bytes_are_rejected_as_manifests(data: bytes) -> None:
    with pytest.raises(ArchiveError):
        DatasetManifest.decode(data)


def test_repeated_or_reordered_fields_are_rejected() -> None:
    whole = bytes.fromhex(OBSERVED[0]["manifest_hex"])[2:]
    for inner in (
        whole + whole[-12:],
        whole[-12:] + whole[:-12],
        whole + b"\x50\x01",
        whole.replace(b"\x30\x02", b"\x30\x01"),
    ):
        with pytest.raises(ArchiveError, match="invalid manifest"):
            DatasetManifest.decode(bytes([0x0A, len(inner)]) + inner)


def test_an_erasure_coded_dataset_is_rejected_with_a_reason() -> None:
    whole = bytes.fromhex(OBSERVED[1]["manifest_hex"])[2:]
    inner = whole + bytes.fromhex("3a04 08021003")
    with pytest.raises(ArchiveError, match="erasure"):
        DatasetManifest.decode(bytes([0x0A, len(inner)]) + inner)


def test_ids_of_other_content_are_rejected() -> None:
    for size in (31, 33):
        with pytest.raises(ArchiveError, match=f"a digest of {size} bytes"):
            Cid(CODEC_TREE, bytes(size))
    with pytest.raises(ArchiveError, match="expected a codec of Codex"):
        Cid(0x55, bytes(32))
    for codec in (CODEC_BLOCK, CODEC_MANIFEST):
        with pytest.raises(ArchiveError, match="expected the id of a tree"):
            DatasetManifest(Cid(codec, bytes(32)), 1)


def test_a_manifest_whose_filename_is_a_number_is_rejected() -> None:
    whole = bytes.fromhex(OBSERVED[1]["manifest_hex"])[2:]
    for field in (b"\x40\x01", b"\x48\x01"):
        with pytest.raises(ArchiveError, match="invalid manifest"):
            DatasetManifest.decode(bytes([0x0A, len(whole) + 2]) + whole + field)


def test_the_sizes_in_manifests_are_limited() -> None:
    """MAX_DATASET_SIZE_BYTES, MAX_FILENAME_SIZE_BYTES and MAX_MANIFEST_SIZE_BYTES apply to received manifests."""
    tree, _ = hashed(b"x")
    size_bytes = limits.MAX_DATASET_SIZE_BYTES
    longest = DatasetManifest(tree, size_bytes, "n" * limits.MAX_FILENAME_SIZE_BYTES, "a" * 127 + "/" + "b" * 127)
    assert DatasetManifest.decode(longest.encode()) == longest
    assert len(longest.encode()) < limits.MAX_MANIFEST_SIZE_BYTES
    for size in (size_bytes + 1, 0):
        with pytest.raises(ArchiveError, match="invalid dataset size in the manifest: expected 1 to"):
            DatasetManifest(tree, size)
    with pytest.raises(ArchiveError, match="255 bytes, got 256"):
        DatasetManifest(tree, 1, "é" * 128)
    with pytest.raises(ArchiveError, match="the maximum is 4096"):
        DatasetManifest.decode(bytes(limits.MAX_MANIFEST_SIZE_BYTES + 1))


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", "../x", "a\\b", 'a"b', "a\r\nb", "x\0", " a", "a ", "a.", "c:", "\ud800"]
)
def test_invalid_filenames_are_rejected(name: str) -> None:
    with pytest.raises(ArchiveError, match="filename"):
        DatasetManifest(hashed(b"x")[0], 1, name)


@pytest.mark.parametrize(
    "kind", ["", "text", "text/", "/plain", "text/plain; charset=utf-8", "a/b/c", "té/x", "a/" + "b" * 128]
)
def test_invalid_media_types_are_rejected(kind: str) -> None:
    with pytest.raises(ArchiveError, match="media type"):
        DatasetManifest(hashed(b"x")[0], 1, None, kind)
