"""Published clients of Codex work with our endpoint without changes.

The Python client is `pip install codex-api-client`. For the JavaScript client, run `npm install @codex-storage/sdk-js
undici` in a folder. Set CABLESTORE_NODE_MODULES to that folder.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from content_nodes import ServedContent, served
from folders import SUPPORT
from waiting import LIMIT_S

SDK = SUPPORT / "codex_sdk.cjs"
PAYLOAD_CID = "zDvZRwzmBEaJ338xaCHbKbGAJ4X41YyccS6eyorrYBbmPnWuLxCh"
"""Content id that Codex nodes return for `payload` as hello.txt with type text/plain."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServedContent]:
    with served(tmp_path / "store") as running:
        yield running


def test_the_python_client_works_unchanged(node: ServedContent, tmp_path: Path) -> None:
    codex = pytest.importorskip("codex_api_client", reason="pip install codex-api-client")
    large = random.randbytes(5_000_000)
    (tmp_path / "large").write_bytes(large)
    with codex.ApiClient(codex.Configuration(host=f"{node.url}/api/codex/v1")) as api:
        data = codex.DataApi(api)
        # With `content_type`, the client sends two Content-Type headers: the caller's and its own.
        disposition = 'attachment; filename="hello.txt"'
        cid = data.upload(body=b"payload", content_type="text/plain", content_disposition=disposition)
        assert cid == PAYLOAD_CID
        plain = data.upload(body=str(tmp_path / "large"))
        assert {item.cid for item in data.list_data().content} == {cid, plain}
        assert data.download_local(cid) == b"payload"
        assert data.download_network_stream(plain) == large
        item = data.download_network_manifest(cid)
        assert (item.cid, item.manifest.filename, item.manifest.mimetype) == (cid, "hello.txt", "text/plain")
        assert (item.manifest.dataset_size, item.manifest.block_size, item.manifest.protected) == (7, 65_536, False)
        assert data.download_network(cid).cid == cid
        space = data.space()
        assert space.total_blocks == 1 + -(-len(large) // 65_536) + 2
        assert space.quota_used_bytes > len(large)
        assert codex.DebugApi(api).get_debug_info().codex.version == "cablestore"
        data.delete_local(cid)
        with pytest.raises(codex.exceptions.NotFoundException, match="not found in the content store"):
            data.download_local(cid)
        with pytest.raises(codex.exceptions.BadRequestException, match="content id"):
            data.download_local("nonsense")
        with pytest.raises(codex.exceptions.UnprocessableEntityException, match="media type"):
            data.upload(body=b"x", content_type="nonsense")


def test_the_javascript_client_works_unchanged(node: ServedContent, tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    modules = os.environ.get("CABLESTORE_NODE_MODULES")
    if not modules:
        pytest.skip("CABLESTORE_NODE_MODULES names no folder with @codex-storage/sdk-js: npm install it there")
    large, copy = tmp_path / "large", tmp_path / "copy"
    large.write_bytes(random.randbytes(20_000_000))
    command = ["node", str(SDK), node.url, str(large), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    output: dict[str, Any] = json.loads(done.stdout)
    assert output["cid"] == PAYLOAD_CID
    assert set(output["cids"]) == {output["cid"], output["unnamed"], output["large"]}
    assert output["local"] == output["stream"] == "payload"
    assert (output["type"], output["disposition"]) == ("text/plain", 'attachment; filename="hello.txt"')
    assert output["network"]["cid"] == output["manifest"]["cid"] == PAYLOAD_CID
    assert output["manifest"]["manifest"]["datasetSize"] == 7
    assert output["space"]["totalBlocks"] == 1 + -(-20_000_000 // 65_536) + 3
    assert copy.read_bytes() == large.read_bytes()
    assert output["info"]["codex"]["version"] == "cablestore"
    assert (output["bad"]["error"], output["bad"]["code"]) == (True, 400)
    assert (output["badName"]["error"], output["badName"]["code"]) == (True, 422)
    assert "invalid filename" in output["badName"]["message"]
    assert (output["empty"]["error"], output["empty"]["code"]) == (True, 422)
    assert output["deleted"] is True
    assert output["gone"]["code"] == 404
