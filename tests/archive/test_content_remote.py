"""Datasets that a member fetches by content id from several nodes: order, reuse, errors, limits and cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from content_child import bytes_of
from content_nodes import ScriptedNode, all_running, honest

from cablestore import limits
from cablestore.archive.content.api import item_json
from cablestore.archive.content.community import CidFolder
from cablestore.archive.content.remote import ContentRemote
from cablestore.archive.errors import NoRoomError, NoSuchContentError, UnreachableError
from cablestore.archive.format.cid import CODEC_TREE, Cid, DatasetManifest, manifest_cid
from cablestore.archive.format.period import Period
from cablestore.archive.format.profile import Entry
from cablestore.errors import ArchiveError

INDEX, ONE, OTHER = bytes_of(1, 5_000), bytes_of(2, 100_000), bytes_of(3, 70_000)


def with_remote(
    folder: Path, index: Cid, nodes: list[ScriptedNode], work: Callable[[ContentRemote], Any], *more: str
) -> None:
    """Run the nodes, and `work` in another thread with a remote that asks them, then the URLs `more`."""

    def with_urls(urls: list[str]) -> None:
        with ContentRemote(index, CidFolder(folder), [*urls, *more]) as remote:
            work(remote)

    async def run() -> None:
        async with all_running(*nodes) as urls:
            await asyncio.to_thread(with_urls, urls)

    asyncio.run(run())


def test_each_dataset_is_fetched_once_from_a_node_that_has_it(tmp_path: Path) -> None:
    (index, zeroth), (one, first), (other, second) = honest(INDEX), honest(ONE), honest(OTHER)
    nodes = [zeroth, first, second]

    def work(remote: ContentRemote) -> None:
        assert remote.index() == INDEX
        told: list[tuple[int, int]] = []
        wanted = [(str(other), OTHER), (str(one), ONE)]
        assert [*remote.fetch([str(other), str(one)], lambda *here: told.append(here))] == wanted
        assert told == [(70_000, 170_000), (170_000, 170_000)]
        path = tmp_path / "content" / str(one)
        for damaged in (ONE[:-1], ONE[:-1] + b"?", b""):
            path.write_bytes(damaged)
            assert [*remote.fetch([str(one), str(other)])] == wanted[::-1]
        assert remote.index() == INDEX
        remote.close()
        for call in (remote.index, lambda: remote.fetch([str(one)])):
            with pytest.raises(ArchiveError, match="cancelled"):
                call()

    with_remote(tmp_path, index, nodes, work)
    transfers = [sum(each.startswith("GET stream") for each in node.asked) for node in nodes]
    assert transfers == [1 + 5, 4 + 1, 1]  # nodes before the one with the dataset answered 404


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [(507, NoRoomError, "507"), (500, NoSuchContentError, "404")],
    ids=["no room", "last error"],
)
def test_lack_of_space_is_reported_before_the_error_of_the_last_node(
    tmp_path: Path, status: int, error: type[ArchiveError], words: str
) -> None:
    async def nothing(_: Any) -> None:
        return

    index, failing = honest(INDEX, status=status, data=nothing)

    def work(remote: ContentRemote) -> None:
        with pytest.raises(error, match=words):
            remote.index()

    with_remote(tmp_path, index, [failing, ScriptedNode()], work)


def test_an_unreachable_last_node_is_reported_with_advice(tmp_path: Path) -> None:
    def work(remote: ContentRemote) -> None:
        with pytest.raises(UnreachableError, match=r"Received data is kept\. Try again later, or use another node"):
            remote.index()

    with_remote(tmp_path, honest(INDEX)[0], [ScriptedNode()], work, "http://127.0.0.1:1")


@pytest.mark.parametrize("extra", [0, 1])
def test_the_sizes_of_an_index_and_an_archive_are_limited(tmp_path: Path, extra: int) -> None:
    """MAX_INDEX_SIZE_BYTES and MAX_STORED_ARCHIVE_SIZE_BYTES: the node lacks the data, but only that is reported."""
    for most, is_index in ((limits.MAX_INDEX_SIZE_BYTES, True), (limits.MAX_STORED_ARCHIVE_SIZE_BYTES, False)):
        manifest = DatasetManifest(Cid(CODEC_TREE, bytes(32)), most + extra)
        cid = manifest_cid(manifest)

        def work(remote: ContentRemote, cid: Cid = cid, *, is_index: bool = is_index) -> None:
            with pytest.raises(ArchiveError, match="too large" if extra else "404"):
                remote.index() if is_index else list(remote.fetch([str(cid)]))

        with_remote(tmp_path, cid, [ScriptedNode(manifest=item_json(cid, manifest))], work)


def test_a_running_fetch_is_cancelled(tmp_path: Path) -> None:
    async def cancels(_: Any) -> None:
        remotes[0].cancel()
        await asyncio.sleep(30)

    remotes: list[ContentRemote] = []
    index, node = honest(INDEX, data=cancels)

    def work(remote: ContentRemote) -> None:
        remotes.append(remote)
        for _ in range(2):
            with pytest.raises(ArchiveError, match="cancelled: received data is kept"):
                remote.index()

    with_remote(tmp_path, index, [node], work)
    assert len([each for each in node.asked if each.startswith("GET stream")]) == 1


def test_a_new_index_replaces_the_earlier_one_and_its_file(tmp_path: Path) -> None:
    folder = CidFolder(tmp_path)
    folder.make()
    old, new = honest(INDEX)[0], honest(ONE)[0]
    assert (folder.index_cid(), folder.index_bytes()) == (None, None)
    for cid, data in ((old, INDEX), (new, ONE)):
        folder.path_of(cid).write_bytes(data)
        for _ in range(2):  # the same index again is kept
            folder.put_index(cid)
            assert (folder.index_cid(), folder.index_bytes()) == (cid, data)
    assert not folder.path_of(old).exists()
    (folder.path / "index").write_bytes(b"nonsense")
    with pytest.raises(ArchiveError):
        folder.index_cid()
    folder.put_index(new)
    assert folder.index_cid() == new
    entry = Entry("archive", Period(0, 1), (), cid=str(new))
    assert (folder.size_bytes(entry), folder.stored(entry)) == (len(ONE), ONE)
    folder.path_of(new).unlink()
    assert folder.size_bytes(entry) is None
    with pytest.raises(ArchiveError, match="Fetch the archive first"):
        folder.stored(entry)
