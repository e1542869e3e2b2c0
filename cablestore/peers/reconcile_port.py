"""The reconciliation port: reconciliation without Cable, in length-prefixed frames. A cabal key encrypts them."""

from __future__ import annotations

from functools import partial
from typing import Final

from cablestore import limits
from cablestore.peers.address import Address
from cablestore.peers.context import PeerContext
from cablestore.peers.link import PeerLink
from cablestore.peers.listener import PeerListener
from cablestore.peers.reconciler import Reconciler
from cablestore.protocol.fields import sized
from cablestore.reconcile.messages import LIFE_REQUEST, ReconcileFrameReader


class ReconcileConnection(PeerLink):
    """A connection to or from the reconciliation port of a store."""

    port_name = b" reconcile"

    def __init__(self, context: PeerContext, port: ReconcilePort, dialed: Address | None) -> None:
        super().__init__(context, dialed)
        self._port = port
        self._has_received = False
        self._frames = ReconcileFrameReader(limits.MAX_TALK_FRAME_SIZE_BYTES)

    def _admit(self) -> str:
        rejection = self._port.admit(self)
        return "" if self.is_ours else rejection

    def _begin(self) -> None:
        """Close the connection if the local user blocks the peer. The side that connected sends the first frame."""
        if self.audience.is_blocked:
            self.banish()

    def _receive(self, messages: list[bytes]) -> None:
        for message in messages:
            for frame in self._frames.feed(message):
                # The handshake of a peer with a cabal key can look like an unknown frame.
                self._has_received |= self._handle_life_frame(frame) or self._port.reconciler.received(self, frame)

    @property
    def _is_read(self) -> bool:
        return True

    @property
    def _is_understood(self) -> bool:
        return self._has_received

    def _probe(self) -> None:
        self.send_frames([LIFE_REQUEST])

    @property
    def _messages(self) -> int:
        return self._frames.messages

    def _check_silence(self, now_s: float) -> None:
        is_silent = now_s - self.received_s > self._context.settings.idle_timeout_s
        if is_silent and not self._port.reconciler.is_under_way(self):  # a reconciliation has its own limits
            self.end("idle")

    def _lost(self) -> None:
        self._port.remove(self)

    def send_frames(self, frames: list[bytes]) -> None:
        """Send frames. A peer that does not read them is disconnected."""
        if frames and self.is_established:
            self._send([b"".join(map(sized, frames))])
            if self._unread_size_bytes > self._context.settings.max_queued_size_bytes:
                self.close("the peer reads too slowly")

    def faulted(self, what: str, detail: str) -> None:
        """Log a fault, and close the connection: on this port every fault violates the protocol."""
        self._context.log.info("fault", extra={"peer": self.name, "what": what, "detail": detail})
        self.close(f"{what}: {detail}")


class ReconcilePort(PeerListener[PeerLink]):
    """The reconciliation ports of a node, with the connections to and from such ports."""

    def __init__(self, context: PeerContext, reconciler: Reconciler, links: set[PeerLink]) -> None:
        super().__init__(context, partial(ReconcileConnection, context, self), links, "reconciling")
        self.reconciler: Final = reconciler

    async def keep(self, link: PeerLink) -> None:
        """Stay in step with a peer until the connection ends."""
        self.reconciler.node_ids.keep(link)
        self.reconciler.node_ids.announce(link)
        await self.reconciler.keep_in_step(link)
