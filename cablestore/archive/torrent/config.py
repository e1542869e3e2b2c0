"""Settings of torrents. Only enabled features send data to other programs."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cablestore import limits
from cablestore.archive.format.magnet import check_tracker
from cablestore.errors import ArchiveError

DEFAULT_PORT: Final = 9025
"""Port of the deployed control nodes (status-go, TorrentConfig)."""

Peer = tuple[str, int]
"""Address of another engine: an IP address and a port."""


@dataclass(frozen=True, slots=True)
class TorrentConfig:
    """`TorrentConfig` of RFC 61, with more settings. Raises ArchiveError for invalid values."""

    enabled: bool = False
    port: int = DEFAULT_PORT
    """0 means any free port."""
    data_folder: Path = Path("data/archivedata")
    """Folder with a subfolder for each community. Each subfolder contains `data` and `index`."""
    torrent_folder: Path = Path("data/torrents")
    """Folder with a file `{community}.torrent` for each community, created by `seed` or fetched from peers."""
    listen_address: str = "127.0.0.1"
    """IP address of this machine, or 0.0.0.0 for all. With 127.0.0.1, other machines cannot connect."""
    peers: tuple[Peer, ...] = ()
    """Peers for all communities."""
    trackers: tuple[str, ...] = ()
    """Trackers for all torrents. Links contain them. Trackers in links of other control nodes are ignored."""
    dht: bool = False
    lsd: bool = False
    """Local service discovery by multicast in the local network."""
    upload_rate_bytes_per_s: int = 0
    """Limit that also applies to peers in the local network. 0 means no limit."""
    download_rate_bytes_per_s: int = 0
    metadata_timeout_s: float = limits.METADATA_TIMEOUT_S
    stall_timeout_s: float = limits.STALL_TIMEOUT_S

    def __post_init__(self) -> None:
        """Raise ArchiveError for values that libtorrent would replace or ignore."""
        check_peers((*self.peers, (self.listen_address, self.port or 1)))
        for url in self.trackers:
            check_tracker(url)
        if min(self.upload_rate_bytes_per_s, self.download_rate_bytes_per_s) < 0:
            raise ArchiveError("negative rate: expected bytes per second, or 0 for no limit")

    @property
    def is_public(self) -> bool:
        """True if trackers, the DHT or local discovery may find peers. Then connected peers also exchange addresses."""
        return self.dht or self.lsd or bool(self.trackers)


def check_peers(peers: tuple[Peer, ...]) -> tuple[Peer, ...]:
    """Return the peers if all have numeric addresses and valid ports. Raises ArchiveError otherwise."""
    for host, port in peers:
        try:
            ip_address(host)
        except ValueError:
            raise ArchiveError(f"invalid IP address {host!r}: expected a numeric address, such as 127.0.0.1") from None
        if not 0 < port <= 65_535:
            raise ArchiveError(f"invalid port {port}: expected 1 to 65535")
    return peers
