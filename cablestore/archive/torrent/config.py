"""What can be set about torrents. Nothing speaks to the outside unless it is set here."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cablestore import limits
from cablestore.archive.format.magnet import check_tracker
from cablestore.errors import ArchiveError

DEFAULT_PORT: Final = 9025
"""The port of the deployed control nodes (status-go, TorrentConfig)."""

Peer = tuple[str, int]
"""Where another engine listens: an IP address and a port."""


@dataclass(frozen=True, slots=True)
class TorrentConfig:
    """The `TorrentConfig` of RFC 61, and what it leaves open. Raises ArchiveError for what cannot be."""

    enabled: bool = False
    port: int = DEFAULT_PORT
    """0 takes any that is free."""
    data_folder: Path = Path("data/archivedata")
    """Has a folder for each community, with `data` and `index`."""
    torrent_folder: Path = Path("data/torrents")
    """Has `{community}.torrent`, made by `seed` or learned from peers."""
    listen_address: str = "127.0.0.1"
    """An IP address of this machine; 0.0.0.0 for all. Others get nothing from a node that only this machine reaches."""
    peers: tuple[Peer, ...] = ()
    """Whom to ask for every community."""
    trackers: tuple[str, ...] = ()
    """Asked for every torrent, and named in links. Those that others name are not asked."""
    dht: bool = False
    lsd: bool = False
    """Local service discovery: multicast in the local network."""
    upload_rate_bytes_per_s: int = 0
    """0 is without limit; it holds for all peers, those in the local network too."""
    download_rate_bytes_per_s: int = 0
    metadata_timeout_s: float = limits.METADATA_TIMEOUT_S
    stall_timeout_s: float = limits.STALL_TIMEOUT_S

    def __post_init__(self) -> None:
        """Refuse what libtorrent would replace by something else, or skip."""
        check_peers((*self.peers, (self.listen_address, self.port or 1)))
        for url in self.trackers:
            check_tracker(url)
        if min(self.upload_rate_bytes_per_s, self.download_rate_bytes_per_s) < 0:
            raise ArchiveError("a rate is a number of bytes a second, 0 for no limit")

    @property
    def is_public(self) -> bool:
        """Whether peers may be found by asking others, so that those found may be told of each other as well."""
        return self.dht or self.lsd or bool(self.trackers)


def check_peers(peers: tuple[Peer, ...]) -> tuple[Peer, ...]:
    """Return addresses that need no name server. Raises ArchiveError."""
    for host, port in peers:
        try:
            ip_address(host)
        except ValueError:
            raise ArchiveError(f"{host!r} is no IP address, which torrents need: as in 127.0.0.1") from None
        if not 0 < port <= 65_535:
            raise ArchiveError(f"{port} is no port: expected 1 to 65535")
    return peers
