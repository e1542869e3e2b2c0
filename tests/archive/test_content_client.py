"""The client of content nodes: verification of answers, and continuation after interruptions."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from content_child import bytes_of
from content_nodes import ScriptedNode, changed, described, download_file, honest, running, without_end
from hypothesis import given, settings
from hypothesis import strategies as st
from peering import until
from waiting import LIMIT_S

from cablestore import limits
from cablestore.archive.content.api import item_json, read_answer, read_list, read_manifest_of
from cablestore.archive.content.client import ContentClient
from cablestore.archive.content.partial import PartialDownload
from cablestore.archive.content.store import Space
from cablestore.archive.errors import NoRoomError, NoSuchContentError, UnreachableError
from cablestore.archive.format.cid import (
    BLOCK_SIZE_BYTES,
    CODEC_BLOCK,
    Cid,
    DatasetManifest,
    ManifestFormat,
    manifest_cid,
)
from cablestore.errors import ArchiveError

DATA = bytes_of(1, 5 * BLOCK_SIZE_BYTES + 77)
CID, MANIFEST, LEAVES = described(DATA)
OTHER_CID, OTHER_MANIFEST, OTHER_LEAVES = described(bytes_of(2, len(DATA)))
ITEM = item_json(CID, MANIFEST)


def with_client(node: ScriptedNode, work: Callable[[ContentClient], Awaitable[Any]], **options: Any) -> Any:
    """Start the node and run a coroutine with its client."""

    async def run() -> Any:
        async with running(node), ContentClient(node.url, **options) as client:
            return await work(client)

    return asyncio.run(run())


def fetch(node: ScriptedNode, target: Path, **options: Any) -> DatasetManifest:
    found: DatasetManifest = with_client(node, lambda client: client.download(CID, target), **options)
    return found


def writing(*parts: bytes) -> Callable[[web.StreamResponse], Awaitable[None]]:
    """Return an answer of these parts without a Content-Length."""

    async def write(response: web.StreamResponse) -> None:
        for part in parts:
            await response.write(part)

    return write


# --- wrong answers -----------------------------------------------------------------------------------

FALSE_CLAIMS: dict[str, dict[str, Any]] = {
    "a flipped bit": {"data": changed(DATA, 70_000)},
    "a flipped bit against its own leaves": {"data": changed(DATA, 70_000), "leaves": LEAVES},
    "a flipped bit in the last byte": {"data": changed(DATA, len(DATA) - 1), "leaves": LEAVES},
    "another dataset": {"data": bytes_of(2, len(DATA))},
    "leaves of another dataset": {"leaves": OTHER_LEAVES},
    "too few leaves": {"leaves": LEAVES[:-32]},
    "too many leaves": {"leaves": LEAVES + bytes(32)},
    "half a leaf more": {"leaves": LEAVES + bytes(3)},
    "leaves without end": {"leaves": without_end},
    "a shorter one": {"data": DATA[:-1]},
    "a longer one": {"data": DATA + b"x"},
    "a longer one, of zeros that its tree does not show": {"data": DATA + b"\0"},
    "a shorter one of unknown length": {"data": writing(DATA[:-1])},
    "a longer one of unknown length": {"data": writing(DATA, b"x")},
    "nothing": {"data": b""},
    "bytes without end": {"data": without_end},
    "bytes without end, with leaves": {"data": without_end, "leaves": LEAVES},
    "another manifest": {"manifest": item_json(OTHER_CID, OTHER_MANIFEST)},
    "a manifest with another tree": {"manifest": item_json(CID, OTHER_MANIFEST), "data": bytes_of(2, len(DATA))},
    "a manifest with another size": {"manifest": {**ITEM, "manifest": {**ITEM["manifest"], "datasetSize": len(DATA) - 1}}},
    "a manifest with another name": {"manifest": {**ITEM, "manifest": {**ITEM["manifest"], "filename": "../../x"}}},
    "a manifest without end": {"manifest": without_end},
    "no manifest": {"manifest": [1, 2]},
    "no JSON": {"manifest": b"<html>"},
    "JSON without bottom": {"manifest": b"[" * 4_000},
    "a compressed one": {"headers": {"Content-Encoding": "gzip"}},
    "a redirection": {"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}},
    "another part": {"data": writing(DATA), "status": 206, "headers": {"Content-Range": "bytes 1-2/3"}},
}  # fmt: skip


def begin_earlier(folder: Path, lie: str) -> None:
    """Create a partial download, so that the client requests the part that this node falsifies."""
    if lie == "another part":
        (folder / f".{MANIFEST.tree}.part").write_bytes(DATA[:BLOCK_SIZE_BYTES])


@pytest.mark.parametrize("lie", FALSE_CLAIMS)
def test_false_answers_of_a_node_are_rejected_and_leave_no_file(lie: str, tmp_path: Path) -> None:
    node = ScriptedNode(**({"data": DATA, "manifest": ITEM} | FALSE_CLAIMS[lie]))
    begin_earlier(tmp_path, lie)
    with pytest.raises(ArchiveError) as rejection:
        fetch(node, tmp_path / "target")
    assert not isinstance(rejection.value, UnreachableError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lie", FALSE_CLAIMS)
def test_false_answers_of_a_node_do_not_change_existing_files(lie: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    begin_earlier(tmp_path, lie)
    with pytest.raises(ArchiveError):
        fetch(ScriptedNode(**({"data": DATA, "manifest": ITEM} | FALSE_CLAIMS[lie])), target)
    assert target.read_bytes() == b"precious"


def test_a_wrong_block_aborts_a_download_immediately_if_leaves_are_known(tmp_path: Path) -> None:
    sent = 0

    async def send_wrong_blocks(response: web.StreamResponse) -> None:
        nonlocal sent
        for at in range(0, len(large), 1 << 20):
            await response.write(wrong[at : at + (1 << 20)])
            sent = at

    large = random.randbytes(64 << 20)
    wrong = changed(large, 5)
    cid, manifest, leaves = described(large)
    node = ScriptedNode(data=send_wrong_blocks, manifest=item_json(cid, manifest), leaves=leaves)
    with pytest.raises(ArchiveError, match="wrong bytes"):
        with_client(node, lambda client: client.download(cid, tmp_path / "target"))
    assert sent < len(large) // 2


@pytest.mark.parametrize("answer", [str(OTHER_CID).encode(), b"no id", b"", str(CID).encode() * 2, without_end])
def test_an_upload_with_a_wrong_id_in_the_response_is_rejected(answer: Any) -> None:
    node = ScriptedNode(uploaded=answer, manifest=item_json(OTHER_CID, OTHER_MANIFEST))
    with pytest.raises(ArchiveError):
        with_client(node, lambda client: client.upload_bytes(DATA, filename="a"))


@pytest.mark.parametrize("manifest_format", ManifestFormat)
def test_the_id_of_an_upload_is_verified_in_all_generations(manifest_format: ManifestFormat) -> None:
    manifest = DatasetManifest(MANIFEST.tree, len(DATA), "a", "b/c", manifest_format)
    node = ScriptedNode(uploaded=str(manifest_cid(manifest)).encode())
    uploaded = with_client(node, lambda client: client.upload_bytes(DATA, filename="a", mimetype="b/c"))
    assert (uploaded.cid, uploaded.manifest) == (manifest_cid(manifest), manifest)
    assert (uploaded.tree, uploaded.size_bytes) == (MANIFEST.tree, len(DATA))


def test_an_upload_with_an_unknown_manifest_is_accepted_if_its_tree_matches() -> None:
    node = ScriptedNode(uploaded=str(OTHER_CID).encode(), manifest=item_json(OTHER_CID, MANIFEST))
    uploaded = with_client(node, lambda client: client.upload_bytes(DATA, filename="a"))
    assert uploaded == (OTHER_CID, MANIFEST.tree, len(DATA), None)
    for name, answered in (("b", MANIFEST), ("a", OTHER_MANIFEST)):  # A node may choose another name for our tree.
        manifest = DatasetManifest(answered.tree, len(DATA), name)
        node = ScriptedNode(
            uploaded=str(manifest_cid(manifest)).encode(), manifest=item_json(manifest_cid(manifest), manifest)
        )
        upload = lambda client: client.upload_bytes(DATA, filename="a")  # noqa: E731 - used twice
        if answered is MANIFEST:
            assert with_client(node, upload).manifest == manifest
        else:
            with pytest.raises(ArchiveError, match="wrong content id"):
                with_client(node, upload)


def test_a_list_contains_verified_datasets_and_the_problems_of_others() -> None:
    forged = item_json(CID, OTHER_MANIFEST)
    known, problems = with_client(ScriptedNode(listed={"content": [ITEM, forged, 3]}), lambda client: client.datasets())
    assert known == [(CID, MANIFEST)]
    assert len(problems) == 2
    assert "in any known format" in problems[0]


def test_the_sizes_of_responses_are_limited() -> None:
    """MAX_DATASET_LIST_SIZE_BYTES and MAX_MANIFEST_SIZE_BYTES limit endless answers."""
    with pytest.raises(ArchiveError, match=f"more than {limits.MAX_DATASET_LIST_SIZE_BYTES} bytes"):
        with_client(ScriptedNode(listed=without_end), lambda client: client.datasets())
    with pytest.raises(ArchiveError, match=f"more than {limits.MAX_MANIFEST_SIZE_BYTES} bytes"):
        with_client(ScriptedNode(manifest=without_end), lambda client: client.manifest(CID))
    with pytest.raises(ArchiveError, match="more than 2048 bytes"):
        with_client(ScriptedNode(exists=without_end), lambda client: client.exists(CID))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just(str(CID)), st.just(str(MANIFEST.tree))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["cid", "manifest", "treeCid", "datasetSize", "blockSize", "filename", "content", "totalBlocks"]), inner),
    ),
)  # fmt: skip


@pytest.mark.thorough
@given(JSON)
@settings(max_examples=120)
def test_any_json_of_a_node_is_accepted_or_rejected(answer: Any) -> None:
    raw = json.dumps(answer).encode()
    for read in (
        lambda: read_manifest_of(CID, raw),
        lambda: read_list(raw),
        lambda: read_answer(raw, Space, "the space of a node"),
    ):
        try:
            read()
        except ArchiveError:
            continue
        assert isinstance(answer, dict)


@pytest.mark.thorough
@given(st.sampled_from(["treeCid", "datasetSize", "blockSize", "filename", "mimetype"]), JSON)
@settings(max_examples=120)
def test_a_manifest_with_one_field_changed_is_rejected(key: str, value: Any) -> None:
    raw = json.dumps({**ITEM, "manifest": {**ITEM["manifest"], key: value}}).encode()
    if value != ITEM["manifest"][key] or type(value) is not type(ITEM["manifest"][key]):
        if key == "blockSize" and value == BLOCK_SIZE_BYTES:
            return
        with pytest.raises(ArchiveError):
            read_manifest_of(CID, raw)
    else:
        assert read_manifest_of(CID, raw) == MANIFEST


# --- interruptions -----------------------------------------------------------------------------------


def test_a_download_continues_after_the_last_valid_block(tmp_path: Path) -> None:
    target = tmp_path / "target"
    cut = 3 * BLOCK_SIZE_BYTES + 1_000
    node = ScriptedNode(data=DATA, manifest=ITEM, leaves=LEAVES, accepts_ranges=True, cut_at=cut)
    with pytest.raises(UnreachableError, match="closed the connection"):
        fetch(node, target)
    assert not target.exists()
    part = tmp_path / f".{MANIFEST.tree}.part"
    assert part.read_bytes() == DATA[: part.stat().st_size]
    kept = part.stat().st_size // BLOCK_SIZE_BYTES * BLOCK_SIZE_BYTES
    node.cut_at = None
    fetch(node, target)
    assert target.read_bytes() == DATA
    expected = f"GET {CID}" + (f" bytes={kept}-" if kept else "")
    assert node.asked[-1] == expected
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.thorough
@given(
    kept=st.integers(0, len(DATA) + 10), wrong=st.one_of(st.none(), st.integers(0, len(DATA) - 1)),
    has_leaves=st.booleans(), accepts_ranges=st.booleans(),
)  # fmt: skip
@settings(max_examples=80)
def test_a_resumed_download_results_in_the_right_file_or_none(
    tmp_path_factory: pytest.TempPathFactory, kept: int, wrong: int | None, has_leaves: bool, accepts_ranges: bool
) -> None:
    folder = tmp_path_factory.mktemp("left")
    left = (DATA + b"0123456789")[:kept]
    if wrong is not None and wrong < len(left):
        left = changed(left, wrong)
    (folder / f".{MANIFEST.tree}.part").write_bytes(left)
    node = ScriptedNode(data=DATA, manifest=ITEM, leaves=LEAVES if has_leaves else None, accepts_ranges=accepts_ranges)
    is_wrong = wrong is not None and wrong < len(left)
    try:
        fetch(node, folder / "target")
        assert (folder / "target").read_bytes() == DATA
        if has_leaves:
            good = min(wrong or 0 if is_wrong else len(left), len(DATA))
            start = len(DATA) if good == len(DATA) else good // BLOCK_SIZE_BYTES * BLOCK_SIZE_BYTES
            asked = [ask for ask in node.asked if ask.startswith(f"GET {CID}")]
            assert asked == ([] if start == len(DATA) else [f"GET {CID}" + (f" bytes={start}-" if start else "")])
    except ArchiveError:
        assert is_wrong  # without leaves, a wrong part is found at the end and discarded
        assert not has_leaves
        assert list(folder.iterdir()) == []
        fetch(node, folder / "target")
    assert (folder / "target").read_bytes() == DATA
    assert [path.name for path in folder.iterdir()] == ["target"]


@pytest.mark.thorough
def test_a_killed_download_continues(tmp_path: Path) -> None:
    large = random.randbytes(40 << 20)
    cid, manifest, leaves = described(large)

    async def slowly(response: web.StreamResponse) -> None:
        for at in range(0, len(large), 1 << 20):
            await response.write(large[at : at + (1 << 20)])
            await asyncio.sleep(0.02)

    script = """
import asyncio, sys
from cablestore.archive.content.client import *
async def work():
    async with ContentClient(sys.argv[1]) as client:
        await client.download(Cid.parse(sys.argv[2]), Path(sys.argv[3]))
asyncio.run(work())
"""
    target, part = tmp_path / "target", tmp_path / f".{manifest.tree}.part"

    async def run() -> ScriptedNode:
        async with running(ScriptedNode(data=slowly, manifest=item_json(cid, manifest), leaves=leaves)) as node:
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", script, node.url, str(cid), str(target))
            await until(lambda: part.exists() and part.stat().st_size >= 5 << 20)
            child.send_signal(signal.SIGKILL)
            await child.wait()
            assert not target.exists()
            node.data, node.accepts_ranges = large, True
            async with ContentClient(node.url) as client:
                await client.download(cid, target)
        return node

    node = asyncio.run(run())
    assert target.read_bytes() == large
    assert int(node.asked[-1].partition("bytes=")[2][:-1]) >= 4 << 20
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_download_restarts_if_the_node_sends_the_whole_dataset(tmp_path: Path) -> None:
    (tmp_path / f".{MANIFEST.tree}.part").write_bytes(DATA[:BLOCK_SIZE_BYTES])
    node = ScriptedNode(data=DATA, manifest=ITEM)
    fetch(node, tmp_path / "target")
    assert f"GET {CID} bytes={BLOCK_SIZE_BYTES}-" in node.asked
    assert (tmp_path / "target").read_bytes() == DATA
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_two_downloads_of_one_dataset_do_not_write_to_the_same_file(tmp_path: Path) -> None:
    async def both(client: ContentClient) -> list[Any]:
        work = [client.download(CID, tmp_path / name) for name in ("one", "other")]
        return await asyncio.gather(*work, return_exceptions=True)

    found = with_client(ScriptedNode(data=DATA, manifest=ITEM, leaves=LEAVES), both)
    done = [one for one in found if isinstance(one, DatasetManifest)]
    assert len(done) >= 1
    for error in found:
        assert isinstance(error, DatasetManifest) or "another download" in str(error)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == DATA


def test_a_download_from_a_silent_node_times_out(tmp_path: Path) -> None:
    """STALL_TIMEOUT_S is the client's default time-out; the test shortens it."""

    async def silent(response: web.StreamResponse) -> None:
        await response.write(DATA[:100])
        await asyncio.sleep(LIMIT_S)

    assert ContentClient("http://127.0.0.1")._stall_timeout_s == limits.STALL_TIMEOUT_S
    for node in (
        ScriptedNode(data=silent, manifest=ITEM),
        ScriptedNode(manifest=silent),
        ScriptedNode(data=DATA, manifest=ITEM, leaves=silent),
    ):
        with pytest.raises(UnreachableError):
            fetch(node, tmp_path / "target", stall_timeout_s=0.2)
    assert not (tmp_path / "target").exists()

    async def slow(response: web.StreamResponse) -> None:
        for i in range(200):
            await response.write(DATA[i : i + 1])
            await asyncio.sleep(0.05)

    with pytest.raises(UnreachableError):
        fetch(ScriptedNode(data=slow, manifest=ITEM), tmp_path / "target", total_timeout_s=0.4)


def test_an_upload_to_a_node_that_does_not_read_times_out() -> None:
    async def deaf(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await asyncio.sleep(LIMIT_S)
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(deaf, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with ContentClient(url, stall_timeout_s=0.3) as client:
            with pytest.raises(UnreachableError, match="accepted no data"):
                await client.upload_bytes(bytes(30_000_000))
        server.close()

    asyncio.run(run())


def test_unreachable_nodes_and_error_statuses_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="does not answer"):
        download_file("http://127.0.0.1:1", CID, tmp_path / "target")
    for url in ("", "ftp://x", "http://", "nonsense", "http://127.0.0.1:99999"):
        with pytest.raises(ArchiveError):
            download_file(url, CID, tmp_path / "target")
    with pytest.raises(NoSuchContentError, match="404"):
        fetch(ScriptedNode(), tmp_path / "target")
    with pytest.raises(ArchiveError, match="not the id of a manifest"):
        with_client(ScriptedNode(manifest=ITEM), lambda client: client.manifest(Cid(CODEC_BLOCK, CID.digest)))
    for status, kind in ((413, NoRoomError), (507, NoRoomError), (500, UnreachableError), (422, ArchiveError)):
        with pytest.raises(kind):
            with_client(ScriptedNode(uploaded=writing(b"why"), status=status), lambda client: client.upload_bytes(b"x"))
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_too_large_for_the_caller_or_the_disk_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downloads also leave MIN_FREE_DISK_SIZE_BYTES free."""
    node = ScriptedNode(data=DATA, manifest=ITEM)
    with pytest.raises(ArchiveError, match="expected at most 1000"):
        with_client(node, lambda client: client.download(CID, tmp_path / "target", max_size_bytes=1_000))
    monkeypatch.setattr(limits, "MIN_FREE_DISK_SIZE_BYTES", 2**62)
    with pytest.raises(NoRoomError, match="not enough disk space"):
        fetch(node, tmp_path / "target")
    assert list(tmp_path.iterdir()) == []
    assert f"GET {CID}" not in node.asked


@pytest.mark.parametrize("size_bytes", [BLOCK_SIZE_BYTES - 1, BLOCK_SIZE_BYTES + 1])
def test_a_manifest_with_blocks_of_another_size_is_rejected(size_bytes: int) -> None:
    item = {**ITEM, "manifest": {**ITEM["manifest"], "blockSize": size_bytes}}
    with pytest.raises(ArchiveError, match=f"blocks of {size_bytes} bytes"):
        read_manifest_of(CID, json.dumps(item).encode())


def test_a_known_manifest_is_not_requested(tmp_path: Path) -> None:
    cid, node = honest(DATA, manifest=None)
    with_client(node, lambda client: client.download(cid, tmp_path / "target", manifest=MANIFEST))
    assert (tmp_path / "target").read_bytes() == DATA
    assert "GET manifest" not in node.asked


@pytest.mark.parametrize("answer", [{"has": True}, {str(CID): True}])
def test_both_forms_of_exists_are_read(answer: Any) -> None:
    assert with_client(ScriptedNode(exists=answer), lambda client: client.exists(CID)) is True
    assert with_client(ScriptedNode(exists={"has": False}), lambda client: client.exists(CID)) is False


def test_a_closed_client_raises_an_error() -> None:
    with pytest.raises(ArchiveError, match="not open"):
        asyncio.run(ContentClient("http://127.0.0.1:1").exists(CID))


class _KilledError(BaseException):
    """Ends a download as SIGKILL does."""


def test_a_kill_at_the_final_rename_leaves_only_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def killed(self: Path, target: Path) -> None:
        replace(self, target)
        raise _KilledError

    partial = PartialDownload(tmp_path / "target", MANIFEST)
    partial.add_leaves(LEAVES, 0)
    partial.check_leaves()
    partial.write(DATA)
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(_KilledError):
        partial.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (tmp_path / "target").read_bytes() == DATA
