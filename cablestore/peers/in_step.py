"""Which peers of a node are in step: what comparisons found, what peers say, and what the store stored since."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from cablestore.index.place import LogPlace
from cablestore.peers.context import PeerContext
from cablestore.peers.link import PeerLink
from cablestore.reconcile.messages import EQUAL


class Agreements:
    """Agreements of a node with its peers. On the loop, but for `_wrote`."""

    def __init__(self, context: PeerContext, links: Iterable[PeerLink]) -> None:
        """`links` are the connections of both ports."""
        self._context = context
        self._links = links
        self._watched: LogPlace | None = None
        """The place that links have agreed at. A write that leaves it is a change, and so is a rebuild."""
        self._unwatch = context.store.watch(self._wrote)

    def close(self) -> None:
        """Watch the store no more."""
        self._unwatch()

    def _wrote(self) -> None:
        """Have the loop look at what changed. In the thread that wrote, after each write."""
        watched = self._watched
        if watched is not None and self._context.store.parts.engine.place != watched:
            self._watched = None
            with suppress(RuntimeError):  # the loop was closed
                self._context.loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        """End the agreements that were made before the store changed, and watch for the next change of others."""
        place = None
        while place != self._context.store.parts.engine.place:
            place = self._watched = self._context.store.parts.engine.place
            for link in self._links:
                self._say(link, link.agreement.changed(place))
        if not any(link.agreement.has_place for link in self._links):
            self._watched = None

    def compared(self, link: PeerLink, compared: LogPlace | None, *, is_complete: bool, gave: bool) -> None:
        """Note a comparison that came to its end. `compared` is the place of the state that was compared.

        `is_complete` is true on the side that compared everything both want, `gave` if the peer was sent posts.
        """
        frames = link.agreement.compared(compared, self._context.store.parts.engine.place)
        self._say(link, frames + (link.agreement.claim(is_certain=not gave) if is_complete else []))
        self._look()

    def failed(self, link: PeerLink) -> None:
        """Note a comparison that broke off."""
        self._say(link, link.agreement.failed())

    def receive(self, link: PeerLink, frame: bytes) -> None:
        """Take an EQUAL or CHANGED of a peer, after the end of the comparison that it is about."""
        agreement = link.agreement
        if frame == EQUAL:
            self._say(link, agreement.peer_is_equal(self._context.store.parts.engine.place, answers=not link.is_ours))
        else:
            agreement.peer_changed()
            self._say(link, [])

    def _say(self, link: PeerLink, frames: list[bytes]) -> None:
        if frames:
            link.send_frames(frames)
        link.tell_step()
