"""Archives of a community in a local folder, from a torrent or by content id.

FOLDER/COMMUNITY/data, index    from a torrent (`folder`)
FOLDER/COMMUNITY/content/       by content id (`content.community`)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cablestore.archive.content.community import CidFolder
from cablestore.archive.errors import IncompleteError
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.announcement import link_text
from cablestore.archive.format.index import VerifiedIndex
from cablestore.archive.format.magnet import check_community
from cablestore.archive.format.profile import Entry
from cablestore.archive.member import verified_by_any_profile
from cablestore.errors import ArchiveError
from cablestore.limits import MAX_TORRENT_SIZE_BYTES
from cablestore.protocol.dialect import DRAFT8, LEGACY, Dialect

_WEEKS_NAMED: Final = 3
"""Maximum number of weeks in a message about missing archives."""


@dataclass(frozen=True, slots=True)
class LocalArchives:
    """Verified local index, and functions that read its archives."""

    verified: VerifiedIndex
    stored: Callable[[Entry], bytes]
    """Return an archive's bytes. Raises ArchiveError if they are missing."""
    size_bytes: Callable[[Entry], int | None]
    """Return an archive's size, or None if the archive is missing."""
    origin: str
    """Link for archives by content id, otherwise "torrent"."""

    @property
    def newest(self) -> tuple[int, int]:
        """End of the last week in ms, and the number of archives. A newer index never has smaller numbers."""
        entries = self.verified.index.entries
        return max((entry.period.to_ms for entry in entries), default=0), len(entries)


def community_folder(folder: Path, control_key: bytes) -> Path:
    """Return the folder of a control node's community below a folder of communities."""
    return folder / control_key.hex()


def local_archives(folder: Path, control_key: bytes, dialect: Dialect, key: bytes | None) -> LocalArchives | None:
    """Return a community's archives below a folder, or None without archives.

    If the folder contains an index of a torrent and an index by content id, the newer index is used. Raises
    ArchiveError for an index that is damaged, signed by another control node, or encrypted with another key.
    """
    found = [torrent_archives(folder, control_key, dialect, key), cid_archives(folder, control_key, dialect, key)]
    return max((each for each in found if each is not None), key=lambda each: each.newest, default=None)


def are_whole(folder: Path, community: str, key: bytes | None) -> bool:
    """Check a torrent's archives below a folder against their index.

    Returns True if all archives match, and False if the index is missing or unreadable.

    Raises IncompleteError, which lists the weeks, if archives are missing or damaged. Raises ArchiveError if a key is
    given and the index cannot be verified with it, or `community` is not a public key.
    """
    try:
        control_key = bytes.fromhex(check_community(community))
    except ValueError:
        if key is None:
            return False
        raise ArchiveError(
            f"invalid community for a cabal key: expected the public key of a control node (64 hex digits), got "
            f"{community}. Leave out the cabal key, or use the community's public key"
        ) from None
    for dialect in (LEGACY, DRAFT8):
        try:
            found = torrent_archives(folder, control_key, dialect, key)
        except ArchiveError as error:
            refused = error
            continue
        if found is not None:
            _check_whole(found)
        return found is not None
    if key is not None:
        raise refused
    return False


def _check_whole(archives: LocalArchives) -> None:
    missing = []
    for entry in archives.verified.index.entries:
        try:
            archives.verified.commitments[entry.archive_id].check_stored(archives.stored(entry))
        except ArchiveError:
            missing.append(entry)
    if missing:
        weeks = sorted({entry.period.first_day for entry in missing})
        named = ", ".join(weeks[:_WEEKS_NAMED])
        raise IncompleteError(
            f"archives missing or damaged: {len(missing):,} of {len(archives.verified.index.entries):,}, for weeks that "
            f"begin on {named}{' and later' if len(weeks) > _WEEKS_NAMED else ''}. Fetch all archives before you seed "
            "them"
        )


def torrent_archives(folder: Path, control_key: bytes, dialect: Dialect, key: bytes | None) -> LocalArchives | None:
    """Return the archives in a torrent's `data`, or None if the index is missing. Raises ArchiveError if it is invalid."""
    files = ArchiveFolder(community_folder(folder, control_key))
    data = files.index_bytes()
    if data is None:
        return None
    # A member's `data` ends after the last received archive. The index may contain archives after it.
    verified = verified_by_any_profile(data, control_key, dialect, data_size_bytes=MAX_TORRENT_SIZE_BYTES, key=key)

    def stored(entry: Entry) -> bytes:
        missing = f"archive {entry.archive_id} not found. Fetch the archive first"
        if files.data_size_bytes() < entry.offset_bytes + entry.size_bytes:
            raise ArchiveError(missing)
        content = files.stored(entry)
        if content.count(0) == len(content):  # a hole
            raise ArchiveError(missing)
        return content

    def size_bytes(entry: Entry) -> int | None:
        return entry.size_bytes if entry.offset_bytes + entry.size_bytes <= files.data_size_bytes() else None

    return LocalArchives(verified, stored, size_bytes, "torrent")


def cid_archives(folder: Path, control_key: bytes, dialect: Dialect, key: bytes | None) -> LocalArchives | None:
    """Return the archives by content id, or None if the index is missing. Raises ArchiveError if it is invalid."""
    files = CidFolder(community_folder(folder, control_key))
    cid, data = files.index_cid(), files.index_bytes()
    if cid is None or data is None:
        return None
    verified = verified_by_any_profile(data, control_key, dialect, data_size_bytes=None, key=key)
    return LocalArchives(verified, files.stored, files.size_bytes, link_text(cid))
