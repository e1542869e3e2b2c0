"""Folder of a content store: its layout, and a lock that allows one process at a time.

CONTENT                 JSON: {"format": 1}
lock                    locked with flock while the store is open; contains the owner's process id
data/TREE               the bytes of a dataset, named by its tree's id
leaves/TREE             the SHA-256 of each block of the dataset
manifests/MANIFEST      a manifest, named by its id
incoming/               datasets and manifests that are being written
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from cablestore.errors import ArchiveError, StoreLockedError
from cablestore.files import (
    is_foreign,
    lock,
    make_folder,
    make_part,
    restrict,
    sign_lock,
    sync_folder,
    unlock,
    write_atomically,
)

FORMAT: Final = 1
"""Version of the folder's format."""
DATA: Final = "data"
"""Folder of complete datasets, one file each."""
LEAVES: Final = "leaves"
"""Folder of the SHA-256 of the datasets' blocks."""
MANIFESTS: Final = "manifests"
"""Folder of the datasets' manifests."""
INCOMING: Final = "incoming"
"""Folder of incomplete files."""

_HEADER: Final = "CONTENT"
_LOCK: Final = "lock"
_OWN: Final = frozenset({_HEADER, f"{_HEADER}.new", _LOCK, DATA, LEAVES, MANIFESTS, INCOMING})


def is_own(name: str) -> bool:
    """Return True if a content store uses this name for an entry of its folder."""
    return name in _OWN


def lock_folder(folder: Path) -> int:
    """Lock the folder of a content store, and create a store in a new or empty folder. Return the lock's descriptor.

    The system releases the lock when its process ends. Raises StoreLockedError if another process holds the lock,
    ArchiveError for a folder with other files, and OSError.
    """
    _inspect(folder)
    descriptor = lock(
        folder / _LOCK,
        lambda owner: StoreLockedError(
            f"the content store at {folder} is open in process {owner}. Only one process at a time can open it. Close "
            "the content store there first"
        ),
    )
    try:
        restrict(folder, is_own, notify=(folder / _HEADER).exists())
        sign_lock(descriptor)
        if not (folder / _HEADER).exists():
            write_atomically(folder / _HEADER, json.dumps({"format": FORMAT}).encode(), ".new")
        for name in (DATA, LEAVES, MANIFESTS, INCOMING):
            make_part(folder / name)
        sync_folder(folder)
    except BaseException:
        unlock(descriptor)
        raise
    return descriptor


def _inspect(folder: Path) -> None:
    """Raise ArchiveError unless the folder is a content store, new, or empty."""
    make_folder(folder)
    header = folder / _HEADER
    if not header.exists():
        names = {path.name for path in folder.iterdir() if not is_foreign(path.name)}
        foreign = sorted(names - {_LOCK, f"{_HEADER}.new"})
        if foreign:
            raise ArchiveError(
                f"{folder} is not a content store: it contains {', '.join(foreign[:3])}. Choose a new or empty folder"
            )
        return
    try:
        version = json.loads(header.read_bytes())["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArchiveError(f"invalid header of a content store in {header}: expected JSON with `format`") from None
    if version != FORMAT:
        raise ArchiveError(
            f"unsupported format {version} of the content store at {folder}, expected {FORMAT}. Install the version of "
            "cablestore that created it"
        )
