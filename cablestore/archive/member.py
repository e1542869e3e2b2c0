"""Member's side of a community's archives: reading announcements, selecting missing archives, importing them.

`imported.json` beside the archives lists each archive that a store has imported. Therefore an archive is not imported
twice, and an interrupted import resumes:

    {"format": 1, "store": "<its public key>", "roots": ["<Merkle root of an archive's posts>", ...],
    "place": {"database": "...", "sequence": 2000, "entry": "01..."}}

The file is treated as empty if the store's arrival log no longer contains the position in `place`, because the store may
have lost posts of the archives (`cablestore.index.log_position`). Then archives are imported again. This does not
change posts in the store. Therefore an import also works if the file cannot be written, such as on a full disk.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

from cablestore.archive.format.announcement import Announcement, Link, link_text, parse_announcement
from cablestore.archive.format.commitment import Commitment
from cablestore.archive.format.index import VerifiedIndex, verify_index
from cablestore.archive.format.magnet import Magnet
from cablestore.archive.format.profile import PROFILES, Entry
from cablestore.archive.importer import ArchiveImportReport, OnDamaged, has_kept, import_archives, log_place
from cablestore.errors import ArchiveError, StorageError
from cablestore.files import make_folder, storage_errors, write_atomically
from cablestore.index.log_position import LogPosition
from cablestore.protocol.body import TEXT, Text
from cablestore.protocol.dialect import ARCHIVES_CHANNEL, Dialect
from cablestore.remote.store import run
from cablestore.store.options import system_clock_ms
from cablestore.store.store import CableStore, own_key

ANNOUNCEMENT_WAIT_MS: Final = 20_000
"""Time that a member waits after an announcement, because a newer announcement may replace it (RFC 61)."""
_POLL_EVERY_MS: Final = 1_000
_FORMAT: Final = 1
_NAME: Final = "imported.json"


# --- announcements --------------------------------------------------------------------------------


def announce(store: CableStore, link: Link, *, clock: Callable[[], int] = system_clock_ms) -> bytes:
    """Announce a link to archives as the control node, which is the store's identity. Return the post's hash.

    The announcement replaces earlier announcements even if the clock was set back. Raises ArchiveError for another
    community's torrent.
    """
    community = own_key(store)
    if isinstance(link, Magnet) and link.community != community.hex():
        raise ArchiveError(
            f"wrong community in the link: expected {community.hex()} (the user of this store), got {link.community}. "
            "Announce a link to your own archives"
        )
    earlier = newest_announcement(store, community)
    least = earlier[1].clock + 1 if earlier else 0
    announcement = Announcement(max(clock(), least), link)
    return store.post(ARCHIVES_CHANNEL, announcement.text()).hash


def newest_announcement(store: CableStore, control_key: bytes) -> tuple[int, Announcement] | None:
    """Return the newest announcement of a control node and the time of its post in ms, or None without an announcement.

    Other messages are ignored.
    """
    best: tuple[int, Announcement] | None = None
    for post in store.posts_by(control_key, post_type=TEXT, channel=ARCHIVES_CHANNEL):
        if not isinstance(post.body, Text):
            continue
        try:
            found = parse_announcement(post.body.text)
        except ArchiveError:
            continue
        if best is None or found.clock > best[1].clock:
            best = post.timestamp_ms, found
    return best


def settled_announcement(
    store: CableStore,
    control_key: bytes,
    *,
    clock: Callable[[], int] = system_clock_ms,
    sleep: Callable[[float], None] = time.sleep,
    on_wait: Callable[[str], None] = lambda _: None,
) -> Announcement | None:
    """Wait until the newest announcement is ANNOUNCEMENT_WAIT_MS old, and return it, or None without an announcement.

    The age of an announcement counts from the time of its post, or from this call if that time is ahead of our clock.
    The age of an announcement that arrives during the wait counts from its arrival. `clock` returns ms, `sleep` accepts
    seconds. `on_wait` is called with the link of each announcement for which this waits.
    """
    found = newest_announcement(store, control_key)
    now_ms = clock()
    until_ms = ANNOUNCEMENT_WAIT_MS + (min(found[0], now_ms) if found else now_ms)
    told = None
    while found is not None and (left_ms := until_ms - clock()) > 0:
        if found != told:
            told = found
            on_wait(link_text(found[1].link))
        sleep(min(left_ms, _POLL_EVERY_MS) / 1000)
        newest = newest_announcement(store, control_key)
        if newest != found:
            found, until_ms = newest, clock() + ANNOUNCEMENT_WAIT_MS
    return found[1] if found else None


# --- imported and missing archives ----------------------------------------------------------------


class ImportLog:
    """Log of the imported archives of a community, by the Merkle roots of their posts.

    An archive's id is not sufficient, because it does not depend on the archive's content.
    """

    def __init__(
        self, community_folder: Path, store_key: bytes | None = None, *, store: CableStore | None = None
    ) -> None:
        """Read the log. With the public key of a store, the log of another store is treated as empty.

        With an open `store`, the log is also treated as empty if the store has lost posts since the last entry.
        """
        self._path = community_folder / _NAME
        self._open = store
        key = own_key(store) if store is not None and store_key is None else store_key
        self._store = key.hex() if key else None
        self._place: LogPosition | None = None
        self._roots = dict.fromkeys(self._read())
        self.problem = ""
        """Reason why the last write of the log failed, or "" if it did not fail."""

    @classmethod
    def of(cls, store: CableStore, community_folder: Path) -> Self:
        """Read the log of an open store."""
        return cls(community_folder, store=store)

    def _read(self) -> list[str]:
        try:
            found = json.loads(self._path.read_bytes())
            if found["format"] != _FORMAT or self._store not in (None, found["store"]):
                return []
            self._place = None if self._open is None else LogPosition.read(found["place"])
            return [str(root) for root in found["roots"]] if self._holds() else []
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return []

    def _holds(self) -> bool:
        """Return True unless the store has lost posts since the last log entry."""
        return self._open is None or self._place is None or run(self._open, has_kept, self._place)

    def __len__(self) -> int:
        """Return the number of imported archives."""
        return len(self._roots)

    def has(self, commitment: Commitment) -> bool:
        """Return True if an archive was imported, from a torrent or by content id."""
        return commitment.merkle_root.hex() in self._roots

    def add(self, commitment: Commitment) -> None:
        """Add an archive and write the log to the disk. If the write fails, `problem` contains the reason."""
        if not self._holds():
            self._roots = {}
        self._roots[commitment.merkle_root.hex()] = None
        noted: dict[str, Any] = {"format": _FORMAT, "store": self._store, "roots": [*self._roots]}
        if self._open is not None:
            self._open.sync()
            self._place = run(self._open, log_place)
            noted["place"] = self._place.fields()
        try:
            with storage_errors(self._path):
                make_folder(self._path.parent)
            write_atomically(self._path, json.dumps(noted).encode())
        except StorageError as error:
            self.problem = str(error)
        else:
            self.problem = ""


def verified_by_any_profile(
    data: bytes, control_key: bytes, dialect: Dialect, *, data_size_bytes: int | None, key: bytes | None
) -> VerifiedIndex:
    """Verify an index of any profile and return it. If all profiles fail, raises the ArchiveError of the first."""
    reasons = []
    for profile in PROFILES.values():
        try:
            return verify_index(data, profile, control_key, dialect, data_size_bytes=data_size_bytes, key=key)
        except ArchiveError as error:
            reasons.append(error)
    raise reasons[0]


def wanted(
    verified: VerifiedIndex,
    imported: ImportLog,
    *,
    latest: bool = False,
    after_ms: int | None = None,
    before_ms: int | None = None,
) -> list[Entry]:
    """Return the archives of all weeks that are not completely imported, newest week first.

    All archives of such a week are returned. With `latest`, only the last week of the index is considered. With
    `after_ms` or `before_ms`, only weeks that overlap the time range are considered.
    """
    entries = verified.index.entries
    periods = {entry.period for entry in entries if not imported.has(verified.commitments[entry.archive_id])}
    if latest and entries:
        periods &= {max(entry.period for entry in entries)}
    if after_ms is not None:
        periods = {period for period in periods if period.to_ms > after_ms}
    if before_ms is not None:
        periods = {period for period in periods if period.from_ms < before_ms}
    return sorted((entry for entry in entries if entry.period in periods), key=_newest_first)


def _newest_first(entry: Entry) -> tuple[int, int, str]:
    return -entry.period.from_ms, entry.offset_bytes, entry.archive_id


# --- importing -----------------------------------------------------------------------------------


def import_noted(
    store: CableStore,
    verified: VerifiedIndex,
    fetched: Iterator[tuple[Entry, bytes]],
    imported: ImportLog,
    *,
    key: bytes | None = None,
    merges: bool = False,
    on_damaged: OnDamaged | None = None,
) -> Iterator[tuple[Entry, ArchiveImportReport]]:
    """Import archives, add each to the log and yield its report.

    Other arguments and errors are as in `import_archives`.
    """
    for entry, found in import_archives(store, verified, fetched, key=key, merges=merges, on_damaged=on_damaged):
        imported.add(verified.commitments[entry.archive_id])
        yield entry, found
