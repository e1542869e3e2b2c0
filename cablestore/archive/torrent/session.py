"""libtorrent session, and a thread that reads its alerts and wakes the threads that wait for a torrent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import libtorrent as lt

from cablestore import limits
from cablestore.archive.torrent.config import TorrentConfig
from cablestore.errors import ArchiveError
from cablestore.forks import ProcessBound, bind

_LISTEN_TIMEOUT_S: Final = 10.0
_REMOVE_TIMEOUT_S: Final = 30.0
_LONGEST_WAIT_MS: Final = 60_000
_QUEUED_ALERTS: Final = 100_000
"""Maximum number of alerts that libtorrent queues before it drops some."""


class Swarm:
    """State of one torrent in a session. The session's thread updates it from alerts. `TorrentSession.end` ends it."""

    def __init__(self, handle: Any, info_hash: str, have: set[int]) -> None:
        self.handle: Final = handle
        self.info_hash: Final = info_hash
        self.have: Final = have
        """Pieces with a correct SHA-1."""
        self.arrivals: Final[list[int]] = []
        """Pieces in order of arrival."""
        self.pieces_read: Final[dict[int, bytes]] = {}
        """Pieces that libtorrent read on request: their bytes, or b"" if the read failed."""
        self.pieces_refused = 0
        """Number of pieces that arrived with a wrong SHA-1."""
        self.metadata: bytes | None = None
        self.metadata_refused = ""
        """Reason why libtorrent rejected the metadata of a peer."""
        self.is_checked = False
        self.is_removed = False
        self.is_lost_to_disk = False
        """True if a file could not be read or written."""
        self.ended: str | None = None
        """Reason why the state does not change any more."""
        self.change_count = 0
        """Number of changes of this state."""


class TorrentSession(ProcessBound):
    """Session that listens at the configured address until `close`. Raises ArchiveError if it cannot listen."""

    def __init__(self, config: TorrentConfig) -> None:
        self._lock = threading.RLock()
        """Lock of `_changed`. Use `with _lock`: `with _changed` runs Python code, and Ctrl-C could leave it locked."""
        self._changed = threading.Condition(self._lock)
        self._swarms: dict[str, Swarm] = {}
        self._listening: list[str] = []
        self._is_ending = False
        settings: Any = _settings(config)
        self._session: Any = lt.session(settings)
        _hold_all_peers_to_the_rates(self._session)
        self._thread = threading.Thread(target=self._listen, name="torrent alerts", daemon=True)
        self._thread.start()
        bind(self)
        try:
            self._await_listening(config)
        except BaseException:
            self.close()
            raise

    def _native_parts(self) -> Iterable[object]:
        """Return the libtorrent session, whose destructor waits for its threads."""
        return (self._session,)

    @property
    def port(self) -> int:
        """Port on which the session listens."""
        return int(self._session.listen_port())

    def check(self) -> None:
        """Raise ArchiveError if the session does not listen any more, or if its alert thread has ended."""
        if not self._thread.is_alive() or not self._session.is_listening():
            raise ArchiveError("the torrent session no longer listens. Start the session again")

    def add(self, params: Any, have: set[int] | None = None) -> Swarm:
        """Add a torrent and return its state. `have` are the pieces known to be complete."""
        info_hash = str(params.info_hashes.v1)
        with self._lock:
            if info_hash in self._swarms:
                raise ArchiveError(f"the torrent {info_hash} is already in use. Stop its other fetch or seed first")
            try:
                handle = self._session.add_torrent(params)
            except RuntimeError as error:
                raise ArchiveError(f"cannot use the torrent {info_hash}: {error}") from None
            swarm = self._swarms[info_hash] = Swarm(handle, info_hash, have or set())
        return swarm

    def remove(self, swarm: Swarm, reason: str) -> None:
        """Remove a torrent, wait until its files are closed, and wake all threads that wait for it."""
        if self._swarms.get(swarm.info_hash) is not swarm:
            return
        self._session.remove_torrent(swarm.handle)
        with self._lock:
            self._changed.wait_for(lambda: swarm.is_removed, _REMOVE_TIMEOUT_S)
            del self._swarms[swarm.info_hash]
        self.end(swarm, reason)

    def end(self, swarm: Swarm, reason: str) -> None:
        """Set the reason why a torrent's state does not change any more, and wake all threads that wait for it."""
        with self._lock:
            swarm.ended = swarm.ended or reason
            swarm.change_count += 1
            self._changed.notify_all()

    def wait_for_change(self, swarm: Swarm, seen: int, timeout_s: float) -> bool:
        """Wait until `change_count` differs from `seen`, and return True. Return False after the timeout.

        Raises ArchiveError if the torrent has ended.
        """
        with self._lock:
            self._changed.wait_for(lambda: swarm.change_count != seen or swarm.ended, max(timeout_s, 0.0))
            if swarm.ended:
                raise ArchiveError(swarm.ended)
            return swarm.change_count != seen

    def until(self, swarm: Swarm, is_done: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
        """Wait until `is_done` returns true. Raises ArchiveError with the message `otherwise` after the timeout."""
        with self._lock:
            self._changed.wait_for(lambda: is_done() or swarm.ended, timeout_s)
            if not is_done():
                raise ArchiveError(swarm.ended or otherwise)

    def close(self) -> None:
        """Remove all torrents and end all threads."""
        for swarm in list(self._swarms.values()):
            self.remove(swarm, "the torrent engine was closed")
        self._is_ending = True
        self._session.post_session_stats()  # the resulting alert wakes the thread
        self._thread.join()
        self._session = None  # waits for libtorrent's threads

    # --- the thread ----------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._is_ending:
            self._session.wait_for_alert(_LONGEST_WAIT_MS)
            with self._lock:
                for alert in self._session.pop_alerts():  # alerts are invalid after the next call
                    with suppress(RuntimeError):  # the torrent may be removed
                        self._take(alert)
                self._changed.notify_all()

    def _take(self, alert: Any) -> None:
        match alert:
            case lt.listen_succeeded_alert() | lt.listen_failed_alert():
                self._listening.append("" if isinstance(alert, lt.listen_succeeded_alert) else alert.message())
            case lt.alerts_dropped_alert():
                for swarm in self._swarms.values():
                    _count_pieces(swarm)
            case lt.torrent_removed_alert():
                if removed := self._swarms.get(str(alert.info_hashes.v1)):
                    removed.is_removed = True
            case lt.torrent_alert() if alert.handle.is_valid():
                if told := self._swarms.get(str(alert.handle.info_hashes().v1)):
                    _record_alert(told, alert)

    def _await_listening(self, config: TorrentConfig) -> None:
        with self._lock:
            self._changed.wait_for(lambda: self._listening, _LISTEN_TIMEOUT_S)
            if not self._listening or self._listening[0]:
                said = self._listening[0] if self._listening else f"no answer within {_LISTEN_TIMEOUT_S:g} s"
                where = f"{config.listen_address} port {config.port}"
                raise ArchiveError(f"cannot listen for torrents on {where}: {said}. Choose another address or port")


def _record_alert(swarm: Swarm, alert: Any) -> None:
    """Record an alert in the state of its torrent."""
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
        case lt.metadata_failed_alert():  # another peer may send the right one
            swarm.metadata_refused = alert.message()
        case lt.torrent_checked_alert():
            _count_pieces(swarm)
            swarm.is_checked = True
        case lt.torrent_error_alert() | lt.file_error_alert():
            swarm.is_lost_to_disk = swarm.is_lost_to_disk or isinstance(alert, lt.file_error_alert)
            swarm.ended = f"the torrent of {alert.torrent_name} stopped: {alert.message()}"
        case _:
            return
    swarm.change_count += 1


def _count_pieces(swarm: Swarm) -> None:
    """Set `have` to the pieces that are complete according to libtorrent, and append new pieces to `arrivals`."""
    bits = swarm.handle.status(lt.torrent_handle.query_pieces).pieces
    here = {piece for piece, is_here in enumerate(bits) if is_here}
    new = sorted(here - swarm.have)
    swarm.have.intersection_update(here)
    swarm.have.update(here)
    swarm.arrivals.extend(new)  # last, so that a thread that reads `arrivals` before `have` does not miss pieces
    swarm.change_count += 1


def _settings(config: TorrentConfig) -> dict[str, Any]:
    category = lt.alert.category_t
    host = f"[{config.listen_address}]" if ":" in config.listen_address else config.listen_address
    return {
        "listen_interfaces": f"{host}:{config.port}",
        "listen_system_port_fallback": False,  # a port in use is an error, not a reason to use another port
        "max_retry_port_bind": 0,
        "enable_dht": config.dht,
        "enable_lsd": config.lsd,
        "enable_upnp": False,
        "enable_natpmp": False,
        "webtorrent_stun_server": "",  # a public server by default
        "allow_multiple_connections_per_ip": True,  # members may share a router
        # Otherwise a peer that reconnects before its old connection ends is rejected.
        "allow_multiple_connections_per_pid": True,
        # Otherwise the seed is dropped for a minute when the first archive is complete.
        "close_redundant_connections": False,
        "min_reconnect_time": 1,  # in seconds; longer after each failure
        "max_failcount": 30,  # by default, a peer that failed three times is not tried again
        "initial_picker_threshold": 0,  # by default, the first pieces are random, regardless of priority
        # In ms. Peers are accepted at ticks. With the default, an index of some kB took half a second.
        "tick_interval": 100,
        "request_queue_time": 1,  # in seconds; queued pieces arrive even after they are deselected
        "enable_outgoing_utp": False,  # between busy processes it sometimes fell from 80 to 1 MB/s; TCP never did
        "upload_rate_limit": config.upload_rate_bytes_per_s,
        "download_rate_limit": config.download_rate_bytes_per_s,
        "max_metadata_size": limits.MAX_METAINFO_SIZE_BYTES,
        "max_piece_count": -(-limits.MAX_TORRENT_SIZE_BYTES // limits.PIECE_SIZE_BYTES),
        "metadata_token_limit": 1_000,  # our metadata contains 30
        "alert_queue_size": _QUEUED_ALERTS,
        "alert_mask": (
            category.error_notification
            | category.status_notification
            | category.storage_notification
            | category.piece_progress_notification
        ),
    }


def _hold_all_peers_to_the_rates(session: Any) -> None:
    """Apply the rate limits to all peers. By default, libtorrent exempts peers in local networks."""
    everyone = lt.ip_filter()
    everyone.add_rule("0.0.0.0", "255.255.255.255", 1 << lt.session.global_peer_class_id)  # noqa: S104 - of peers
    everyone.add_rule("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 1 << lt.session.global_peer_class_id)
    session.set_peer_class_filter(everyone)
