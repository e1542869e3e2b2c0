"""Codex' REST API, for client and server: routes, and the JSON of manifests and lists. Pure.

From nim-codex: codex/rest/api.nim, codex/rest/json.nim, openapi.yaml.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Final

from cablestore.archive.content.dataset import PART_SIZE_BYTES
from cablestore.archive.format.cid import (
    BLOCK_SIZE_BYTES,
    CODEC_MANIFEST,
    Cid,
    DatasetManifest,
    manifest_of,
)
from cablestore.errors import ArchiveError

PREFIX: Final = "/api/codex/v1"
LEAVES_ROUTE: Final = "leaves"
"""`GET /data/{cid}/leaves`, which only cablestore has: the SHA-256 of each block, joined.

With the leaves a client verifies each block as it comes and resumes an interrupted download. Other nodes answer 404.
"""
VERIFY: Final = "verify"
"""`GET /data/{cid}/exists?verify=1` reads the whole dataset before it answers. Only cablestore does; others ignore it."""
VIA: Final = "Via"
"""The header (RFC 9110, 7.6.3) of a request from one node to another on behalf of a client.

Such a request is answered from the store alone, so that nodes that have each other as upstream do not ask in a circle.
"""

SPACE_KEYS: Final = ("totalBlocks", "quotaMaxBytes", "quotaUsedBytes", "quotaReservedBytes")
"""The fields of a node's space, in the order of `store.Space`."""


def disposition(filename: str) -> str:
    """Return the header Content-Disposition for a filename that `cid.check_filename` accepts."""
    return f'attachment; filename="{filename}"'


async def in_parts(stream: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a body in parts that are large enough for a thread call. If it breaks off, yield what came before."""
    part = bytearray()
    try:
        async for data in stream:
            part += data
            if len(part) >= PART_SIZE_BYTES:
                yield bytes(part)
                part.clear()
    except Exception:  # whatever the stream raises, which is raised again after what came before it
        if part:
            yield bytes(part)
        raise
    if part:
        yield bytes(part)


def item_json(cid: Cid, manifest: DatasetManifest) -> dict[str, Any]:
    """Return a dataset as JSON of the API."""
    told = {
        "treeCid": str(manifest.tree),
        "datasetSize": manifest.dataset_size_bytes,
        "blockSize": BLOCK_SIZE_BYTES,
        "protected": False,
        "filename": manifest.filename,
        "mimetype": manifest.mimetype,
    }
    return {"cid": str(cid), "manifest": told}


def read_json(data: bytes) -> Any:
    """Read the JSON of an answer. Raises ArchiveError for anything else."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ArchiveError(f"the node's answer is not JSON: {data[:80]!r}") from None


def read_item(item: Any) -> tuple[Cid, DatasetManifest]:
    """Read a dataset. Its manifest, in one of the known formats, is the one that the id names.

    Raises ArchiveError for other JSON, and for a manifest that does not fit the id: it is forged or in an unknown
    format.
    """
    try:
        cid, told = Cid.parse(_text(item["cid"])), item["manifest"]
        tree, size_bytes, block_size_bytes = Cid.parse(_text(told["treeCid"])), told["datasetSize"], told["blockSize"]
        filename, mimetype = (None if told.get(key) is None else _text(told[key]) for key in ("filename", "mimetype"))
    except (KeyError, TypeError, AttributeError):
        raise ArchiveError(f"the node answered something else than a dataset: {str(item)[:80]}") from None
    if type(size_bytes) is not int or block_size_bytes != BLOCK_SIZE_BYTES:
        raise ArchiveError(
            f"the node listed a dataset of {size_bytes!r:.40} bytes in blocks of {block_size_bytes!r:.40}: expected "
            f"are whole numbers, and blocks of {BLOCK_SIZE_BYTES}"
        )
    manifest = manifest_of(cid, tree, size_bytes, filename, mimetype)
    if manifest is None:
        raise ArchiveError(
            f"the manifest that the node gave is not the one of {cid} in any known format. Use another node"
        )
    return cid, manifest


def read_manifest_of(cid: Cid, data: bytes) -> DatasetManifest:
    """Read the answer to a request for one dataset's manifest. Raises ArchiveError unless it is that one's."""
    if cid.codec != CODEC_MANIFEST:
        raise ArchiveError(f"{cid} is not the id of a manifest. Fetch a dataset by the id of its manifest")
    found, manifest = read_item(read_json(data))
    if found != cid:
        raise ArchiveError(f"the node was asked for {cid} and answered with {found}. Use another node")
    return manifest


def read_list(data: bytes) -> tuple[list[tuple[Cid, DatasetManifest]], list[str]]:
    """Read a list of datasets: those whose manifests are verified, and the errors of the others."""
    answer = read_json(data)
    if not isinstance(answer, dict) or not isinstance(answer.get("content"), list):
        raise ArchiveError(f"the node answered something else than a list of datasets: {str(answer)[:80]}")
    known, refused = [], []
    for item in answer["content"]:
        try:
            known.append(read_item(item))
        except ArchiveError as error:
            refused.append(str(error))
    return known, refused


def read_space(data: bytes) -> list[int]:
    """Read a node's space, the numbers of SPACE_KEYS. Raises ArchiveError for other JSON."""
    told = read_json(data)
    if not isinstance(told, dict) or not all(type(told.get(key)) is int for key in SPACE_KEYS):
        raise ArchiveError(f"the node answered something else than its space: {str(told)[:80]}")
    return [told[key] for key in SPACE_KEYS]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
