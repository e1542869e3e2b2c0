"""Which peers of a node are in step, as comparisons, notices of the peers, and changes of the store show."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from cablestore.index.log_position import LogPosition
from cablestore.peers.context import PeerContext
from cablestore.peers.link import PeerLink
from cablestore.reconcile.messages import EQUAL


class Agreements:
    """Agreements of a node with its peers. Use it on the loop."""

    def __init__(self, context: PeerContext, links: Iterable[PeerLink]) -> None:
        """`links` are the connections of both ports."""
        self._context = context
        self._links = links
        self._watched: LogPosition | None = None
        """The log position of the present agreements. A write or a rebuild that changes the position ends them."""
        self._unwatch = context.store.watch(self._wrote)

    def close(self) -> None:
        """Stop watching the store."""
        self._unwatch()

    def _wrote(self) -> None:
        """Schedule `_check` on the loop. Called after each write, in the thread that wrote."""
        watched = self._watched
        if watched is not None and self._context.store.parts.engine.place != watched:
            self._watched = None
            with suppress(RuntimeError):  # the loop was closed
                self._context.loop.call_soon_threadsafe(self._check)

    def _check(self) -> None:
        """End the agreements from before the store changed. If other agreements remain, watch for the next change."""
        place = None
        while place != self._context.store.parts.engine.place:
            place = self._watched = self._context.store.parts.engine.place
            for link in self._links:
                self._say(link, link.agreement.changed(place))
        if not any(link.agreement.has_place for link in self._links):
            self._watched = None

    def compared(self, link: PeerLink, compared: LogPosition | None, *, is_complete: bool, sent_posts: bool) -> None:
        """Record a complete comparison. `compared` is the log position of the compared state.

        `is_complete` is True on the side that compared all common posts. `sent_posts` is True if this
        side sent posts.
        """
        frames = link.agreement.compared(compared, self._context.store.parts.engine.place)
        self._say(link, frames + (link.agreement.claim(is_certain=not sent_posts) if is_complete else []))
        self._check()

    def failed(self, link: PeerLink) -> None:
        """Record a failed comparison."""
        self._say(link, link.agreement.failed())

    def receive(self, link: PeerLink, frame: bytes) -> None:
        """Handle EQUAL or CHANGED of a peer, after the end of the comparison that the frame refers to."""
        agreement = link.agreement
        if frame == EQUAL:
            self._say(link, agreement.peer_is_equal(self._context.store.parts.engine.place, answers=not link.is_ours))
        else:
            agreement.peer_changed()
            self._say(link, [])

    def _say(self, link: PeerLink, frames: list[bytes]) -> None:
        if frames:
            link.send_frames(frames)
        link.notify_step()
