"""The REST endpoint: round trips, error statuses, upstream nodes, and shutdown."""

from __future__ import annotations

import asyncio
import http.client
import inspect
import json
import logging
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from content_child import OWN_HOST, bytes_of
from content_nodes import (
    ContentNode,
    ServedContent,
    ask,
    described,
    download_file,
    put,
    served,
    served_in_thread,
    slow_link,
    upload_file,
    with_server,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import LIMIT_S, wait_until

from cablestore import limits
from cablestore.archive.content.api import PREFIX
from cablestore.archive.content.client import ContentClient
from cablestore.archive.content.server import ContentServer
from cablestore.archive.content.store import ContentStore
from cablestore.archive.errors import NoRoomError
from cablestore.archive.format.cid import (
    BLOCK_SIZE_BYTES,
    CODEC_BLOCK,
    Cid,
    DatasetManifest,
    ManifestFormat,
    manifest_cid,
)
from cablestore.errors import ArchiveError, NodeError

PAYLOAD_CID = "zDvZRwzmBEaJ338xaCHbKbGAJ4X41YyccS6eyorrYBbmPnWuLxCh"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContentNode]:
    with served_in_thread(tmp_path_factory.mktemp("served") / "store") as running:
        yield running


# --- round trips -------------------------------------------------------------------------------------


def test_an_upload_has_the_id_and_fields_of_the_codex_api(node: ContentNode) -> None:
    assert (
        put(node, b"payload", Content_Type="text/plain", Content_Disposition='attachment; filename="hello.txt"')
        == PAYLOAD_CID
    )
    manifest = {
        "treeCid": "zDzSvJTfD7uC8pnTkUBnYGqS8eTgTDWZyHSv4wfqxvsAbT69WKXB", "datasetSize": 7, "blockSize": 65536,
        "protected": False, "filename": "hello.txt", "mimetype": "text/plain",
    }  # fmt: skip
    item = {"cid": PAYLOAD_CID, "manifest": manifest}
    assert item in json.loads(ask(node, "GET", "/data")[2])["content"]
    assert json.loads(ask(node, "GET", f"/data/{PAYLOAD_CID}/network/manifest")[2]) == item
    assert json.loads(ask(node, "POST", f"/data/{PAYLOAD_CID}/network")[2]) == item
    for route in (f"/data/{PAYLOAD_CID}", f"/data/{PAYLOAD_CID}/network/stream"):
        status, headers, body = ask(node, "GET", route)
        assert (status, body) == (200, b"payload")
        assert headers["Content-Type"] == "text/plain"
        assert headers["Content-Disposition"] == 'attachment; filename="hello.txt"'
        assert headers["Content-Length"] == "7"
    assert json.loads(ask(node, "GET", f"/data/{PAYLOAD_CID}/exists")[2]) == {PAYLOAD_CID: True, "has": True}
    status, headers, leaves = ask(node, "GET", f"/data/{PAYLOAD_CID}/leaves")
    assert (status, headers["Content-Type"]) == (200, "application/octet-stream")
    assert headers["Content-Length"] == str(len(leaves)) == "32"
    space = json.loads(ask(node, "GET", "/space")[2])
    assert space["quotaUsedBytes"] > 0
    assert space["totalBlocks"] >= 2
    assert json.loads(ask(node, "GET", "/debug/info")[2])["codex"]["version"] == "cablestore"
    assert ask(node, "DELETE", f"/data/{PAYLOAD_CID}")[0] == 204
    assert ask(node, "DELETE", f"/data/{PAYLOAD_CID}")[0] == 204
    assert ask(node, "GET", f"/data/{PAYLOAD_CID}")[0] == 404
    assert json.loads(ask(node, "GET", f"/data/{PAYLOAD_CID}/exists")[2]) == {PAYLOAD_CID: False, "has": False}


@pytest.mark.thorough
@given(
    size=st.one_of(st.integers(1, 300), st.integers(BLOCK_SIZE_BYTES - 1, BLOCK_SIZE_BYTES + 1), st.integers(1, 3_000_000)),
    seed=st.integers(0, 2**32), filename=st.sampled_from([None, "a.bin", "wörter-日本.txt", "a b.c"]),
    mimetype=st.sampled_from([None, "text/plain", "application/x-archive+zstd"]),
)  # fmt: skip
@settings(max_examples=40)
def test_an_upload_is_downloaded_unchanged(
    node: ContentNode,
    tmp_path_factory: pytest.TempPathFactory,
    size: int,
    seed: int,
    filename: str | None,
    mimetype: str | None,
) -> None:
    folder = tmp_path_factory.mktemp("round")
    data = random.Random(seed).randbytes(size)
    (folder / "up").write_bytes(data)
    uploaded = upload_file(node.url, folder / "up", filename=filename, mimetype=mimetype)
    assert uploaded.manifest == described(data, filename, mimetype)[1]
    assert download_file(node.url, uploaded.cid, folder / "down") == uploaded.manifest
    assert (folder / "down").read_bytes() == data


def test_an_upload_in_chunks_has_the_same_id(node: ContentNode) -> None:
    data = bytes_of(4, 700_000)
    with closing(http.client.HTTPConnection("127.0.0.1", node.port, timeout=LIMIT_S)) as connection:
        parts = (data[at : at + 33_333] for at in range(0, len(data), 33_333))
        connection.request("POST", f"{PREFIX}/data", parts, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
        assert connection.getresponse().read().decode() == str(described(data, None)[0])


@given(st.integers(0, 400_000))
@settings(max_examples=40)
def test_a_download_can_start_at_any_byte(node: ContentNode, start: int) -> None:
    data = bytes_of(5, 5 * BLOCK_SIZE_BYTES + 9)
    cid = put(node, data)
    status, headers, body = ask(node, "GET", f"/data/{cid}", Range=f"bytes={start}-")
    if start >= len(data):
        assert (status, headers["Content-Range"]) == (416, f"bytes */{len(data)}")
    else:
        assert (status, body) == (206 if start else 200, data[start:])
        assert (
            headers.get("Content-Range", f"bytes 0-{len(data) - 1}/{len(data)}")
            == f"bytes {start}-{len(data) - 1}/{len(data)}"
        )


@pytest.mark.parametrize(
    "value", ["bytes=-5", "bytes=1-2", "bytes=x-", "lines=1-", "bytes=1-,3-", "bytes=99999999999999999999-"]
)
def test_unsupported_ranges_return_the_whole_dataset(node: ContentNode, value: str) -> None:
    cid = put(node, b"0123456789")
    assert ask(node, "GET", f"/data/{cid}", Range=value)[::2] == (200, b"0123456789")


@pytest.mark.thorough
def test_concurrent_clients_download_their_uploads_unchanged(tmp_path: Path, node: ContentNode) -> None:
    async def one(number: int) -> None:
        data = bytes_of(100 + number // 2, 400_000 + number // 2)  # two clients each upload the same data
        folder = tmp_path / f"{number}"
        folder.mkdir()
        async with ContentClient(node.url) as client:
            for turn in range(3):
                cid = (await client.upload_bytes(data, filename=f"{turn}")).cid
                await client.download(cid, folder / "target")
                assert (folder / "target").read_bytes() == data

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number) for number in range(12)))

    asyncio.run(all_of_them())


@pytest.mark.parametrize("manifest_format", ManifestFormat)
def test_the_server_writes_manifests_of_the_configured_generation(
    tmp_path: Path, manifest_format: ManifestFormat
) -> None:
    async def work(_: ContentServer, client: ContentClient) -> Any:
        return await client.upload_bytes(b"payload", filename="hello.txt", mimetype="text/plain")

    uploaded = with_server(tmp_path, work, manifest_format=manifest_format)
    assert uploaded.manifest.manifest_format is manifest_format
    assert (str(uploaded.cid) == PAYLOAD_CID) is (manifest_format is ManifestFormat.CODEX)


# --- rejected requests -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"Content_Disposition": 'attachment; filename="../x"'}, 422, "invalid filename"),
        ({"Content_Disposition": 'attachment; filename=""'}, 422, "invalid filename: expected 1 to"),
        ({"Content_Disposition": 'attachment; filename="' + "x" * 256 + '"'}, 422, "invalid filename: expected 1 to"),
        ({"Content_Type": "nonsense"}, 422, "media type"),
        ({"Content_Encoding": "gzip"}, 415, "compressed"),
        ({"Content_Length": str(limits.MAX_DATASET_SIZE_BYTES + 1)}, 413, "Maximum request body size"),
        ({"Origin": "http://evil.example"}, 403, "browsers"),
        ({"Content_Length": "x"}, 400, ""),
    ],
)
def test_a_bad_upload_is_rejected_with_a_reason(
    node: ContentNode, headers: dict[str, str], status: int, says: str
) -> None:
    """An upload over MAX_DATASET_SIZE_BYTES is rejected before a byte is read. MAX_FILENAME_SIZE_BYTES also applies."""
    before = ask(node, "GET", "/data")[2]
    found, _, text = ask(node, "POST", "/data", b"x", **headers)
    assert found == status
    assert says in text.decode()
    assert ask(node, "GET", "/data")[2] == before


def test_an_empty_upload_is_rejected(node: ContentNode) -> None:
    assert ask(node, "POST", "/data", b"")[::2] == (422, b"empty body: a dataset has at least one byte")


def test_invalid_and_unknown_ids_have_different_statuses(node: ContentNode) -> None:
    unknown = str(described(b"never stored")[0])
    block = str(Cid(CODEC_BLOCK, bytes(32)))
    routes = [
        ("GET", ""),
        ("GET", "/network/stream"),
        ("GET", "/network/manifest"),
        ("POST", "/network"),
        ("GET", "/leaves"),
    ]
    for method, route in [*routes, ("GET", "/exists"), ("DELETE", "")]:
        for bad in ("x", "z" * 52, unknown[:-1], "Qm" + "a" * 44, "%00", "%2e%2e%2fdata", unknown + "x"):
            status, _, text = ask(node, method, f"/data/{bad}{route}")
            assert status == 400, (method, route, bad)
            assert b"content id" in text
    for method, route in routes:
        for cid in (unknown, block):
            status, _, text = ask(node, method, f"/data/{cid}{route}")
            assert status == 404
            assert b"not found in the content store" in text
    assert ask(node, "GET", "/nothing")[0] == 404
    assert ask(node, "PUT", "/data")[0] == 405
    for route in ("/spr", "/peerid", "/connect/x"):
        assert ask(node, "GET", route)[0] == 501


@given(st.binary(max_size=300))
@settings(max_examples=60)
def test_random_bytes_on_a_connection_do_not_harm_the_server(node: ContentNode, noise: bytes) -> None:
    for head in (
        b"",
        b"POST /api/codex/v1/data HTTP/1.1\r\nHost: archives.example.org:81\r\n",
        b"GET /api/codex/v1/data/",
    ):
        with socket.create_connection(("127.0.0.1", node.port), timeout=LIMIT_S) as connection:
            connection.sendall(head + noise)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass
    assert ask(node, "GET", "/space")[0] == 200


def test_an_interrupted_upload_leaves_no_files(tmp_path: Path) -> None:
    incoming = tmp_path / "store" / "incoming"
    with served(tmp_path / "store") as node:
        for head in (b"Content-Length: 9000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n100000\r\n"):
            with socket.create_connection(("127.0.0.1", node.port)) as connection:
                connection.sendall(
                    b"POST /api/codex/v1/data HTTP/1.1\r\nHost: archives.example.org:81\r\n" + head + bytes(500_000)
                )
                wait_until(lambda: any(incoming.iterdir()))
            wait_until(lambda: not any(incoming.iterdir()))
            assert json.loads(ask(node, "GET", "/data")[2]) == {"content": []}
            assert json.loads(ask(node, "GET", "/space")[2])["quotaReservedBytes"] == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /api/codex/v1/data HTTP/1.1\r\nHost: OWN\r\nContent-Length: 9000000\r\n\r\n" + bytes(500_000),
        b"POST /api/codex/v1/data HTTP/1.1\r\nHost: OWN\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /api/codex/v1/data/CID HTTP/1.1\r\nHost: OWN\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: OWN\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
    ids=["upload cut", "wrong chunk", "download cut", "wrong version", "long header"],
)
def test_a_broken_connection_is_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async def work(server: ContentServer, client: ContentClient) -> None:
        host, port = server.address
        cid = (await client.upload_bytes(bytes_of(1, 30_000_000))).cid if b"CID" in sent else ""
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(sent.replace(b"OWN", f"{host}:{port}".encode()).replace(b"CID", str(cid).encode()))
        if b"Content-Length" not in sent:  # the request with an incomplete body gets no response
            await reader.read(100)
        writer.transport.abort()
        await asyncio.to_thread(wait_until, lambda: caplog.records)

    caplog.set_level(logging.INFO)
    with_server(tmp_path, work)
    (record,) = caplog.records
    assert record.message == "connection closed: not HTTP, or aborted by the client"
    assert (record.levelno, record.exc_info) == (logging.INFO, None)
    assert vars(record)["reason"]


def test_a_full_store_rejects_uploads_with_a_reason(tmp_path: Path) -> None:
    async def work(_: ContentServer, client: ContentClient) -> None:
        kept = (await client.upload_bytes(bytes_of(1, 3 * BLOCK_SIZE_BYTES))).cid
        with pytest.raises(NoRoomError, match="507"):
            await client.upload_bytes(bytes_of(2, 2_000_000))
        await client.delete(kept)
        await client.upload_bytes(bytes_of(2, 3 * BLOCK_SIZE_BYTES))
        assert (await client.space()).reserved_size_bytes == 0

    with_server(tmp_path, work, quota_size_bytes=4 * BLOCK_SIZE_BYTES)


def test_concurrent_uploads_are_limited(tmp_path: Path) -> None:
    """MAX_UPLOADS_AT_ONCE: a further upload is rejected, and accepted after another has ended."""
    head = b"POST /api/codex/v1/data HTTP/1.1\r\nHost: archives.example.org:81\r\nContent-Length: 7\r\n\r\n"
    with served(tmp_path / "store") as node, ExitStack() as open_ones:
        for _ in range(limits.MAX_UPLOADS_AT_ONCE):
            connection = open_ones.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=LIMIT_S))
            connection.sendall(head + b"pay")
        incoming = tmp_path / "store" / "incoming"
        wait_until(lambda: len([*incoming.iterdir()]) == 2 * limits.MAX_UPLOADS_AT_ONCE)
        status, _, text = ask(node, "POST", "/data", b"payload")
        assert (status, b"Try again later" in text) == (503, True)
        connection.sendall(b"load")
        assert b" 200 OK" in connection.recv(4_096)
        assert ask(node, "POST", "/data", b"payload")[0] == 200


def connections(server: ContentServer) -> list[object]:
    assert server._runner.server
    return [*server._runner.server.connections]


@pytest.mark.thorough
def test_idle_clients_are_disconnected(tmp_path: Path) -> None:
    """STALL_TIMEOUT_S is the server's default time-out; the test shortens it."""

    async def stored(_: ContentServer, client: ContentClient) -> Cid:
        return (await client.upload_bytes(random.randbytes(30_000_000))).cid

    async def work(server: ContentServer, _: ContentClient) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        own = f"HTTP/1.1\r\nHost: {server.address[0]}:{server.address[1]}\r\n"
        writer.write(f"POST /api/codex/v1/data {own}Content-Length: 7\r\n\r\npay".encode())
        assert b" 408 " in await asyncio.wait_for(reader.read(100), LIMIT_S)
        writer.close()
        reader, writer = await asyncio.open_connection(*server.address, limit=1_000)
        writer.write(f"GET {PREFIX}/data/{cid} {own}\r\n".encode())
        got = len(await reader.readexactly(1))
        await asyncio.to_thread(wait_until, lambda: not connections(server))
        try:
            while part := await asyncio.wait_for(reader.read(1 << 20), LIMIT_S):
                got += len(part)
        except ConnectionError:
            pass
        assert got < 30_000_000
        writer.close()

    assert inspect.signature(ContentServer).parameters["stall_timeout_s"].default == limits.STALL_TIMEOUT_S
    cid = with_server(tmp_path, stored)
    with_server(tmp_path, work, stall_timeout_s=2.0)


@pytest.mark.thorough
@pytest.mark.parametrize("is_client_impatient", [True, False], ids=["upload", "download"])
def test_a_slow_client_is_not_disconnected_as_idle(tmp_path: Path, *, is_client_impatient: bool) -> None:
    """Within the time-out, the link transfers less than one hashed part and less than the kernel's buffers hold."""
    data = random.randbytes(6_000_000)

    async def work(server: ContentServer, client: ContentClient) -> None:
        stored = None if is_client_impatient else await client.upload_bytes(data)
        async with (
            slow_link(server.address, 800_000) as (host, port),
            ContentClient(f"http://{host}:{port}", stall_timeout_s=1.0 if is_client_impatient else LIMIT_S) as slow,
        ):
            if stored is None:
                stored = await slow.upload_bytes(data)
            else:
                await slow.download(stored.cid, tmp_path / "got")
        assert await client.manifest(stored.cid) == stored.manifest

    with_server(tmp_path, work, names=["127.0.0.1"], stall_timeout_s=LIMIT_S if is_client_impatient else 1.0)
    assert is_client_impatient or (tmp_path / "got").read_bytes() == data


def test_a_damaged_dataset_is_never_served_completely(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = random.randbytes(3_000_000)

    async def work(server: ContentServer, client: ContentClient) -> None:
        uploaded = await client.upload_bytes(data)
        path = tmp_path / "store" / "data" / str(uploaded.tree)
        for at in (5, 2_500_000):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises(ArchiveError, match="500" if at == 5 else "closed the connection"):
                await client.download(uploaded.cid, tmp_path / f"target{at}")
            assert not (tmp_path / f"target{at}").exists()
        path.write_bytes(data)
        await client.download(uploaded.cid, tmp_path / "target")

    with_server(tmp_path / "store", work)
    assert (tmp_path / "target").read_bytes() == data
    failed, aborted = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert (failed.message, aborted.message) == ("request failed", "download aborted")
    for record in (failed, aborted):
        assert "damaged" in vars(record)["reason"]
        assert vars(record)["path"].startswith(f"{PREFIX}/data/")


# --- the process -------------------------------------------------------------------------------------


def test_the_server_listens_only_on_loopback_by_default(tmp_path: Path) -> None:
    async def work(server: ContentServer, _: ContentClient) -> None:
        assert server.address[0] == "127.0.0.1"
        with ContentStore.open(tmp_path / "other") as other:
            with pytest.raises(NodeError, match="cannot listen"):
                async with ContentServer(other, port=server.address[1]):
                    pass
            with pytest.raises(NodeError, match="cannot listen"):
                async with ContentServer(other, port=99_999):
                    pass

    with_server(tmp_path / "store", work)


def test_the_url_of_an_ipv6_address_has_brackets(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("IPv6 is not available here")

    async def work(server: ContentServer, client: ContentClient) -> None:
        assert server.url == f"http://[::1]:{server.address[1]}"
        assert (await client.space()).reserved_size_bytes == 0

    with_server(tmp_path, work, host="::1")


ROUTES = [("GET", "/data"), ("POST", "/data"), ("GET", "/space"), ("DELETE", f"/data/{PAYLOAD_CID}"), ("GET", "/none")]


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_a_request_with_a_foreign_host_name_is_rejected(node: ContentNode, method: str, route: str) -> None:
    """A web page uses DNS rebinding: its name resolves to this machine, and its requests have its name and any port."""
    body = b"x" if method == "POST" else None
    foreign = ["evil.example", "localhost.evil.example", "evil.example@localhost", "127.0.0.1.nip.io", "", "[::1", "*"]
    for host in [*foreign, *(f"{name}:{node.port}" for name in foreign), f"{OWN_HOST}:82", OWN_HOST, "localhost"]:
        status, _, words = ask(node, method, route, body, Host=host)
        assert (status, b"unknown host name" in words) == (403, True), host
    own = ["localhost", "LocalHost", "127.0.0.1", "[::1]"]
    for host in [*(f"{name}:{node.port}" for name in own), "127.0.0.1:9", f"{OWN_HOST}:81", f"{OWN_HOST.upper()}:81"]:
        assert ask(node, method, route, body, Host=host)[0] != 403, host


def test_a_request_with_several_host_headers_or_none_is_rejected(node: ContentNode) -> None:
    for lines in ("", f"Host: localhost:{node.port}\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", node.port), 30) as connection:
            connection.sendall(f"GET {PREFIX}/data HTTP/1.0\r\n{lines}\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        assert answer.split()[1] in (b"403", b"400"), answer


def test_only_the_address_of_the_connection_is_accepted_as_host(tmp_path: Path) -> None:
    """A server on all addresses accepts the address of a connection, and localhost on the same machine."""

    async def work() -> None:
        with ContentStore.open(tmp_path / "store") as store:
            async with ContentServer(store, host="0.0.0.0") as server:
                port = server.address[1]
                for to, host, status in [
                    ("127.0.0.2", f"127.0.0.2:{port}", 200),
                    ("127.0.0.2", f"localhost:{port}", 200),
                    ("127.0.0.2", f"127.0.0.3:{port}", 403),
                    ("127.0.0.2", f"127.0.0.2:{port + 1}", 403),
                    ("127.0.0.2", "127.0.0.2", 403),
                ]:
                    reader, writer = await asyncio.open_connection(to, port)
                    writer.write(f"GET {PREFIX}/data HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                    assert (await reader.readline()).split()[1] == str(status).encode(), (to, host)
                    writer.close()
            with pytest.raises(NodeError, match="invalid name"):
                ContentServer(store, names=["a b"])

    asyncio.run(work())


def listens(node: ServedContent) -> bool:
    try:
        socket.create_connection(("127.0.0.1", node.port)).close()
    except ConnectionError:
        return False
    return True


def test_the_server_completes_a_download_before_it_exits(tmp_path: Path) -> None:
    data = random.randbytes(20_000_000)
    with served(tmp_path / "store") as node:
        cid = put(node, data)
        with closing(http.client.HTTPConnection("127.0.0.1", node.port, timeout=LIMIT_S)) as connection:
            connection.request("GET", f"{PREFIX}/data/{cid}")
            answer = connection.getresponse()
            got = answer.read(1_000_000)
            node.process.terminate()
            wait_until(lambda: not listens(node))
            got += answer.read()
        assert got == data
        assert node.process.wait(LIMIT_S) == 0
    with ContentStore.open(tmp_path / "store") as store:
        assert [str(found) for found, _ in store.datasets()] == [cid]


@pytest.mark.thorough
def test_the_memory_of_the_server_does_not_depend_on_the_size(tmp_path: Path) -> None:
    def upload_and_download(node: ContentNode, size_bytes: int) -> None:
        (tmp_path / "up").write_bytes(random.randbytes(size_bytes))
        uploaded = upload_file(node.url, tmp_path / "up")
        download_file(node.url, uploaded.cid, tmp_path / "down")

    with served(tmp_path / "store") as node:
        upload_and_download(node, 15_000_000)
        small_mb = node.highest_memory_mb()
        upload_and_download(node, 90_000_000)
        assert node.highest_memory_mb() < small_mb + 15


def test_a_filename_cannot_inject_headers() -> None:
    with pytest.raises(ArchiveError, match="invalid filename"):
        DatasetManifest(described(b"x")[1].tree, 1, 'a"\r\nSet-Cookie: x')
    assert manifest_cid(described(b"x")[1]) == described(b"x")[0]
