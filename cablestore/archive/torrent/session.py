"""One libtorrent session, and a thread that waits for its alerts and tells those who wait for something of a torrent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import libtorrent as lt

from cablestore import limits
from cablestore.archive.torrent.config import TorrentConfig
from cablestore.errors import ArchiveError

_LISTEN_TIMEOUT_S: Final = 10.0
_REMOVE_TIMEOUT_S: Final = 30.0
_LONGEST_WAIT_MS: Final = 60_000
_QUEUED_ALERTS: Final = 100_000
"""Alerts that libtorrent keeps before it drops some: pieces that come while the thread has no turn."""


class Swarm:
    """One torrent in a session, as its alerts tell of it. Written by the thread of the session alone, but for `end`."""

    def __init__(self, handle: Any, info_hash: str, have: set[int]) -> None:
        self.handle: Final = handle
        self.info_hash: Final = info_hash
        self.have: Final = have
        """Pieces whose SHA-1 is right."""
        self.arrivals: Final[list[int]] = []
        """Pieces in the order in which they came."""
        self.pieces_read: Final[dict[int, bytes]] = {}
        """What libtorrent was asked to read, b"" where it could not."""
        self.pieces_refused = 0
        """How often a piece came whose SHA-1 was wrong."""
        self.metadata: bytes | None = None
        self.metadata_refused = ""
        """Why libtorrent could not use what peers gave as metadata."""
        self.is_checked = False
        self.is_removed = False
        self.is_lost_to_disk = False
        """Whether a file could not be read or written."""
        self.ended: str | None = None
        """Why there will be no more news."""
        self.news = 0
        """Counts everything that was told."""


class TorrentSession:
    """A session that listens where the configuration says, until `close`. Raises ArchiveError where it cannot."""

    def __init__(self, config: TorrentConfig) -> None:
        self._changed = threading.Condition()
        self._swarms: dict[str, Swarm] = {}
        self._listening: list[str] = []
        self._is_ending = False
        settings: Any = _settings(config)
        self._session: Any = lt.session(settings)
        _hold_all_peers_to_the_rates(self._session)
        self._thread = threading.Thread(target=self._listen, name="torrent alerts", daemon=True)
        self._thread.start()
        try:
            self._await_listening(config)
        except BaseException:
            self.close()
            raise

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._session.listen_port())

    def check(self) -> None:
        """Raise ArchiveError where the session is of no use any more: it does not listen, or nobody hears its alerts."""
        if not self._thread.is_alive() or not self._session.is_listening():
            raise ArchiveError("the torrent session does not listen any more: start it again")

    def add(self, params: Any, have: set[int] | None = None) -> Swarm:
        """Add a torrent, of which these pieces are known to be here."""
        info_hash = str(params.info_hashes.v1)
        with self._changed:
            if info_hash in self._swarms:
                raise ArchiveError(f"the torrent {info_hash} is in use already: close what uses it first")
            try:
                handle = self._session.add_torrent(params)
            except RuntimeError as error:
                raise ArchiveError(f"the torrent {info_hash} cannot be used: {error}") from None
            swarm = self._swarms[info_hash] = Swarm(handle, info_hash, have or set())
        return swarm

    def remove(self, swarm: Swarm, reason: str) -> None:
        """Take a torrent out, wait until its files are closed and let everyone who waits for it go."""
        if self._swarms.get(swarm.info_hash) is not swarm:
            return
        self._session.remove_torrent(swarm.handle)
        with self._changed:
            self._changed.wait_for(lambda: swarm.is_removed, _REMOVE_TIMEOUT_S)
            del self._swarms[swarm.info_hash]
        self.end(swarm, reason)

    def end(self, swarm: Swarm, reason: str) -> None:
        """Let everyone go who waits for a torrent."""
        with self._changed:
            swarm.ended = swarm.ended or reason
            swarm.news += 1
            self._changed.notify_all()

    def await_news(self, swarm: Swarm, seen: int, timeout_s: float) -> bool:
        """Wait for news behind those seen; whether some came. Raises ArchiveError when the torrent's time is over."""
        with self._changed:
            self._changed.wait_for(lambda: swarm.news != seen or swarm.ended, max(timeout_s, 0.0))
            if swarm.ended:
                raise ArchiveError(swarm.ended)
            return swarm.news != seen

    def until(self, swarm: Swarm, is_done: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
        """Wait until something is so. Raises ArchiveError with what to say otherwise when it is too late."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            seen = swarm.news
            if is_done():
                return
            if not self.await_news(swarm, seen, deadline_s - time.monotonic()):
                raise ArchiveError(otherwise)

    def close(self) -> None:
        """Take all torrents out and end all threads."""
        for swarm in list(self._swarms.values()):
            self.remove(swarm, "the torrent engine was closed")
        self._is_ending = True
        self._session.post_session_stats()  # an alert, so that the thread sees it
        self._thread.join()
        self._session = None  # waits for libtorrent's own threads

    # --- the thread ----------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._is_ending:
            self._session.wait_for_alert(_LONGEST_WAIT_MS)
            with self._changed:
                for alert in self._session.pop_alerts():  # they are gone at the next call
                    with suppress(RuntimeError):  # the torrent may be gone since
                        self._take(alert)
                self._changed.notify_all()

    def _take(self, alert: Any) -> None:
        match alert:
            case lt.listen_succeeded_alert() | lt.listen_failed_alert():
                self._listening.append("" if isinstance(alert, lt.listen_succeeded_alert) else alert.message())
            case lt.alerts_dropped_alert():
                for swarm in self._swarms.values():
                    _take_stock(swarm)
            case lt.torrent_removed_alert():
                if removed := self._swarms.get(str(alert.info_hashes.v1)):
                    removed.is_removed = True
            case lt.torrent_alert() if alert.handle.is_valid():
                if told := self._swarms.get(str(alert.handle.info_hashes().v1)):
                    _tell(told, alert)

    def _await_listening(self, config: TorrentConfig) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._listening, _LISTEN_TIMEOUT_S)
            if not self._listening or self._listening[0]:
                said = self._listening[0] if self._listening else f"no word in {_LISTEN_TIMEOUT_S:g} seconds"
                where = f"{config.listen_address} port {config.port}"
                raise ArchiveError(f"torrents cannot listen on {where}: {said}. Choose another address or port")


def _tell(swarm: Swarm, alert: Any) -> None:
    """Write down what an alert says of a torrent."""
    match alert:
        case lt.piece_finished_alert():
            swarm.have.add(alert.piece_index)
            swarm.arrivals.append(alert.piece_index)
        case lt.hash_failed_alert():
            swarm.pieces_refused += 1
        case lt.read_piece_alert():
            swarm.pieces_read[alert.piece] = bytes(alert.buffer) if alert.buffer else b""
        case lt.metadata_received_alert():
            info: Any = alert.handle.torrent_file()
            swarm.metadata = bytes(info.info_section())
        case lt.metadata_failed_alert():  # another peer may give what is right
            swarm.metadata_refused = alert.message()
        case lt.torrent_checked_alert():
            _take_stock(swarm)
            swarm.is_checked = True
        case lt.torrent_error_alert() | lt.file_error_alert():
            swarm.is_lost_to_disk = swarm.is_lost_to_disk or isinstance(alert, lt.file_error_alert)
            swarm.ended = f"the torrent of {alert.torrent_name} stopped: {alert.message()}"
        case _:
            return
    swarm.news += 1


def _take_stock(swarm: Swarm) -> None:
    """Ask libtorrent which pieces it has."""
    bits = swarm.handle.status(lt.torrent_handle.query_pieces).pieces
    here = {piece for piece, is_here in enumerate(bits) if is_here}
    new = sorted(here - swarm.have)
    swarm.have.intersection_update(here)
    swarm.have.update(here)
    swarm.arrivals.extend(new)  # last: who looks at arrivals first and then at what is here misses nothing
    swarm.news += 1


def _settings(config: TorrentConfig) -> dict[str, Any]:
    category = lt.alert.category_t
    host = f"[{config.listen_address}]" if ":" in config.listen_address else config.listen_address
    return {
        "listen_interfaces": f"{host}:{config.port}",
        "listen_system_port_fallback": False,  # a port that is taken is an error, not a reason to take another
        "max_retry_port_bind": 0,
        "enable_dht": config.dht,
        "enable_lsd": config.lsd,
        "enable_upnp": False,
        "enable_natpmp": False,
        "webtorrent_stun_server": "",  # by default a public one
        "allow_multiple_connections_per_ip": True,  # members behind one router
        "allow_multiple_connections_per_pid": True,  # else one that comes back before its old connection ended is refused
        "close_redundant_connections": False,  # else the seed is dropped when the first archive is whole, for a minute
        "min_reconnect_time": 5,  # seconds
        "initial_picker_threshold": 0,  # by default the first pieces are any, whatever their priority
        "tick_interval": 100,  # ms; peers are let in at ticks, so by default an index of some kB took half a second
        "request_queue_time": 1,  # second; what was asked for comes, also when it is not wanted any more
        "enable_outgoing_utp": False,  # between busy processes on one machine it fell from 80 to 1 MB/s at times, TCP never
        "upload_rate_limit": config.upload_rate_bytes_per_s,
        "download_rate_limit": config.download_rate_bytes_per_s,
        "max_metadata_size": limits.MAX_METAINFO_SIZE_BYTES,
        "max_piece_count": -(-limits.MAX_TORRENT_SIZE_BYTES // limits.PIECE_SIZE_BYTES),
        "metadata_token_limit": 1_000,  # ours has 30
        "alert_queue_size": _QUEUED_ALERTS,
        "alert_mask": (
            category.error_notification
            | category.status_notification
            | category.storage_notification
            | category.piece_progress_notification
        ),
    }


def _hold_all_peers_to_the_rates(session: Any) -> None:
    """By default libtorrent sets no rate for peers in local networks."""
    everyone = lt.ip_filter()
    everyone.add_rule("0.0.0.0", "255.255.255.255", 1 << lt.session.global_peer_class_id)  # noqa: S104 a range of peers, nothing listens
    everyone.add_rule("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 1 << lt.session.global_peer_class_id)
    session.set_peer_class_filter(everyone)
