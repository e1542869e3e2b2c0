"""Datasets that a content endpoint fetches from other nodes: verified, stored and limited, without cycles."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from content_child import bytes_of
from content_nodes import ScriptedNode, all_running, ask, described, honest, put, request_fetch, served, without_end
from waiting import LIMIT_S, wait_until

from cablestore import limits
from cablestore.archive.content.api import item_json
from cablestore.archive.content.client import ContentClient
from cablestore.archive.content.server import ContentServer
from cablestore.archive.content.store import ContentStore
from cablestore.archive.errors import NoRoomError, NoSuchContentError
from cablestore.errors import ArchiveError


def test_a_dataset_is_fetched_from_upstream_and_stored(tmp_path: Path) -> None:
    data = bytes_of(1, 2_000_000)
    with served(tmp_path / "far") as far, served(tmp_path / "near", far.url) as near:
        cid = put(far, data, Content_Type="text/plain")
        assert ask(near, "GET", f"/data/{cid}")[0] == 404  # a request without /network is answered locally
        assert json.loads(ask(near, "GET", f"/data/{cid}/network/manifest")[2])["cid"] == cid
        status, headers, body = ask(near, "GET", f"/data/{cid}/network/stream")
        assert (status, headers["Content-Type"], body) == (200, "text/plain", data)
        other = put(far, data[::-1], Content_Disposition='attachment; filename="b"')
        assert json.loads(ask(near, "POST", f"/data/{other}/network")[2])["manifest"]["filename"] == "b"
        wait_until(lambda: json.loads(ask(near, "GET", f"/data/{other}/exists")[2])["has"])
        far.kill()
        assert ask(near, "GET", f"/data/{cid}")[2] == data
        assert ask(near, "GET", f"/data/{other}")[2] == data[::-1]


def test_nodes_with_each_other_as_upstream_do_not_request_in_a_cycle(tmp_path: Path) -> None:
    unknown = described(b"never stored")[0]

    async def run() -> None:
        with ContentStore.open(tmp_path / "one") as one, ContentStore.open(tmp_path / "other") as other:
            async with ContentServer(one) as first:
                port = first.address[1]
            async with (
                ContentServer(other, upstream=[f"http://127.0.0.1:{port}"]) as second,
                ContentServer(one, port=port, upstream=[second.url]) as first,
                ContentClient(first.url, network=True) as client,
            ):
                with pytest.raises(NoSuchContentError):
                    await asyncio.wait_for(client.manifest(unknown), LIMIT_S)
                with pytest.raises(NoSuchContentError):
                    await asyncio.wait_for(request_fetch(client, unknown), LIMIT_S)

    asyncio.run(run())


def test_an_upstream_with_false_responses_is_skipped_and_its_data_discarded(tmp_path: Path) -> None:
    data = bytes_of(1, 300_000)
    cid, good = honest(data)
    false_claims = [
        honest(data, data=data[::-1])[1],
        honest(data, data=without_end)[1],
        honest(data, data=data[:-1])[1],
        ScriptedNode(),
    ]
    false_claims.append(honest(data, manifest=item_json(*described(b"x")[:2]))[1])

    async def run() -> None:
        async with all_running(*false_claims, good) as urls:
            with ContentStore.open(tmp_path / "store") as store:
                async with (
                    ContentServer(store, upstream=urls[:-1]) as server,
                    ContentClient(server.url, network=True) as client,
                ):
                    with pytest.raises(ArchiveError):
                        await client.download(cid, tmp_path / "target")
                    assert store.datasets() == []
                async with (
                    ContentServer(store, upstream=urls) as server,
                    ContentClient(server.url, network=True) as client,
                ):
                    await client.download(cid, tmp_path / "target")
                    assert [found for found, _ in store.datasets()] == [cid]

    asyncio.run(run())
    assert (tmp_path / "target").read_bytes() == data


def test_concurrent_fetches_are_limited_and_end_with_the_server(tmp_path: Path) -> None:
    """MAX_CONTENT_FETCHES: a further fetch is rejected. Closing the server ends fetches and discards their data."""
    datas = [bytes_of(i, 100_000) for i in range(limits.MAX_CONTENT_FETCHES + 1)]

    async def never(response: Any) -> None:
        await response.write(datas[0][:10])
        await asyncio.sleep(30)

    async def run() -> None:
        nodes = [honest(data, data=never) for data in datas]
        async with all_running(*(node for _, node in nodes)) as urls:
            with ContentStore.open(tmp_path / "store") as store:
                async with (
                    ContentServer(store, upstream=urls, stop_timeout_s=0.5) as server,
                    ContentClient(server.url) as client,
                ):
                    for cid, _ in nodes[:-1]:
                        await request_fetch(client, cid)
                        await request_fetch(client, cid)  # already in progress
                    with pytest.raises(NoRoomError, match="Try again later"):
                        await request_fetch(client, nodes[-1][0])
                assert store.datasets() == []
                assert list((tmp_path / "store" / "incoming").iterdir()) == []

    asyncio.run(run())


def test_a_dataset_that_exceeds_the_quota_is_reported(tmp_path: Path) -> None:
    cid, full = honest(bytes_of(1, 300_000), status=507)
    _, good = honest(bytes_of(1, 300_000))

    async def run(quota_size_bytes: int, *nodes: ScriptedNode) -> None:
        async with all_running(*nodes) as urls:
            with ContentStore.open(tmp_path / "store", quota_size_bytes=quota_size_bytes) as store:
                async with (
                    ContentServer(store, upstream=urls) as server,
                    ContentClient(server.url, network=True) as client,
                ):
                    await client.download(cid, tmp_path / "target")

    with pytest.raises(NoRoomError, match="raise the quota"):
        asyncio.run(run(100_000, good))
    asyncio.run(run(10**9, full, good))  # a full node is skipped
    assert (tmp_path / "target").read_bytes() == bytes_of(1, 300_000)
