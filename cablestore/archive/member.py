"""What a member does with a community's archives: hear where they are, choose those it misses, and import them.

What a store has imported is noted in `imported.json` beside the archives, archive by archive, so that nothing is imported
twice and an interrupted import goes on:

    {"format": 1, "store": "<its public key>", "roots": ["<Merkle root of an archive's posts>", ...]}

Losing the file costs importing again, which changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from cablestore.archive.format.announcement import RESERVED_CHANNEL, Announcement, Link, link_text, parse_announcement
from cablestore.archive.format.commitment import Commitment
from cablestore.archive.format.index import VerifiedIndex, verify_index
from cablestore.archive.format.magnet import Magnet
from cablestore.archive.format.profile import PROFILES, Entry
from cablestore.archive.importer import ArchiveImportReport, OnDamaged, import_archives
from cablestore.archive.remote import ByteProgress, PlaceT, Remote, Span
from cablestore.errors import ArchiveError
from cablestore.files import storage_errors, write_whole
from cablestore.protocol.body import TEXT, Text
from cablestore.protocol.dialect import Dialect
from cablestore.store.store import CableStore, system_clock_ms

ANNOUNCEMENT_WAIT_MS: Final = 20_000
"""How long a member waits behind an announcement for a newer one before it acts (RFC 61)."""
_LOOK_EVERY_MS: Final = 1_000
_FORMAT: Final = 1
_NAME: Final = "imported.json"


# --- announcements --------------------------------------------------------------------------------


def announce(store: CableStore, link: Link, *, clock: Callable[[], int] = system_clock_ms) -> bytes:
    """Tell members, as the control node whose identity the store has, where its archives are. Returns the post's hash.

    The announcement counts from then on, also where the clock was set back. Raises ArchiveError for another community's torrent.
    """
    community = store.identity.public_key
    if isinstance(link, Magnet) and link.community != community.hex():
        raise ArchiveError(
            f"the link is to archives of {link.community}, this store's control node is {community.hex()}: announce your own"
        )
    earlier = newest_announcement(store, community)
    least = earlier[1].clock + 1 if earlier else 0
    announcement = Announcement(max(clock(), least), link)
    return store.text(RESERVED_CHANNEL, announcement.text()).hash


def newest_announcement(store: CableStore, control_key: bytes) -> tuple[int, Announcement] | None:
    """Return the announcement of a control node that counts, and when it was made, in ms; None where there is none.

    Posts of anyone else, and what is no announcement, are ignored.
    """
    best: tuple[int, Announcement] | None = None
    for post in store.posts_by(control_key, post_type=TEXT, channel=RESERVED_CHANNEL):
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
    """Return the newest announcement once it has stood for ANNOUNCEMENT_WAIT_MS, None where there is none.

    One that is there already stands since its post was made, or since now where that is ahead of our clock. One that comes
    while this waits stands since then. `clock` returns ms, `sleep` takes seconds, `on_wait` is told each link that is waited for.
    """
    found = newest_announcement(store, control_key)
    now_ms = clock()
    until_ms = ANNOUNCEMENT_WAIT_MS + (min(found[0], now_ms) if found else now_ms)
    told = None
    while found is not None and (left_ms := until_ms - clock()) > 0:
        if found != told:
            told = found
            on_wait(link_text(found[1].link))
        sleep(min(left_ms, _LOOK_EVERY_MS) / 1000)
        newest = newest_announcement(store, control_key)
        if newest != found:
            found, until_ms = newest, clock() + ANNOUNCEMENT_WAIT_MS
    return found[1] if found else None


# --- what is known, what is wanted ----------------------------------------------------------------


class ImportLog:
    """Which archives of a community a store has imported, by the roots of their posts: an id says only where one lies."""

    def __init__(self, community_folder: Path, store_key: bytes | None = None) -> None:
        """Read what is noted. With the public key of a store, what another one imported is none of its own."""
        self._path = community_folder / _NAME
        self._store = store_key.hex() if store_key else None
        self._roots = dict.fromkeys(self._read())

    def _read(self) -> list[str]:
        try:
            found = json.loads(self._path.read_bytes())
            if found["format"] != _FORMAT or self._store not in (None, found["store"]):
                return []
            return [str(root) for root in found["roots"]]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return []

    def __len__(self) -> int:
        """Return how many were imported."""
        return len(self._roots)

    def has(self, commitment: Commitment) -> bool:
        """Tell whether an archive was imported, from a torrent or by content id."""
        return commitment.merkle_root.hex() in self._roots

    def add(self, commitment: Commitment) -> None:
        """Note an archive. It is on the disk on return."""
        self._roots[commitment.merkle_root.hex()] = None
        with storage_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        noted = {"format": _FORMAT, "store": self._store, "roots": [*self._roots]}
        write_whole(self._path, json.dumps(noted).encode())


def verified_by_any_profile(
    data: bytes, control_key: bytes, dialect: Dialect, *, data_size_bytes: int | None, key: bytes | None
) -> VerifiedIndex:
    """Verify an index of whichever profile. Raises ArchiveError, that of the first profile where none fits."""
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
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> list[Entry]:
    """Return the archives to import, newest first: all, those of the latest week, or those that overlap a time range.

    Weeks are taken whole: of one that misses an archive all are wanted.
    """
    entries = verified.index.entries
    periods = {entry.period for entry in entries if not imported.has(verified.commitments[entry.archive_id])}
    if latest and entries:
        periods &= {max(entry.period for entry in entries)}
    if start_ms is not None:
        periods = {period for period in periods if period.to_ms > start_ms}
    if end_ms is not None:
        periods = {period for period in periods if period.from_ms < end_ms}
    return sorted((entry for entry in entries if entry.period in periods), key=_newest_first)


def _newest_first(entry: Entry) -> tuple[int, int, str]:
    return -entry.period.from_ms, entry.offset_bytes, entry.archive_id


# --- fetching and importing ----------------------------------------------------------------------


def span_of(entry: Entry) -> Span:
    """Return what a torrent calls an archive."""
    return Span(entry.offset_bytes, entry.size_bytes)


def cid_of(entry: Entry) -> str:
    """Return what a content store calls an archive. Raises ArchiveError for an entry of a torrent's index."""
    if entry.cid is None:
        raise ArchiveError(f"archive {entry.archive_id} has no content id: its index is a torrent's")
    return entry.cid


def fetched_from(
    remote: Remote[PlaceT], entries: list[Entry], place: Callable[[Entry], PlaceT], progress: ByteProgress | None = None
) -> Iterator[tuple[Entry, bytes]]:
    """Yield archives with their bytes as they come; `place` is `span_of` or `cid_of`, as the remote takes."""
    by_place = {place(entry): entry for entry in entries}
    for found, stored in remote.fetch([*by_place], progress):
        yield by_place[found], stored


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
    """Import archives and note each; yields what came of each. Takes `on_damaged` and raises as `import_archives` does."""
    for entry, found in import_archives(store, verified, fetched, key=key, merges=merges, on_damaged=on_damaged):
        imported.add(verified.commitments[entry.archive_id])
        yield entry, found
