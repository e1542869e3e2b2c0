"""Seeding a community's folder over BitTorrent while a process runs, including new archives.

with TorrentEngine(config) as engine:
    seeder = Seeder(engine, community, key)
    while True:
        seeder.seed_new()
        time.sleep(1)
"""

from __future__ import annotations

from typing import Final

from cablestore.archive.errors import IncompleteError
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.local import are_whole
from cablestore.archive.torrent.engine import TorrentEngine
from cablestore.errors import ArchiveError, StorageError

_OF_INDEX: Final = 3
"""Number of values at the end of a folder's state that describe the index."""


class Seeder:
    """Seeder of one community's folder. `link` is the newest magnet link."""

    def __init__(self, engine: TorrentEngine, community: str, key: bytes | None = None) -> None:
        """Start seeding. Raises ArchiveError if this fails, such as IncompleteError if archives are missing or damaged.

        `key` is the cabal key to check encrypted archives against their index, or None for public archives.
        """
        self._engine: Final = engine
        self._community: Final = community
        self._key: Final = key
        self._folder: Final = ArchiveFolder(engine.config.data_folder / community)
        self._given_before_bytes = 0
        self._seen = self._folder.state() or ()
        self.link = self._seed()

    @property
    def peers(self) -> int:
        """Number of connected peers."""
        status = self._engine.status(self._community)
        return status.peers if status else 0

    @property
    def given_bytes(self) -> int:
        """Payload bytes sent since the start."""
        return self._given_before_bytes + self._given_now_bytes()

    def seed_new(self) -> bool:
        """Seed archives that are new since the last call. Return True if there is a new link.

        Returns False while another process writes to the folder, or while archives of a new index are missing. Raises
        StorageError if the folder can no longer be seeded, and ArchiveError for other failures, such as of the network.
        """
        state = self._folder.state()
        if state == self._seen:
            self._engine.check_seed(self._community)
            return False
        if state is None:
            raise StorageError(f"no archives found in {self._folder.path}. Create or fetch archives, then seed again")
        if self._folder.is_claimed():
            return False
        given_bytes = self._given_now_bytes()
        try:
            link = self._seed()
        except IncompleteError as error:
            if state[-_OF_INDEX:] == self._seen[-_OF_INDEX:]:  # the index is the same, so stored archives were lost
                raise StorageError(f"{self._folder.path} can no longer be seeded: {error}") from None
            return False
        except ArchiveError:
            if self._folder.state() != state:  # another process wrote to the folder meanwhile
                return False
            raise
        self._seen = state
        is_new, self.link = link != self.link, link
        if is_new:
            self._given_before_bytes += given_bytes
        return is_new

    def _seed(self) -> str:
        is_verified = are_whole(self._engine.config.data_folder, self._community, self._key)
        return self._engine.seed(self._community, is_verified=is_verified)

    def _given_now_bytes(self) -> int:
        status = self._engine.status(self._community)
        return status.uploaded_bytes if status else 0
