"""What Codex' REST API says, for both sides of it: routes, and the JSON of manifests and of lists. Pure.

From nim-codex: codex/rest/api.nim, codex/rest/json.nim, openapi.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from cablestore.archive.format.cid import (
    BLOCK_SIZE_BYTES,
    CODEC_MANIFEST,
    Cid,
    DatasetManifest,
    ManifestFormat,
    manifest_cid,
)
from cablestore.errors import ArchiveError

PREFIX: Final = "/api/codex/v1"
LEAVES_ROUTE: Final = "leaves"
"""`GET /data/{cid}/leaves`, which only we have: the SHA-256 of each block, joined. With it a client verifies each block as it
comes, and goes on where it was interrupted; other nodes answer 404."""
VIA: Final = "Via"
"""The header (RFC 9110, 7.6.3) of what one node asks another on behalf of a client: it is answered from what is there, so
that nodes which have one another as upstream do not ask in a circle."""


def disposition(filename: str) -> str:
    """Return the header Content-Disposition with a filename, which `cid.check_filename` took for one."""
    return f'attachment; filename="{filename}"'


def manifest_json(manifest: DatasetManifest) -> dict[str, Any]:
    """Return a manifest as the API says it."""
    return {
        "treeCid": str(manifest.tree),
        "datasetSize": manifest.dataset_size_bytes,
        "blockSize": BLOCK_SIZE_BYTES,
        "protected": False,
        "filename": manifest.filename,
        "mimetype": manifest.mimetype,
    }


def item_json(cid: Cid, manifest: DatasetManifest) -> dict[str, Any]:
    """Return a dataset as the API says it."""
    return {"cid": str(cid), "manifest": manifest_json(manifest)}


def read_json(data: bytes) -> Any:
    """Read an answer's JSON; raises ArchiveError for what is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise ArchiveError(f"the node answered what is not JSON: {data[:80]!r}") from None


def read_item(item: Any) -> tuple[Cid, DatasetManifest]:
    """Read a dataset; its manifest is the one that its id is of, in whichever generation.

    Raises ArchiveError for another shape, and for a manifest that is not of this id: it is forged, or of a generation that
    is not known, and in both cases says nothing.
    """
    try:
        cid, told = Cid.parse(_text(item["cid"])), item["manifest"]
        tree, size_bytes, block_size_bytes = Cid.parse(_text(told["treeCid"])), told["datasetSize"], told["blockSize"]
        filename, mimetype = (None if told.get(key) is None else _text(told[key]) for key in ("filename", "mimetype"))
    except (KeyError, TypeError, AttributeError):
        raise ArchiveError(f"the node answered something else than a dataset: {str(item)[:80]}") from None
    if type(size_bytes) is not int or block_size_bytes != BLOCK_SIZE_BYTES:
        raise ArchiveError(
            f"the node told of a dataset of {size_bytes!r:.40} bytes in blocks of {block_size_bytes!r:.40}"
        )
    for manifest_format in ManifestFormat:
        manifest = DatasetManifest(tree, size_bytes, filename, mimetype, manifest_format)
        if manifest_cid(manifest) == cid:
            return cid, manifest
    raise ArchiveError(
        f"the manifest that the node gave is not the one of {cid} in any known generation: do not believe it"
    )


def read_manifest_of(cid: Cid, data: bytes) -> DatasetManifest:
    """Read the answer to a request for one dataset's manifest. Raises ArchiveError unless it is that one's."""
    if cid.codec != CODEC_MANIFEST:
        raise ArchiveError(f"{cid} is not the id of a manifest: datasets are fetched by those")
    found, manifest = read_item(read_json(data))
    if found != cid:
        raise ArchiveError(f"the node was asked for {cid} and answered with {found}")
    return manifest


def read_list(data: bytes) -> tuple[list[tuple[Cid, DatasetManifest]], list[str]]:
    """Read a list of datasets: those whose manifests are verified, and why each of the others is none."""
    items = _content(read_json(data))
    known, refused = [], []
    for item in items:
        try:
            known.append(read_item(item))
        except ArchiveError as error:
            refused.append(str(error))
    return known, refused


def read_space(data: bytes) -> tuple[int, int, int, int]:
    """Read how much a node stores: blocks, then bytes: the quota, used, reserved. Raises ArchiveError for anything else."""
    told = read_json(data)
    keys = ("totalBlocks", "quotaMaxBytes", "quotaUsedBytes", "quotaReservedBytes")
    if not isinstance(told, dict) or not all(type(told.get(key)) is int for key in keys):
        raise ArchiveError(f"the node answered something else than its space: {str(told)[:80]}")
    blocks, quota, used, reserved = (int(told[key]) for key in keys)
    return blocks, quota, used, reserved


def _content(answer: Any) -> Iterable[Any]:
    if not isinstance(answer, dict) or not isinstance(answer.get("content"), list):
        raise ArchiveError(f"the node answered something else than a list of datasets: {str(answer)[:80]}")
    return list(answer["content"])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
