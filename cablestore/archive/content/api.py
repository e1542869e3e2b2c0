"""Codex' REST API, for client and server: routes, and the JSON of manifests and lists. Pure.

Sources in nim-codex: codex/rest/api.nim, codex/rest/json.nim, openapi.yaml.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Final, TypeVar

from msgspec import Raw, Struct, to_builtins

from cablestore.archive.content.dataset import PART_SIZE_BYTES
from cablestore.archive.format.cid import (
    BLOCK_SIZE_BYTES,
    CODEC_MANIFEST,
    Cid,
    DatasetManifest,
    manifest_of,
)
from cablestore.documents import read_document
from cablestore.errors import ArchiveError

PREFIX: Final = "/api/codex/v1"
LEAVES_ROUTE: Final = "leaves"
"""Route `GET /data/{cid}/leaves` of cablestore: the concatenated SHA-256 of all blocks.

With the leaves, a client verifies each block on arrival and resumes an interrupted download. Other nodes answer 404."""
VERIFY: Final = "verify"
"""Parameter of `GET /data/{cid}/exists?verify=1`, which reads the whole dataset first. Only cablestore supports it;
other nodes ignore it."""
VIA: Final = "Via"
"""Header (RFC 9110, 7.6.3) of a request that a node sends on behalf of a client.

Such a request is answered only from the store, to avoid request loops between nodes that use each other as upstream.
"""

T = TypeVar("T")


class ManifestFields(Struct, rename="camel"):
    """Manifest in the JSON of the API."""

    tree_cid: str
    dataset_size: int
    block_size: int
    protected: bool = False
    filename: str | None = None
    mimetype: str | None = None


class Item(Struct):
    """Dataset in the JSON of the API."""

    cid: str
    manifest: ManifestFields


class _Items(Struct):
    content: list[Raw]


def disposition(filename: str) -> str:
    """Return the header Content-Disposition for a filename that `cid.check_filename` accepts."""
    return f'attachment; filename="{filename}"'


async def in_parts(stream: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield `stream` in parts of 1 MiB or more, except the last. If reading fails, yield the received data first."""
    part = bytearray()
    try:
        async for data in stream:
            part += data
            if len(part) >= PART_SIZE_BYTES:
                yield bytes(part)
                part.clear()
    except Exception:  # any error of the stream, which is raised after the data received before it
        if part:
            yield bytes(part)
        raise
    if part:
        yield bytes(part)


def item_json(cid: Cid, manifest: DatasetManifest) -> dict[str, Any]:
    """Return a dataset in the JSON of the API."""
    listed = ManifestFields(
        str(manifest.tree),
        manifest.dataset_size_bytes,
        BLOCK_SIZE_BYTES,
        filename=manifest.filename,
        mimetype=manifest.mimetype,
    )
    fields: dict[str, Any] = to_builtins(Item(str(cid), listed))
    return fields


def read_answer(data: bytes | Raw, kind: type[T], meaning: str) -> T:
    """Decode the JSON of an answer as a value of the type `kind`.

    Raises ArchiveError for other JSON. `meaning` describes the expected answer in the message.
    """
    try:
        return read_document(data, kind)
    except ValueError as error:
        raise ArchiveError(f"the node's answer is not {meaning}: {error}. Use another node") from None


def read_item(item: Item) -> tuple[Cid, DatasetManifest]:
    """Return the id and the manifest of a dataset.

    Raises ArchiveError if the manifest does not match the id, because it is forged or in an unknown format.
    """
    listed = item.manifest
    if listed.block_size != BLOCK_SIZE_BYTES:
        raise ArchiveError(
            f"the node listed a dataset with blocks of {listed.block_size} bytes, expected {BLOCK_SIZE_BYTES}"
        )
    cid, tree = Cid.parse(item.cid), Cid.parse(listed.tree_cid)
    manifest = manifest_of(cid, tree, listed.dataset_size, listed.filename, listed.mimetype)
    if manifest is None:
        raise ArchiveError(
            f"the node returned a manifest that does not match {cid} in any known format. Use another node"
        )
    return cid, manifest


def read_manifest_of(cid: Cid, data: bytes) -> DatasetManifest:
    """Decode the manifest of one dataset. Raises ArchiveError for the manifest of another dataset."""
    if cid.codec != CODEC_MANIFEST:
        raise ArchiveError(f"{cid} is not the id of a manifest. Fetch a dataset by the id of its manifest")
    found, manifest = read_item(read_answer(data, Item, "a dataset"))
    if found != cid:
        raise ArchiveError(f"the node returned {found} instead of {cid}. Use another node")
    return manifest


def read_list(data: bytes) -> tuple[list[tuple[Cid, DatasetManifest]], list[str]]:
    """Decode a list of datasets. Return the datasets with verified manifests, and the errors of the others."""
    known, refused = [], []
    for entry in read_answer(data, _Items, "a list of datasets").content:
        try:
            known.append(read_item(read_answer(entry, Item, "a dataset")))
        except ArchiveError as error:
            refused.append(str(error))
    return known, refused
