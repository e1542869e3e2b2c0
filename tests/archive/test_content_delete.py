"""`archive content delete`, and publishing on a node whose files were damaged at run time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from archives import CONTROL, archived, plan_of, some_weeks, store_of
from content_child import bytes_of
from content_nodes import described, served

from cablestore import LEGACY
from cablestore.archive.content.client import ContentClient
from cablestore.archive.content.store import ContentStore
from cablestore.archive.errors import NoSuchContentError
from cablestore.archive.format.cid import Cid, manifest_cid
from cablestore.archive.local import community_folder
from cablestore.archive.publish import NodeTarget, Publisher

Run = Callable[..., tuple[int, str, str]]
DATA = bytes_of(1, 200_000)
CID = described(DATA, filename="a")[0]
DELETE = ("archive", "content", "delete")


def stored(folder: Path) -> None:
    with ContentStore.open(folder) as store:
        assert manifest_cid(store.put([DATA], filename="a")) == CID
        store.put([b"other"])


def test_a_dataset_is_deleted_from_a_closed_store(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "content"
    stored(folder)
    words = (*DELETE, f"codex:{CID}", "--content-folder", folder)
    status, printed, _ = run(*words, "--json")
    assert status == 0
    assert json.loads(printed).keys() == {"content_id", "freed_size_bytes"}
    assert json.loads(printed)["freed_size_bytes"] >= len(DATA)
    assert len(list((folder / "data").iterdir())) == 1
    status, printed, errors = run(*words)
    assert (status, printed, "dataset not found" in errors) == (2, "", True)
    with ContentStore.open(folder) as store:
        assert [manifest.dataset_size_bytes for _, manifest in store.datasets()] == [len(b"other")]


@pytest.mark.parametrize("damage", ["data", "leaves", "manifests"])
def test_a_damaged_dataset_can_be_deleted(tmp_path: Path, run: Run, damage: str) -> None:
    folder = tmp_path / "content"
    stored(folder)
    is_manifest = damage == "manifests"
    file = (
        folder / damage / str(CID) if is_manifest else max((folder / damage).iterdir(), key=lambda p: p.stat().st_size)
    )
    file.write_bytes(b"")
    assert run(*DELETE, CID, "--content-folder", folder)[0] == 0
    with ContentStore.open(folder) as store:
        assert (store.damaged, store.incomplete(), len(store.datasets())) == (set(), [], 1)
    assert [len(list((folder / kind).iterdir())) for kind in ("data", "leaves", "manifests")] == [1, 1, 1]


def test_a_node_does_not_serve_deleted_datasets(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "content"
    stored(folder)

    async def get(url: str) -> None:
        async with ContentClient(url) as client:
            await client.download(CID, tmp_path / "copy")

    with served(folder) as node:
        asyncio.run(get(node.url))
        status, _, errors = run(*DELETE, CID, "--content-folder", folder)
        assert (status, f"open in process {node.process.pid}" in errors) == (2, True)
        status, printed, _ = run(*DELETE, CID, "--node", node.url, "--json")
        assert (status, json.loads(printed)["freed_size_bytes"] >= len(DATA)) == (0, True)
        with pytest.raises(NoSuchContentError):
            asyncio.run(get(node.url))
        status, printed, errors = run(*DELETE, CID, "--node", node.url)
        assert (status, printed, "dataset not found" in errors) == (2, "", True)


def test_bad_input_is_rejected_in_one_line_with_status_2(tmp_path: Path, run: Run) -> None:
    missing = tmp_path / "nowhere"
    for words, expected in (
        ((CID,), "exactly one of --node URL and --content-folder DIR"),
        ((CID, "--node", "http://127.0.0.1:9", "--content-folder", missing), "exactly one of --node"),
        (("x", "--content-folder", missing), "invalid content id"),
        ((CID, "--content-folder", missing), "no content store found at"),
        ((CID, "--node", "http://127.0.0.1:9"), "does not answer"),
    ):
        status, printed, errors = run(*DELETE, *words)
        assert (status, printed, "Traceback" in errors) == (2, "", False), words
        assert expected in " ".join(errors.split())
    assert not missing.exists()


@pytest.mark.thorough("data-empty", "data-flipped")
@pytest.mark.parametrize(("kind", "how"), [("data", "empty"), ("data", "flipped"), ("leaves", "missing")])
def test_a_dataset_that_a_node_cannot_serve_is_published_again(tmp_path: Path, kind: str, how: str) -> None:
    """The node has the manifest and is running while its file is damaged."""
    with store_of(some_weeks()) as store:
        files = archived(store, community_folder(tmp_path, CONTROL.public_key), plan_of("rfc61", None))
    publisher = Publisher(CONTROL, LEGACY)
    with served(tmp_path / "node") as node, NodeTarget(node.url) as target:
        first = publisher.publish(files, target)
        cids = [cid for cid, _ in target.datasets()]
        file = max((tmp_path / "node" / kind).iterdir())
        data = file.read_bytes()
        file.unlink()
        if how != "missing":
            file.write_bytes(bytes([data[0] ^ 1]) + data[1:] if how == "flipped" else b"")
        assert len([cid for cid in cids if target.is_intact(cid)]) == len(cids) - 1
        assert [cid for cid, _ in target.datasets() if cid not in cids] == []
        second = publisher.publish(files, target)
        assert (second.index_cid, second.sent_bytes > 0) == (first.index_cid, True)
        assert all(target.is_intact(cid) for cid in cids)
        asyncio.run(download_all(node.url, cids, tmp_path / "copy"))


async def download_all(url: str, cids: list[Cid], target: Path) -> None:
    async with ContentClient(url) as client:
        for cid in cids:
            await client.download(cid, target)


def test_an_unreadable_manifest_does_not_affect_others(tmp_path: Path) -> None:
    folder = tmp_path / "content"
    stored(folder)
    (folder / "manifests" / str(CID)).unlink()
    (folder / "manifests" / str(CID)).mkdir()
    with ContentStore.open(folder) as store:
        assert [manifest.dataset_size_bytes for _, manifest in store.datasets()] == [len(b"other")]
        assert store.damaged == {CID}
