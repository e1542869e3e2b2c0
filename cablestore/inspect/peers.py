"""The peers of the node that serves the store, and the history archives of a folder by week."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from cablestore.archive.local import local_archives
from cablestore.errors import ArchiveError, StorageError
from cablestore.inspect.page import Inspected, Page, Query
from cablestore.protocol.dialect import Dialect


async def peers(inspected: Inspected, _: Query) -> Page:
    """Return the health of the node, its peers and their traffic, and the peers that it dials."""
    node = inspected.node
    status = None if node is None else await asyncio.to_thread(node.status)
    if node is None or status is None:
        return Page("peers", "Peers", {"status": None, "peers": [], "dials": [], "bans": []}, "")
    dials, bans = [], []
    if not inspected.is_public:
        dials, bans = await asyncio.to_thread(node.dials), await asyncio.to_thread(node.bans)
    found = [{name: getattr(peer, name) for name in peer.__dataclass_fields__} for peer in status.peers]
    for number, peer in enumerate(found, 1):
        if inspected.is_public:
            peer |= {"address": f"peer {number}", "key": None}
    fields = {name: getattr(status, name) for name in status.__dataclass_fields__ if name != "peers"}
    return Page("peers", "Peers", {"status": fields, "peers": found, "dials": dials, "bans": bans}, "")


async def archives(inspected: Inspected, _: Query) -> Page:
    """Return the archives of each community in the folder of archives."""
    folder = None if inspected.is_public else inspected.archives
    found = [] if folder is None else await asyncio.to_thread(_communities, folder, inspected.store.dialect)
    days = (await inspected.store.stats()).days
    return Page("archives", "Archives", {"folder": folder, "communities": found, "weeks": _weeks(days)})


def _weeks(days: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (start of Monday in milliseconds, posts) for each week with posts, in order, given (day, posts)."""
    weeks: dict[int, int] = {}
    for day_ms, posts in days:
        monday = (day_ms // 86_400_000 + 3) // 7 * 7 - 3
        weeks[monday * 86_400_000] = weeks.get(monday * 86_400_000, 0) + posts
    return sorted(weeks.items())


def _communities(folder: Path, dialect: Dialect) -> list[dict[str, Any]]:
    try:
        names = sorted(each.name for each in folder.iterdir() if len(each.name) == 64 and each.is_dir())
    except OSError as error:
        return [{"community": str(folder), "problem": error.strerror or str(error), "weeks": []}]
    return [_community(folder, name, dialect) for name in names if not name.strip("0123456789abcdef")]


def _community(folder: Path, name: str, dialect: Dialect) -> dict[str, Any]:
    try:
        found = local_archives(folder, bytes.fromhex(name), dialect, None)
    except (ArchiveError, StorageError) as error:  # such as archives that a cabal key encrypts
        return {"community": name, "problem": str(error), "weeks": []}
    entries = () if found is None else found.verified.index.entries
    weeks = [
        {
            "from_ms": entry.period.from_ms,
            "posts": found.verified.commitments[entry.archive_id].num_posts,
            "size_bytes": found.size_bytes(entry),
            "channels": len(entry.topics) - 1,
            "archive": entry.archive_id,
        }
        for entry in entries
        if found is not None
    ]
    return {"community": name, "problem": "", "weeks": weeks}
