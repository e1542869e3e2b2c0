"""Settings of torrents. Nothing is sent to the outside unless it is enabled here."""

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
"""The address of another engine: an IP address and a port."""


@dataclass(frozen=True, slots=True)
class TorrentConfig:
    """The `TorrentConfig` of RFC 61, with more settings. Raises ArchiveError for impossible values."""

    enabled: bool = False
    port: int = DEFAULT_PORT
    """0 takes any free port."""
    data_folder: Path = Path("data/archivedata")
    """The folder with a folder for each community, with `data` and `index`."""
    torrent_folder: Path = Path("data/torrents")
    """The folder with `{community}.torrent`, made by `seed` or fetched from peers."""
    listen_address: str = "127.0.0.1"
    """An IP address of this machine, or 0.0.0.0 for all. With 127.0.0.1 other machines get nothing."""
    peers: tuple[Peer, ...] = ()
    """Peers to ask for every community."""
    trackers: tuple[str, ...] = ()
    """Trackers for every torrent, also named in links. Trackers that others name are not asked."""
    dht: bool = False
    lsd: bool = False
    """Local service discovery by multicast in the local network."""
    upload_rate_bytes_per_s: int = 0
    """0 is no limit. The limit holds for all peers, also for those in the local network."""
    download_rate_bytes_per_s: int = 0
    metadata_timeout_s: float = limits.METADATA_TIMEOUT_S
    stall_timeout_s: float = limits.STALL_TIMEOUT_S

    def __post_init__(self) -> None:
        """Raise ArchiveError for values that libtorrent would replace or ignore."""
        check_peers((*self.peers, (self.listen_address, self.port or 1)))
        for url in self.trackers:
            check_tracker(url)
        if min(self.upload_rate_bytes_per_s, self.download_rate_bytes_per_s) < 0:
            raise ArchiveError("a rate is negative: expected is a number of bytes per second, or 0 for no limit")

    @property
    def is_public(self) -> bool:
        """Whether peers may be found by asking others. Then peers may also be told of each other."""
        return self.dht or self.lsd or bool(self.trackers)


def check_peers(peers: tuple[Peer, ...]) -> tuple[Peer, ...]:
    """Return peers whose addresses need no name server. Raises ArchiveError for others."""
    for host, port in peers:
        try:
            ip_address(host)
        except ValueError:
            raise ArchiveError(f"{host!r} is not an IP address: torrents need one such as 127.0.0.1") from None
        if not 0 < port <= 65_535:
            raise ArchiveError(f"{port} is not a port: expected 1 to 65535")
    return peers
